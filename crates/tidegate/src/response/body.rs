//! Bodies of refusals: any JSON value, with placeholders in its strings.

use std::borrow::Cow;
use std::fmt::Write as _;

use jiff::Timestamp;

use super::reset_unix_seconds;
use crate::decision::{Decision, LimitReport, Outcome};
use crate::text::{push_decimal, push_escaped, push_json, push_number};
use crate::units::seconds_rounded_up;

/// A body as the policy writes it, its placeholders found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// A number, `true` or `false`, as JSON.
    Literal(String),
    /// A string, in pieces.
    Text(Vec<Piece>),
    List(Vec<Body>),
    Map(Vec<(String, Body)>),
}

/// A piece of a string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Literal(String),
    Placeholder(Placeholder),
}

/// A text as a policy writes it: `{limit}` where a value stands later.
pub(crate) fn template_text(pieces: &[Piece]) -> String {
    let word = |placeholder: &Placeholder| {
        Placeholder::ALL.iter().find(|(_, known)| known == placeholder).map(|(word, _)| *word)
    };
    let piece = |piece: &Piece| match piece {
        Piece::Literal(text) => text.clone(),
        Piece::Placeholder(placeholder) => format!("{{{}}}", word(placeholder).unwrap_or_default()),
    };
    pieces.iter().map(piece).collect()
}

/// What can be filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placeholder {
    Limit,
    Remaining,
    RetryAfter,
    RetryAfterMs,
    RetryAfterDecimal,
    Reset,
    Window,
    WindowWords,
    Per,
    WindowSeconds,
    Name,
    Operation,
    Tier,
    Message,
    Status,
    Version,
}

impl Placeholder {
    /// Each with the word between its braces.
    pub(crate) const ALL: [(&'static str, Self); 16] = [
        ("limit", Self::Limit),
        ("remaining", Self::Remaining),
        ("retry_after", Self::RetryAfter),
        ("retry_after_ms", Self::RetryAfterMs),
        ("retry_after_decimal", Self::RetryAfterDecimal),
        ("reset", Self::Reset),
        ("window", Self::Window),
        ("window_words", Self::WindowWords),
        ("per", Self::Per),
        ("window_seconds", Self::WindowSeconds),
        ("name", Self::Name),
        ("operation", Self::Operation),
        ("tier", Self::Tier),
        ("message", Self::Message),
        ("status", Self::Status),
        ("version", Self::Version),
    ];

    fn named(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(name, _)| *name == word).map(|(_, placeholder)| *placeholder)
    }
}

/// Splits a string at its placeholders. Braces around anything but a word are text, and so is what
/// stands in doubled braces or behind a dollar: `{{limit}}` reads `{limit}`.
///
/// # Errors
/// The word between braces that is no placeholder.
pub(crate) fn parse_text(text: &str) -> Result<Vec<Piece>, &str> {
    let mut pieces = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('{') {
        let (before, from) = rest.split_at(start);
        literal.push_str(before);
        if let Some(word) = from.strip_prefix("{{").and_then(braced_word)
            && from[2 + word.len()..].starts_with("}}")
        {
            literal.push_str(&from[1..word.len() + 3]);
            rest = &from[word.len() + 4..];
            continue;
        }
        let after_dollar = before.ends_with('$');
        let Some(word) = braced_word(&from[1..]).filter(|_| !after_dollar) else {
            literal.push('{');
            rest = &from[1..];
            continue;
        };
        let placeholder = Placeholder::named(word).ok_or(word)?;
        if !literal.is_empty() {
            pieces.push(Piece::Literal(std::mem::take(&mut literal)));
        }
        pieces.push(Piece::Placeholder(placeholder));
        rest = &from[word.len() + 2..];
    }
    literal.push_str(rest);
    if !literal.is_empty() || pieces.is_empty() {
        pieces.push(Piece::Literal(literal));
    }
    Ok(pieces)
}

/// The word that a closing brace ends, in any spelling of a name. Looks no further than it goes.
fn braced_word(text: &str) -> Option<&str> {
    let fits = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    let length = text.bytes().take_while(fits).count();
    let (word, behind) = text.split_at(length);
    let named = word.starts_with(|first: char| first.is_ascii_alphabetic());
    (named && behind.starts_with('}')).then_some(word)
}

