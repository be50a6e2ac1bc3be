//! The one script that decides everything, and what it is called with.
//!
//! KEYS are the keys of all asks, each once. ARGV begins with the [`header`]; behind it come the asks
//! as [`codec`](crate::codec) packs them. The reply is one string, which it reads.
//!
//! A call whose connection broke can be sent again if it has a [`Sequence`]: the last of KEYS is then
//! the [lane](crate::keys::lane) of the batch, in the same slot as the others, where the script keeps
//! the number and the reply of the lane's last batch for 12 seconds. The same number is answered
//! with the same reply, and changes nothing; a smaller one with the error `STALE`. So a lane has one
//! batch under way at a time, with a number that is larger each time.
//!
//! Measured on Redis 7.0.15, in instructions of the server for each plan (callgrind, all that the
//! process does, batches of 64): one bucket 31,000, and 10,000 on ten hot keys; three buckets, of
//! which one is everybody's, 57,000; one alone in its call 137,000. A minimal bucket script, called
//! once per check and pipelined, takes 62,000. A thousand instructions are some 0.13 µs. Of a bucket,
//! some 4,400 are to change the value in its place (to set it with its TTL would be 11,000), 4,700 to
//! move its end, which every third charge does, 2,600 to read it, 2,000 and 2,400 to unpack and pack it;
//! each step of Lua is some 50. What needs the machinery takes twice as many in a batch.

use std::sync::OnceLock;

use crate::connection::Script;

/// The layers that know all algorithms, keys and values; what is behind them is within the last.
macro_rules! machinery {
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
            include_str!("scripts/leases.lua"),
            include_str!("scripts/ledger.lua"),
            include_str!("scripts/keys.lua"),
            "return (function()\n",
        )
    };
}

/// The script.
///
/// What few asks need is in a function that is made when the first of them comes. Its layers are
/// functions, each within the last: Lua searches all locals of a function for every one that a
/// function in it uses, but knows at once where to find those from further out. In one layer, making
/// the functions took longer than deciding with them.
pub(crate) const TEXT: &str = concat!(
    include_str!("scripts/head.lua"),
    include_str!("scripts/start.lua"),
    include_str!("scripts/forms.lua"),
    include_str!("scripts/held.lua"),
    include_str!("scripts/batch.lua"),
    "repeat\n",
    include_str!("scripts/quick.lua"),
    include_str!("scripts/seal.lua"),
    "if handed then\nif not answer then answer, leave = (function()\n",
    machinery!(),
    include_str!("scripts/asks.lua"),
    include_str!("scripts/lend.lua"),
    include_str!("scripts/answer.lua"),
    "end)() end)() end)() end)() end\n",
    "answer(ask, from, handed) end until not handed\n",
    include_str!("scripts/finish.lua"),
);

/// What looks at keys for operators: the same layers, with another innermost one.
const LOOK: &str = concat!(
    include_str!("scripts/head.lua"),
    include_str!("scripts/start.lua"),
    include_str!("scripts/forms.lua"),
    include_str!("scripts/held.lua"),
    "return (function()\n",
    machinery!(),
    include_str!("scripts/look.lua"),
    "end)() end)() end)() end)()\n",
);

/// The script that looks.
pub(crate) fn look() -> Script {
    static SHA1: OnceLock<String> = OnceLock::new();
    let sha1 = SHA1.get_or_init(|| redis::Script::new(LOOK).get_hash().to_owned());
    Script { text: LOOK, sha1 }
}

/// Whose clock a batch goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// The server's own, so that no two nodes can disagree about it.
    Server,
    /// This instant, in microseconds since the Unix epoch; for tests.
    Fixed(u64),
}

/// An instant that stands for the server's clock, and that no clock shows.
const SERVER_TIME: u64 = u64::MAX;

/// The number of a batch among those of its lane, larger than that of the batch before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sequence(pub(crate) u64);

/// What the script is called in the server's cache.
pub(crate) fn sha1() -> &'static str {
    static SHA1: OnceLock<String> = OnceLock::new();
    SHA1.get_or_init(|| redis::Script::new(TEXT).get_hash().to_owned())
}

/// The first argument. With a sequence, the last key is that of the lane.
pub(crate) fn header(time: Time, sequence: Option<Sequence>) -> Vec<u8> {
    match (time, sequence) {
        (Time::Server, None) => Vec::new(),
        (Time::Fixed(unix_us), None) => unix_us.to_le_bytes().to_vec(),
        (Time::Server, Some(sequence)) => numbered(SERVER_TIME, sequence),
        (Time::Fixed(unix_us), Some(sequence)) => numbered(unix_us, sequence),
    }
}

fn numbered(unix_us: u64, Sequence(number): Sequence) -> Vec<u8> {
    [unix_us.to_le_bytes(), number.to_le_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_name_is_the_hash_of_its_text() {
        assert_eq!(sha1().len(), 40);
        assert!(sha1().bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_eq!(sha1(), sha1());
    }

    #[test]
    fn only_what_is_said_travels() {
        assert_eq!(header(Time::Server, None), b"");
        assert_eq!(header(Time::Fixed(258), None), [2, 1, 0, 0, 0, 0, 0, 0]);
        let numbered = header(Time::Server, Some(Sequence(3)));
        assert_eq!(numbered, [[255; 8], [3, 0, 0, 0, 0, 0, 0, 0]].concat());
        assert_eq!(header(Time::Fixed(258), Some(Sequence(3)))[..8], [2, 1, 0, 0, 0, 0, 0, 0]);
    }
}
