//! The log on standard error: events of the daemon by `tracing`, and one line for each refusal.
//!
//! A refusal is a JSON object with exactly the documented fields. It does not go through `tracing`,
//! which adds its own fields. Both share one queue, and no request waits for it.

mod queue;
mod record;
mod sampled;
mod throttle;

use std::fmt::{Display, Write as _};
use std::io::{self, Write};
use std::sync::Arc;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use tidegate::clock::Clock;
use tidegate::engine::{Context, IdentityFormat};
use tidegate::{Decision, StoreError, Unreadable};
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{Layer as _, Registry};

pub(crate) use queue::Flush;

use super::metrics::{TokenFailure, UpstreamFailure};
use super::request_id::RequestId;
use crate::config::LOGS;
use crate::engine::Engine;
use queue::Queue;
use record::Record;
pub(crate) use record::timestamp;
use sampled::SampledWriter;
pub(crate) use throttle::LogThrottle;

/// The form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// The log's configuration.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct LogSettings {
    /// How logs are written, to standard error
    #[arg(long = "log", value_name = "FORMAT", env = "TIDEGATE_LOG", default_value = "text", help_heading = LOGS)]
    pub(crate) format: LogFormat,
    /// How much is logged; allowed requests at debug
    #[arg(long = "log-level", value_name = "LEVEL", env = "TIDEGATE_LOG_LEVEL", default_value = "info", value_parser = level_parser(), help_heading = LOGS)]
    pub(crate) level: LevelFilter,
    /// Log users and addresses themselves instead of keyed hashes
    #[arg(long = "log-identities", env = "TIDEGATE_LOG_IDENTITIES", help_heading = LOGS)]
    pub(crate) identities: bool,
}

fn level_parser() -> impl TypedValueParser<Value = LevelFilter> {
    let levels = PossibleValuesParser::new(["error", "warn", "info", "debug", "trace"]);
    levels.try_map(|level| level.parse::<LevelFilter>())
}

#[cfg(test)]
impl Default for LogSettings {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: LevelFilter::INFO, identities: false }
    }
}

/// The log. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    queue: Queue,
    settings: LogSettings,
    throttles: Arc<Throttles>,
}

/// What every request may cause: one log line a second of each kind is enough.
#[derive(Debug, Default)]
struct Throttles {
    store: LogThrottle,
    token: [LogThrottle; TokenFailure::NAMES.len()],
    upstream: [LogThrottle; UpstreamFailure::NAMES.len()],
    unreadable: [LogThrottle; Unreadable::ALL.len()],
}

impl Log {
    /// Starts the log. Dropping the second value writes the rest.
    ///
    /// # Errors
    /// The thread that writes cannot be started.
    pub(crate) fn start(
        settings: LogSettings,
        out: impl Write + Send + 'static,
        clock: impl Clock + Clone,
    ) -> io::Result<(Self, Flush)> {
        let now = clock.clone();
        let report = move |dropped| dropped_line(settings.format, now.now().unix_us, dropped);
        let (queue, flush) = Queue::start(out, clock, report)?;
        Ok((Self { queue, settings, throttles: Arc::default() }, flush))
    }

    /// The subscriber of `tracing`. Events of other crates are logged from `warn` on at most, and sampled.
    #[must_use]
    pub(crate) fn subscriber(&self) -> impl Subscriber + Send + Sync + use<> {
        let level = self.settings.level;
        let others = level.min(LevelFilter::WARN);
        let filter = Targets::new().with_default(others).with_target(sampled::OWN, level);
        let writer = SampledWriter::new(self.queue.clone());
        let format = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(writer);
        let layer = match self.settings.format {
            // The form of a decision's line too: time, level, message, `name=value`.
            LogFormat::Text => format.with_target(false).boxed(),
            LogFormat::Json => format.json().flatten_event(true).boxed(),
        };
        Registry::default().with(layer.with_filter(filter))
    }

    /// How identities are written.
    pub(crate) const fn identities(&self) -> IdentityFormat {
        if self.settings.identities { IdentityFormat::Plain } else { IdentityFormat::Hashed }
    }

