//! Draining: once a signal has come, nothing new is accepted, and accepted requests are finished.

use std::io;
use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// Says that the daemon is about to end. Clones share it.
#[derive(Clone)]
pub(crate) struct Drain {
    started: Arc<watch::Sender<bool>>,
}

impl Drain {
    pub(crate) fn new() -> Self {
        Self { started: Arc::new(watch::Sender::new(false)) }
    }

    pub(crate) fn start(&self) {
        self.started.send_replace(true);
    }

    pub(crate) fn has_started(&self) -> bool {
        *self.started.borrow()
    }

    /// Waits until the drain starts.
    pub(crate) async fn started(&self) {
        // It fails only when the sender is gone, and we hold it.
        let _ = self.started.subscribe().wait_for(|started| *started).await;
    }
}

/// SIGTERM and SIGINT, which start a drain.
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub(crate) fn new() -> io::Result<Self> {
        let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
        Ok(Self { terminate: signal(terminate)?, interrupt: signal(interrupt)? })
    }

    /// Waits for one of them.
    pub(crate) async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
