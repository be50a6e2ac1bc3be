//! Draining: from the signal on nothing new is accepted, and what was accepted is finished.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

/// Says that the daemon is about to end. Clones share it.
#[derive(Clone)]
pub(crate) struct Drain {
    shared: Arc<Shared>,
}

struct Shared {
    started: AtomicBool,
    signal: watch::Sender<bool>,
}

impl Drain {
    pub(crate) fn new() -> Self {
        let (signal, _) = watch::channel(false);
        Self { shared: Arc::new(Shared { started: AtomicBool::new(false), signal }) }
    }

    pub(crate) fn start(&self) {
        self.shared.started.store(true, Ordering::Relaxed);
        self.shared.signal.send_replace(true);
    }

    /// Whether it has begun; cheap enough for every request.
    pub(crate) fn has_started(&self) -> bool {
        self.shared.started.load(Ordering::Relaxed)
    }

    /// Waits until it begins.
    pub(crate) async fn started(&self) {
        let mut receiver = self.shared.signal.subscribe();
        // It fails only when the sender is gone, and we hold it.
        let _ = receiver.wait_for(|started| *started).await;
    }
}
