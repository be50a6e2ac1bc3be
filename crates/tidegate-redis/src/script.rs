//! The scripts that run in the server, and the header of their calls.
//!
//! KEYS are the keys of all commands, each once. ARGV begins with the [`header`]; behind it come the
//! commands as [`codec`](crate::codec) encodes them. The reply is one string, which the codec decodes.
//!
//! A call whose connection broke can be sent again if it has a number. Then the last of KEYS is its
//! [idempotency key](crate::keys::idempotency), in the same slot as the others, where the script keeps the
//! number and the reply of the key's last call for 12 seconds. The same number gets the same reply, and
//! changes nothing; a smaller one gets the error `STALE`. So each key has one call under way at a time,
//! with a number that is larger each time.
//!
//! Measured on Redis 7.0.15, in instructions of the server for each plan (callgrind, the whole process,
//! batches of 64): one bucket 31,000, and 10,000 on ten hot keys; three buckets, one of which all plans
//! share, 57,000; one alone in its call 137,000. A minimal bucket script, called once per check and
//! pipelined, takes 62,000. A thousand instructions are some 0.13 µs. Of a bucket, some 4,400 change the
//! value in place (setting it with its TTL would take 11,000), 4,700 move its expiry, which every third
//! charge does, 2,600 read it, 2,000 and 2,400 unpack and pack it; each step of Lua takes some 50. In a
//! batch, the general path takes twice as many.

use std::sync::OnceLock;

/// A script, and the hash by which the server caches it.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: &'static str,
    sha1: OnceLock<String>,
}

impl Script {
    pub(crate) const fn new(text: &'static str) -> Self {
        Self { text, sha1: OnceLock::new() }
    }

    pub(crate) fn sha1(&self) -> &str {
        self.sha1.get_or_init(|| redis::Script::new(self.text).get_hash().to_owned())
    }
}

/// The layers that know all algorithms, keys and values. The caller appends the innermost layer.
macro_rules! general_path {
    () => {
        concat!(
            include_str!("scripts/arithmetic.lua"),
            "return (function()\n",
            include_str!("scripts/token_bucket.lua"),
            include_str!("scripts/sliding_window.lua"),
            include_str!("scripts/sliding_counter.lua"),
            include_str!("scripts/windows.lua"),
            include_str!("scripts/concurrency.lua"),
            include_str!("scripts/total.lua"),
            include_str!("scripts/algorithms.lua"),
            "return (function()\n",
            include_str!("scripts/loans.lua"),
            include_str!("scripts/ledger.lua"),
            include_str!("scripts/values.lua"),
            "return (function()\n",
        )
    };
}

/// Builds the general path if it does not exist yet.
macro_rules! build_general_path {
    () => {
        "if not run_general then run_general, stage_all = "
    };
}

/// Where the script begins to build the general path; tests put an error there.
pub(crate) const GENERAL_PATH: &str = build_general_path!();

/// The script that carries out all commands.
///
/// The general path, which few commands need, is in a function that is built when the first of them
/// comes. Its layers are functions, each within the last: when Lua builds a function, it searches all
/// locals of the enclosing function for each one that the new function uses, but finds those of outer
/// layers at once. In one layer, building the functions took longer than deciding with them.
pub(crate) static DECIDE: Script = Script::new(concat!(
    include_str!("scripts/prelude.lua"),
    include_str!("scripts/batch_start.lua"),
    include_str!("scripts/short_forms.lua"),
    include_str!("scripts/commands.lua"),
    "repeat\n",
    include_str!("scripts/fast_path.lua"),
    include_str!("scripts/fast_path_write.lua"),
    "if general_keys then\n",
    build_general_path!(),
    "(function()\n",
    general_path!(),
    include_str!("scripts/general_path.lua"),
    include_str!("scripts/lend.lua"),
    include_str!("scripts/general_dispatch.lua"),
    "end)() end)() end)() end)() end\n",
    "run_general(command, from, general_keys) end until not general_keys\n",
    include_str!("scripts/batch_finish.lua"),
));

/// The script that inspects states for operators: the same layers, with another innermost one.
pub(crate) static INSPECT: Script = Script::new(concat!(
    include_str!("scripts/prelude.lua"),
    include_str!("scripts/batch_start.lua"),
    include_str!("scripts/short_forms.lua"),
    "return (function()\n",
    general_path!(),
    include_str!("scripts/inspect.lua"),
    "end)() end)() end)() end)()\n",
));

/// The clock that a batch goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// The server's own, so that no two nodes can disagree about it.
    Server,
    /// This instant, in microseconds since the Unix epoch; for tests.
    Fixed(u64),
}

/// An instant that stands for the server's clock, and that no clock shows.
const SERVER_TIME: u64 = u64::MAX;

/// The first argument. With a number, the last key is the idempotency key.
pub(crate) fn header(time: Time, number: Option<u64>) -> Vec<u8> {
    let time_us = match time {
        Time::Server if number.is_none() => return Vec::new(),
        Time::Server => SERVER_TIME,
        Time::Fixed(unix_us) => unix_us,
    };
    let mut header = time_us.to_le_bytes().to_vec();
    header.extend(number.into_iter().flat_map(u64::to_le_bytes));
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_called_by_the_hash_of_its_text() {
        assert_eq!(DECIDE.sha1().len(), 40);
        assert!(DECIDE.sha1().bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_ne!(DECIDE.sha1(), INSPECT.sha1());
    }

    #[test]
    fn the_general_path_begins_once() {
        assert_eq!(DECIDE.text.matches(GENERAL_PATH).count(), 1);
    }

    #[test]
    fn the_header_holds_only_what_is_given() {
        assert_eq!(header(Time::Server, None), b"");
        assert_eq!(header(Time::Fixed(258), None), [2, 1, 0, 0, 0, 0, 0, 0]);
        let numbered = header(Time::Server, Some(3));
        assert_eq!(numbered, [[255; 8], [3, 0, 0, 0, 0, 0, 0, 0]].concat());
        assert_eq!(header(Time::Fixed(258), Some(3))[..8], [2, 1, 0, 0, 0, 0, 0, 0]);
    }
}
