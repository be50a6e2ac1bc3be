//! Draining: a signal announces it, so that load balancers look elsewhere; once it starts, nothing new is
//! accepted, and accepted requests are finished.

use std::io;
use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// Says that the daemon is about to end. Clones share it.
#[derive(Clone)]
pub(crate) struct Drain {
    phase: Arc<watch::Sender<Phase>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serving,
    Announced,
    Started,
}

impl Drain {
    pub(crate) fn new() -> Self {
        Self { phase: Arc::new(watch::Sender::new(Phase::Serving)) }
    }

    /// Says that the drain will start. Everything is still accepted.
    pub(crate) fn announce(&self) {
        self.phase.send_modify(|phase| *phase = Phase::Announced.max(*phase));
    }

    pub(crate) fn start(&self) {
        self.phase.send_replace(Phase::Started);
    }

    /// True if the drain is announced or has started.
    pub(crate) fn is_announced(&self) -> bool {
        *self.phase.borrow() >= Phase::Announced
    }

    pub(crate) fn has_started(&self) -> bool {
        *self.phase.borrow() == Phase::Started
    }

    /// Waits until the drain starts.
    pub(crate) async fn started(&self) {
        // It fails only when the sender is gone, and we hold it.
        let _ = self.phase.subscribe().wait_for(|phase| *phase == Phase::Started).await;
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