    /// True if a decision is logged.
    #[must_use]
    pub(crate) fn wants(&self, decision: &Decision) -> bool {
        let level = if decision.is_allowed() { LevelFilter::DEBUG } else { LevelFilter::INFO };
        level <= self.settings.level || decision.store_error.is_some()
    }

    /// Logs a decision: a refusal at `info`, an allowed request at `debug`, a lost store at `error`. The
    /// identity is computed only for a line that is written.
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
        let subject = engine.log_identity(context, decision, self.identities());
        let record = Record { decision, subject: &subject, request_id };
        self.queue.push(record.line(self.settings.format).as_bytes());
    }

    /// Logs an attribute that could not be read, and the number of those that were not logged before.
    pub(crate) fn unreadable(
        &self,
        (attribute, why): (&str, Unreadable),
        request_id: impl Fn() -> RequestId,
        now_us: u64,
    ) {
        if let Some(more) = self.throttles.unreadable[why as usize].pass(now_us) {
            let (reason, request_id) = (why.name(), request_id());
            let message = format_args!("cannot be read: {why}");
            tracing::info!(event = "unreadable", attribute, reason, %request_id, more, "{message}");
        }
    }

    /// Logs a decision without the store, and the number of those that were not logged before.
    fn store_failed(&self, error: &StoreError, now_us: u64) {
        if let Some(more) = self.throttles.store.pass(now_us) {
            let (transient, consequence) = (error.transient, "decided without it");
            tracing::error!(event = "store_failed", transient, consequence, more, "{error}");
        }
    }

    /// Logs a bearer token that does not verify: its request has no identity.
    pub(crate) fn token_failed(&self, failure: TokenFailure, now_us: u64) {
        if let Some(more) = self.throttles.token[failure as usize].pass(now_us) {
            let reason = failure.name();
            tracing::warn!(event = "token_refused", reason, more, "a bearer token does not verify");
        }
    }

    /// Logs an upstream that did not answer.
    pub(crate) fn upstream_failed(
        &self,
        failure: UpstreamFailure,
        detail: &dyn Display,
        now_us: u64,
    ) {
        let Some(more) = self.throttles.upstream[failure as usize].pass(now_us) else { return };
        match failure {
            UpstreamFailure::Unreachable => {
                tracing::warn!(event = "upstream_unreachable", more, "{detail}");
            }
            UpstreamFailure::Crowded => {
                tracing::warn!(event = "upstream_crowded", more, "{detail}");
            }
            UpstreamFailure::Broken => tracing::warn!(event = "upstream_broken", more, "{detail}"),
            UpstreamFailure::TimedOut => {
                tracing::warn!(event = "upstream_timed_out", more, "{detail}");
            }
        }
    }
}

/// Logs a store that could not answer, and the consequence.
pub(crate) fn store_failed(error: &StoreError, consequence: &str) {
    let transient = error.transient;
    tracing::error!(event = "store_failed", transient, consequence, "{error}");
}

/// The line about dropped lines.
fn dropped_line(format: LogFormat, unix_us: u64, dropped: u64) -> String {
    let timestamp = record::timestamp(unix_us);
    match format {
        LogFormat::Json => format!(
            "{{\"timestamp\":\"{timestamp}\",\"level\":\"WARN\",\"event\":\"log_dropped\",\
             \"dropped\":{dropped}}}\n"
        ),
        LogFormat::Text => {
            let message = "log lines dropped, nobody took them";
            format!("{timestamp}  WARN {message} event=\"log_dropped\" dropped={dropped}\n")
        }
    }
}

impl Write for Queue {
    /// Takes one event, which `tracing` writes whole.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.push(one_line(&String::from_utf8_lossy(event)).as_bytes());
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Escapes control characters, so that an event stays on one line.
fn one_line(event: &str) -> String {
    let body = event.strip_suffix('\n').unwrap_or(event);
    let mut line = String::with_capacity(event.len());
    for character in body.chars() {
        if character.is_control() {
            // In the notation of JSON. Writing to a String cannot fail.
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
