//! The log line of one decision.

use std::fmt::{self, Display, Write as _};

use jiff::Timestamp;
use tidegate::Decision;
use tidegate::engine::LogIdentity;

use super::LogFormat;
use crate::telemetry::request_id::RequestId;
use crate::wire::json::millis_up;

/// The longest text from a client in a line, in characters.
const TEXT_MAX: usize = 128;

/// A decision, and the identity that it was about.
pub(super) struct Record<'d> {
    pub(super) decision: &'d Decision,
    pub(super) subject: &'d LogIdentity,
    pub(super) request_id: &'d RequestId,
}

impl Record<'_> {
    /// The line: a JSON object, or time, level and message with `name=value` pairs behind them. Both have
    /// the same fields and JSON values, so that no text can pass for another field or line.
    pub(super) fn line(&self, format: LogFormat) -> String {
        let (decision, named) = (self.decision, self.decision.limit());
        let mut line = Line::start(format, decision);
        let limit = named.and_then(|report| decision.limit_of(report));
        let spec = named.map(|report| report.spec);
        let used = named.map(|report| report.spec.capacity().saturating_sub(report.available));
        line.text("event", Some(decision.outcome.name()));
        line.text("operation", Some(decision.operation()));
        line.text("limit", limit.map(|limit| limit.name()));
        line.text("algorithm", limit.map(|limit| limit.algorithm().name()));
        line.text("tier", Some(decision.tier()));
        line.field("quota", spec.map(|spec| spec.number()));
        line.field("window_ms", spec.and_then(|spec| spec.window_us()).map(ms));
        line.field("used", used);
        line.field("retry_after_ms", retry_after_us(decision).map(ms));
        line.field("reset_ms", named.and_then(|report| report.reset_after()).map(millis_up));
        line.field("status", Some(decision.status()));
        line.text("user", self.subject.user.as_deref());
        line.text("ip", self.subject.address.as_deref());
        line.text("key", self.subject.key.as_deref());
        line.text("request_id", Some(&self.request_id.to_string()));
        line.end()
    }
}

/// A time in the notation of the log.
pub(crate) fn timestamp(unix_us: u64) -> String {
    let us = i64::try_from(unix_us).unwrap_or(i64::MAX);
    Timestamp::from_microsecond(us).map_or_else(|_| String::new(), |moment| format!("{moment:.6}"))
}

fn retry_after_us(decision: &Decision) -> Option<u64> {
    decision.retry_after().and_then(|wait| u64::try_from(wait.as_micros()).ok())
}

/// Milliseconds, rounded up as waits are.
fn ms(us: u64) -> u64 {
    us.div_ceil(1_000)
}

struct Line {
    text: String,
    format: LogFormat,
}

impl Line {
    fn start(format: LogFormat, decision: &Decision) -> Self {
        let mut line = Self { text: String::with_capacity(512), format };
        let time = timestamp(decision.now.unix_us);
        match (format, decision.is_allowed()) {
            (LogFormat::Json, _) => line.write(format_args!("{{\"timestamp\":\"{time}\"")),
            (LogFormat::Text, true) => line.write(format_args!("{time} DEBUG passed")),
            (LogFormat::Text, false) => line.write(format_args!("{time}  INFO refused")),
        }
        line
    }

    fn text(&mut self, name: &str, value: Option<&str>) {
        self.field(name, value.map(Quoted));
    }

    fn field(&mut self, name: &str, value: Option<impl Display>) {
        self.name(name);
        match value {
            Some(value) => self.write(format_args!("{value}")),
            None => self.text.push_str("null"),
        }
    }

    fn name(&mut self, name: &str) {
        match self.format {
            LogFormat::Json => self.write(format_args!(",\"{name}\":")),
            LogFormat::Text => self.write(format_args!(" {name}=")),
        }
    }

    fn end(mut self) -> String {
        self.text.push_str(if self.format == LogFormat::Json { "}\n" } else { "\n" });
        self.text
    }

    fn write(&mut self, arguments: fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.text.write_fmt(arguments);
    }
}

/// A JSON string of bounded length, without anything that a terminal would obey.
struct Quoted<'t>(&'t str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for (place, character) in self.0.chars().enumerate() {
            match character {
                _ if place == TEXT_MAX => {
                    f.write_char('…')?;
                    break;
                }
                '"' | '\\' => write!(f, "\\{character}")?,
                // Also characters that change the direction of text, or end a line for some readers.
                control if control.is_control() || is_invisible(control) => {
                    write!(f, "\\u{:04x}", u32::from(control))?;
                }
                other => f.write_char(other)?,
            }
        }
        f.write_char('"')
    }
}

fn is_invisible(character: char) -> bool {
    matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_leave_its_quotes_or_its_line() {
        let text = "a\"\\\n\r\u{1b}[31m\u{9b}\u{202e}\u{2028}ü";
        let shown = Quoted(text).to_string();
        assert_eq!(shown, r#""a\"\\\u000a\u000d\u001b[31m\u009b\u202e\u2028ü""#);
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
    }

    #[test]
    fn text_is_bounded() {
        assert_eq!(Quoted(&"é".repeat(9_999)).to_string().chars().count(), TEXT_MAX + 3);
        assert_eq!(Quoted(&"é".repeat(TEXT_MAX)).to_string().chars().count(), TEXT_MAX + 2);
    }

    #[test]
    fn a_moment_reads_as_rfc_3339() {
        assert_eq!(timestamp(1_767_603_600_000_001), "2026-01-05T09:00:00.000001Z");
    }
}