/// What placeholders are filled from.
pub(super) struct Values<'d> {
    pub(super) decision: &'d Decision,
    /// With jitter.
    pub(super) retry_after_us: Option<u64>,
}

impl Body {
    /// Writes the body as JSON, in the order in which it was written.
    pub(super) fn write(&self, values: &Values<'_>, out: &mut String) {
        match self {
            Self::Literal(text) => out.push_str(text),
            Self::Text(pieces) => write_text(pieces, values, out),
            Self::List(items) => {
                write_joined(out, ['[', ']'], items, |item, out| item.write(values, out));
            }
            Self::Map(entries) => write_joined(out, ['{', '}'], entries, |(key, value), out| {
                push_json(out, key);
                out.push(':');
                value.write(values, out);
            }),
        }
    }
}

fn write_joined<T>(
    out: &mut String,
    [open, close]: [char; 2],
    items: &[T],
    write: impl Fn(&T, &mut String),
) {
    out.push(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write(item, out);
    }
    out.push(close);
}

/// A string that is only one placeholder takes the value's own type.
fn write_text(pieces: &[Piece], values: &Values<'_>, out: &mut String) {
    if let [Piece::Placeholder(placeholder)] = pieces {
        match values.value(*placeholder) {
            Some(value) if value.is_number() => value.write(values, out),
            Some(value) => write_quoted(out, |out| value.write(values, out)),
            None => out.push_str("null"),
        }
        return;
    }
    write_quoted(out, |out| values.fill(pieces, out));
}

fn write_quoted(out: &mut String, write: impl FnOnce(&mut String)) {
    out.push('"');
    write(out);
    out.push('"');
}

/// What a placeholder stands for.
enum PlaceholderValue<'d> {
    Number(u64),
    /// A decimal, in millionths.
    Decimal(u64),
    Text(Cow<'d, str>),
    /// What a client reads as `{message}`.
    Message,
}

impl PlaceholderValue<'_> {
    const fn is_number(&self) -> bool {
        matches!(self, Self::Number(_) | Self::Decimal(_))
    }

    /// Writes what stands between quotes.
    fn write(&self, values: &Values<'_>, out: &mut String) {
        match self {
            Self::Number(number) => push_number(out, *number),
            Self::Decimal(micros) => push_decimal(out, *micros),
            Self::Text(text) => push_escaped(out, text),
            Self::Message => values.write_message(out),
        }
    }
}

impl<'d> Values<'d> {
    /// The value of a placeholder; `None` where the decision has none.
    fn value(&self, placeholder: Placeholder) -> Option<PlaceholderValue<'d>> {
        let decision = self.decision;
        let number = PlaceholderValue::Number;
        let text = |text: &'d str| PlaceholderValue::Text(Cow::Borrowed(text));
        let window = || self.report().and_then(|report| report.spec.window());
        match placeholder {
            Placeholder::Limit => {
                self.report().map(|report| PlaceholderValue::Decimal(report.spec.number().micros()))
            }
            Placeholder::Remaining => self.report().map(|report| number(report.remaining())),
            Placeholder::RetryAfter => {
                self.retry_after_us.map(|us| number(seconds_rounded_up(us).max(1)))
            }
            Placeholder::RetryAfterMs => self.retry_after_us.map(|us| number(us.div_ceil(1_000))),
            // Microseconds are millionths of a second.
            Placeholder::RetryAfterDecimal => self.retry_after_us.map(PlaceholderValue::Decimal),
            Placeholder::Reset => {
                self.report().and_then(|report| reset_unix_seconds(decision, report)).map(number)
            }
            Placeholder::Window => {
                window().map(|window| PlaceholderValue::Text(window.short().into()))
            }
            Placeholder::WindowWords => {
                window().map(|window| PlaceholderValue::Text(window.words().into()))
            }
            Placeholder::Per => window().map(|window| PlaceholderValue::Text(window.per().into())),
            Placeholder::WindowSeconds => self
                .report()
                .and_then(|report| report.spec.window_us())
                .map(|us| number(seconds_rounded_up(us))),
            Placeholder::Name => decision.limit_name().map(text),
            Placeholder::Operation => Some(text(decision.operation())),
            Placeholder::Tier => Some(text(decision.tier())),
            Placeholder::Message => Some(PlaceholderValue::Message),
            Placeholder::Status => Some(number(u64::from(decision.status()))),
            Placeholder::Version => decision.policy().version().map(text),
        }
    }

    /// Writes what a client reads as `{message}`: the limit's own, or the policy's. No message holds
    /// itself: compiling refuses that.
    fn write_message(&self, out: &mut String) {
        self.fill(self.own_message().unwrap_or(&self.decision.policy().response.message), out);
    }

    /// What the limit that is named says itself.
    fn own_message(&self) -> Option<&'d Vec<Piece>> {
        let limit = self.report().and_then(|report| self.decision.limit_of(report));
        limit.and_then(|limit| limit.refusal.message.as_ref())
    }

    /// Writes a text with its placeholders filled, for between quotes; those that have no value
    /// leave nothing.
    fn fill(&self, pieces: &[Piece], out: &mut String) {
        for piece in pieces {
            match piece {
                Piece::Literal(literal) => push_escaped(out, literal),
                Piece::Placeholder(placeholder) => {
                    if let Some(value) = self.value(*placeholder) {
                        value.write(self, out);
                    }
                }
            }
        }
    }

    fn report(&self) -> Option<&'d LimitReport> {
        self.decision.limit()
    }
}

