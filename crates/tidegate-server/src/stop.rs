//! The signals that end the daemon.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for SIGTERM and SIGINT.
pub(crate) struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    pub(crate) fn new() -> io::Result<Self> {
        let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
        Ok(Self { terminate: signal(terminate)?, interrupt: signal(interrupt)? })
    }

    /// Waits for one of them.
    pub(crate) async fn told(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
