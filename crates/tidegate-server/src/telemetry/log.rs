//! Logs, on standard error: events of the daemon by `tracing`, and one line for each refusal.
//!
//! A refusal is a JSON object with exactly the documented fields, so it does not go through
//! `tracing`, which adds its own; both share one queue that nobody waits for.

mod queue;
mod record;
mod sparingly;

use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::Arc;

use tidegate::clock::Clock;
use tidegate::store::StoreError;
use tidegate::{Context, Decision, IdentityFormat};
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{Layer as _, Registry};

pub(crate) use queue::Flush;

use super::request_id::RequestId;
use crate::engine::Engine;
use queue::Queue;
use record::Record;
pub(crate) use record::timestamp;
pub(crate) use sparingly::Sparingly;

/// How lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// What is logged, and how.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// `--log`.
    pub format: Format,
    /// `--log-level`: refusals are logged from `info` on, allowed requests from `debug` on.
    pub level: LevelFilter,
    /// `--log-identities`.
    pub identities: IdentityFormat,
}

impl Default for Settings {
    fn default() -> Self {
        let (level, identities) = (LevelFilter::INFO, IdentityFormat::Hashed);
        Self { format: Format::Text, level, identities }
    }
}

/// The log. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    queue: Queue,
    settings: Settings,
    /// A lost store fails every decision, which is one thing to be told.
    failures: Arc<Sparingly>,
}

impl Log {
    /// Starts the log; what is left is written when the second value is dropped.
    ///
    /// # Errors
    /// The thread that writes cannot be started.
    pub(crate) fn start(
        settings: Settings,
        out: impl Write + Send + 'static,
        clock: impl Clock + Clone,
    ) -> io::Result<(Self, Flush)> {
        let dated = clock.clone();
        let report = move |dropped| dropped_line(settings.format, dated.now().unix_us, dropped);
        let (queue, flush) = Queue::start(out, clock, report)?;
        Ok((Self { queue, settings, failures: Arc::default() }, flush))
    }

    /// What takes the events of `tracing`; other crates' are logged from `warn` on at most.
    #[must_use]
    pub(crate) fn subscriber(&self) -> impl Subscriber + Send + Sync + use<> {
        let level = self.settings.level;
        let others = level.min(LevelFilter::WARN);
        let filter = Targets::new().with_default(others).with_target("tidegate", level);
        let format = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(self.clone());
        let layer = match self.settings.format {
            Format::Text => format.boxed(),
            Format::Json => format.json().flatten_event(true).boxed(),
        };
        Registry::default().with(layer.with_filter(filter))
    }

    /// How identities are told.
    pub(crate) const fn identities(&self) -> IdentityFormat {
        self.settings.identities
    }

    /// Whether anything is written of a decision.
    #[must_use]
    pub(crate) fn wants(&self, decision: &Decision) -> bool {
        let level = if decision.is_allowed() { LevelFilter::DEBUG } else { LevelFilter::INFO };
        level <= self.settings.level || decision.store_error.is_some()
    }

    /// Logs a decision: a refusal at `info`, what passes at `debug`, a store that could not answer
    /// at `error`. Who it was about is worked out only for a line that is written.
    #[inline(never)]
    pub(crate) fn decision(
        &self,
        engine: &Engine,
        decision: &Decision,
        context: &Context<'_>,
        request_id: &RequestId,
    ) {
        if let Some(error) = &decision.store_error {
            self.store_failed(error, decision.now.steady_us);
        }
        let level = if decision.is_allowed() { LevelFilter::DEBUG } else { LevelFilter::INFO };
        if level > self.settings.level {
            return;
        }
        if !self.queue.has_room() {
            return self.queue.drop_line();
        }
        let subject = engine.log_identity(context, decision, self.settings.identities);
        let record = Record { decision, subject: &subject, request_id };
        self.queue.push(record.line(self.settings.format).as_bytes());
    }

    /// Tells of a decision that was made without the store, and of those before that were not told of.
    fn store_failed(&self, error: &StoreError, now_us: u64) {
        if let Some(more) = self.failures.take(now_us) {
            let (transient, consequence) = (error.transient, "decided without it");
            tracing::error!(event = "store_failed", transient, consequence, more, "{error}");
        }
    }
}

/// Logs a store that could not answer, and what follows.
pub(crate) fn store_failed(error: &StoreError, consequence: &str) {
    let transient = error.transient;
    tracing::error!(event = "store_failed", transient, consequence, "{error}");
}

/// How many lines were dropped, as a line.
fn dropped_line(format: Format, unix_us: u64, dropped: u64) -> String {
    let timestamp = record::timestamp(unix_us);
    match format {
        Format::Json => format!(
            "{{\"timestamp\":\"{timestamp}\",\"level\":\"WARN\",\"event\":\"log_dropped\",\
             \"dropped\":{dropped}}}\n"
        ),
        Format::Text => {
            let message = "log lines dropped, nobody took them";
            format!("{timestamp}  WARN {message} event=\"log_dropped\" dropped={dropped}\n")
        }
    }
}

impl<'w> MakeWriter<'w> for Log {
    type Writer = EventWriter<'w>;

    fn make_writer(&'w self) -> Self::Writer {
        EventWriter(&self.queue)
    }
}

/// Takes one event, which `tracing` writes whole.
#[derive(Debug)]
pub(crate) struct EventWriter<'w>(&'w Queue);

impl Write for EventWriter<'_> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.0.push(one_line(&String::from_utf8_lossy(event)).as_bytes());
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An event stays on one line, whatever texts are in it.
fn one_line(event: &str) -> String {
    let body = event.strip_suffix('\n').unwrap_or(event);
    let mut line = String::with_capacity(event.len());
    for character in body.chars() {
        if character.is_control() {
            // As JSON does, which leaves some of them as they are. Writing to a String cannot fail.
            let _ = write!(line, "\\u{:04x}", u32::from(character));
        } else {
            line.push(character);
        }
    }
    line.push('\n');
    line
}

#[cfg(test)]
#[path = "log/tests.rs"]
mod tests;