/// RFC 9457, for policies that write no body of their own.
pub(super) fn write_problem_details(values: &Values<'_>, out: &mut String) {
    let decision = values.decision;
    out.push_str("{\"type\":\"about:blank\"");
    if let Some(title) = title(decision.status()) {
        out.push_str(",\"title\":");
        push_json(out, title);
    }
    out.push_str(",\"status\":");
    push_number(out, u64::from(decision.status()));
    out.push_str(",\"detail\":\"");
    match decision.outcome {
        Outcome::Blocked => out.push_str("This address is blocked"),
        Outcome::Banned => write_banned(decision, out),
        Outcome::Challenged if values.own_message().is_none() => {
            out.push_str("A challenge must be solved first");
        }
        _ => values.write_message(out),
    }
    out.push('"');
    if let Some(name) = decision.limit_name() {
        out.push_str(",\"limit\":");
        push_json(out, name);
    }
    if let Some(us) = values.retry_after_us {
        out.push_str(",\"retryAfter\":");
        push_number(out, seconds_rounded_up(us).max(1));
    }
    out.push('}');
}

/// That a client is banned, and until when, where that ends by itself.
fn write_banned(decision: &Decision, out: &mut String) {
    out.push_str("This client is banned");
    let until_us = decision.ban().and_then(|ban| ban.until_unix_us);
    let until = until_us.and_then(|us| i64::try_from(seconds_rounded_up(us)).ok());
    if let Some(until) = until.and_then(|seconds| Timestamp::from_second(seconds).ok()) {
        // Writing to a String cannot fail.
        let _ = write!(out, " until {until}");
    }
}

/// What HTTP calls a status, for those that a policy is likely to refuse with.
fn title(status: u16) -> Option<&'static str> {
    Some(match status {
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        409 => "Conflict",
        423 => "Locked",
        429 => "Too Many Requests",
        503 => "Service Unavailable",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_found_and_other_braces_are_text() {
        let pieces = parse_text("of {limit} {x per {per}}").unwrap();
        assert_eq!(
            pieces,
            [
                Piece::Literal("of ".into()),
                Piece::Placeholder(Placeholder::Limit),
                Piece::Literal(" {x per ".into()),
                Piece::Placeholder(Placeholder::Per),
                Piece::Literal("}".into()),
            ]
        );
        assert_eq!(parse_text("{limt}"), Err("limt"));
        assert_eq!(parse_text("{retryAfter}"), Err("retryAfter"));
        assert_eq!(parse_text("a {{limit}} b").unwrap(), [Piece::Literal("a {limit} b".into())]);
        assert_eq!(parse_text("").unwrap(), [Piece::Literal(String::new())]);
        assert_eq!(parse_text("{").unwrap(), [Piece::Literal("{".into())]);
    }

    #[test]
    fn a_mebibyte_of_open_braces_is_read_in_one_pass() {
        let braces = "{".repeat(1 << 20);
        assert_eq!(parse_text(&braces).unwrap(), [Piece::Literal(braces.clone())]);
    }
}
