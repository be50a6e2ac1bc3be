//! The identity of a client comes from trusted proxies, never from the client itself.

mod forwarding;
mod headers;

use std::io::Write as _;

use crate::support::{Answer, Daemon, Upstream};

/// A gateway that counts by address, and an upstream that records requests.
struct World {
    daemon: Daemon,
    upstream: Upstream,
}

impl World {
    fn new(identity: &str) -> Self {
        let policy = format!(
            "tidegate: 1\nname: live\nidentity: {identity}\nlimits: {{ each: {{ by: client, total: 1000 }} }}\n"
        );
        Self::of(&policy)
    }

    fn of(policy: &str) -> Self {
        let upstream = Upstream::start();
        Self { daemon: Daemon::with_policy(policy, Some(&upstream)), upstream }
    }

    /// Sends a request with exactly these header lines.
    fn send(&self, lines: &[&[u8]]) -> Answer {
        let mut bytes = b"GET /a HTTP/1.1\r\nHost: shop.example\r\n".to_vec();
        for line in lines {
            bytes.extend_from_slice(line);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"\r\n");
        let mut connection = self.daemon.gateway().connect();
        connection.socket.write_all(&bytes).unwrap();
        connection.answer()
    }

    /// What remains for a client with these lines, after this request.
    fn remaining(&self, lines: &[&[u8]]) -> u64 {
        let answer = self.send(lines);
        let shown = || panic!("{answer:?}");
        answer.header("x-ratelimit-remaining").unwrap_or_else(shown).parse().unwrap()
    }

    /// Checks that the two are one client: both spend from one count.
    fn assert_same(&self, lines: &[&[u8]], plain: &[&[u8]]) {
        let before = self.remaining(plain);
        let text: Vec<_> = lines.iter().map(|line| String::from_utf8_lossy(line)).collect();
        assert_eq!(self.remaining(lines), before - 1, "{text:?}");
    }
}
