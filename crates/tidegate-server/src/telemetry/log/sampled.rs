//! Log lines of other crates, which a client may cause as often as it likes: one a second from each place.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tidegate::clock::{Clock as _, SystemClock};
use tracing::Metadata;
use tracing::callsite::Identifier;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::writer::OptionalWriter;

use super::queue::Queue;
use super::throttle::LogThrottle;

/// What our own events begin their target with.
pub(super) const OWN: &str = "tidegate";

/// Writes to the queue what passes.
pub(super) struct SampledWriter {
    queue: Queue,
    clock: SystemClock,
    /// As many as there are places in the program that log.
    throttles: Mutex<HashMap<Identifier, LogThrottle>>,
}

impl SampledWriter {
    pub(super) fn new(queue: Queue) -> Self {
        Self { queue, clock: SystemClock::new(), throttles: Mutex::default() }
    }

    fn passes(&self, metadata: &Metadata<'_>) -> bool {
        if metadata.target().starts_with(OWN) {
            return true;
        }
        let mut throttles = self.throttles.lock().unwrap_or_else(PoisonError::into_inner);
        let throttle = throttles.entry(metadata.callsite()).or_default();
        throttle.pass(self.clock.now().steady_us).is_some()
    }
}

impl<'w> MakeWriter<'w> for SampledWriter {
    type Writer = OptionalWriter<Queue>;

    fn make_writer(&'w self) -> Self::Writer {
        OptionalWriter::some(self.queue.clone())
    }

    fn make_writer_for(&'w self, metadata: &Metadata<'_>) -> Self::Writer {
        match self.passes(metadata) {
            true => self.make_writer(),
            false => OptionalWriter::none(),
        }
    }
}
