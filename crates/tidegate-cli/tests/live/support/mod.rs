//! A daemon, an upstream and a client, all on free ports of loopback.

pub(crate) mod browser;
pub(crate) mod client;
pub(crate) mod contract;
pub(crate) mod daemon;
pub(crate) mod service;
pub(crate) mod upstream;

pub(crate) use client::{Answer, Client, Connection};
pub(crate) use contract::Contract;
pub(crate) use daemon::Daemon;
pub(crate) use service::Service;
pub(crate) use upstream::{Reply, Upstream};

use std::path::Path;
use std::time::{Duration, Instant};

/// Waits for a condition, and fails if it does not come within twenty seconds.
pub(crate) fn eventually(what: &str, condition: impl FnMut() -> bool) {
    eventually_within(Duration::from_secs(20), what, condition);
}

pub(crate) fn eventually_within(bound: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let started = now();
    while !condition() {
        assert!(started.elapsed() < bound, "{what} did not come within {bound:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[allow(clippy::disallowed_methods, reason = "a test waits in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Makes a pipe with a name, which nobody writes to.
pub(crate) fn make_fifo(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}
