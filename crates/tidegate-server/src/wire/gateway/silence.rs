//! A bound on silence: between two pieces of a body, whoever sends them.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// A timer that is made only once something has to be waited for.
pub(super) struct Silence {
    bound: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    running: bool,
}

impl Silence {
    pub(super) fn of(bound: Duration) -> Self {
        Self { bound, timer: None, running: false }
    }

    /// Something came.
    pub(super) fn end(&mut self) {
        self.running = false;
    }

    /// Nothing has come: ready once that has been so for too long.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.bound)));
        if !std::mem::replace(&mut self.running, true) {
            timer.as_mut().reset(Instant::now() + self.bound);
        }
        timer.as_mut().poll(context)
    }
}
