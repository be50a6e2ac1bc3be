//! Bodies of refusals and messages: any JSON value, with placeholders in its strings.

use std::borrow::Cow;

use super::headers::reset_unix_seconds;
use crate::decision::{Decision, LimitReport};
use crate::text::{push_decimal, push_escaped, push_json, push_number};
use crate::units::seconds_rounded_up;

/// A body as the policy writes it, its placeholders found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body<P = Placeholder> {
    /// A number, `true` or `false`, as JSON.
    Literal(String),
    /// A string, in pieces.
    Text(Vec<Piece<P>>),
    List(Vec<Body<P>>),
    Map(Vec<(String, Body<P>)>),
}

/// A piece of a string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece<P = Placeholder> {
    Literal(String),
    Placeholder(P),
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

    pub(crate) fn named(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(name, _)| *name == word).map(|(_, placeholder)| *placeholder)
    }
}

/// Splits a string at its placeholders. Braces around anything but a word are text, and so is what
/// stands in doubled braces or behind a dollar: `{{limit}}` reads `{limit}`.
///
/// # Errors
/// The word between braces that is no placeholder.
pub(crate) fn parse_text<P>(
    text: &str,
    named: impl Fn(&str) -> Option<P>,
) -> Result<Vec<Piece<P>>, &str> {
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
        let placeholder = named(word).ok_or(word)?;
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

/// The values of placeholders.
pub(crate) trait Fill<P> {
    /// Writes a value as JSON, in its own type.
    fn write_value(&self, placeholder: &P, out: &mut String);

    /// Writes a value as a part of a string, escaped; nothing if there is none.
    fn write_within(&self, placeholder: &P, out: &mut String);
}

impl<P> Body<P> {
    /// Writes the body as JSON, in the order in which it was written.
    pub(crate) fn write(&self, values: &impl Fill<P>, out: &mut String) {
        match self {
            Self::Literal(text) => out.push_str(text),
            // A string that is only one placeholder takes the value's own type.
            Self::Text(pieces) => match &pieces[..] {
                [Piece::Placeholder(placeholder)] => values.write_value(placeholder, out),
                pieces => write_quoted(out, |out| fill(pieces, values, out)),
            },
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

/// Writes a text with its placeholders filled, for between quotes.
fn fill<P>(pieces: &[Piece<P>], values: &impl Fill<P>, out: &mut String) {
    for piece in pieces {
        match piece {
            Piece::Literal(literal) => push_escaped(out, literal),
            Piece::Placeholder(placeholder) => values.write_within(placeholder, out),
        }
    }
}

impl Fill<Placeholder> for Values<'_> {
    fn write_value(&self, placeholder: &Placeholder, out: &mut String) {
        match self.value(*placeholder) {
            Some(value) if value.is_number() => value.write(self, out),
            Some(value) => write_quoted(out, |out| value.write(self, out)),
            None => out.push_str("null"),
        }
    }

    fn write_within(&self, placeholder: &Placeholder, out: &mut String) {
        if let Some(value) = self.value(*placeholder) {
            value.write(self, out);
        }
    }
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
    pub(super) fn write_message(&self, out: &mut String) {
        let message = self.own_message().unwrap_or(&self.decision.policy().response.message);
        fill(message, self, out);
    }

    /// What the limit that is named says itself.
    pub(super) fn own_message(&self) -> Option<&'d Vec<Piece>> {
        let limit = self.report().and_then(|report| self.decision.limit_of(report));
        limit.and_then(|limit| limit.refusal.message.as_ref())
    }

    fn report(&self) -> Option<&'d LimitReport> {
        self.decision.limit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_text(text: &str) -> Result<Vec<Piece>, &str> {
        super::parse_text(text, Placeholder::named)
    }

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
