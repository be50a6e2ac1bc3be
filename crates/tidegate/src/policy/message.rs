//! The body of a webhook's messages, as a policy writes it: a chat's or a bot's JSON.

use std::borrow::Cow;

use crate::response::{Body, Fill};
use crate::text::{push_escaped, push_json, push_number};

/// A JSON value with placeholders in its strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageTemplate(pub(crate) Body<String>);

/// The value of a placeholder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageValue<'v> {
    /// A number.
    Number(u64),
    /// Text.
    Text(Cow<'v, str>),
}

impl MessageTemplate {
    /// The placeholders of every message. A part of its key is one too: `{user}`.
    pub const WORDS: [&'static str; 9] =
        ["id", "event", "policy", "penalty", "subject", "action", "count", "until", "timestamp"];

    /// The message. A placeholder without a value is null where it stands alone, and nothing in a text.
    pub fn fill<'v>(&self, value: impl Fn(&str) -> Option<MessageValue<'v>>) -> String {
        let mut json = String::new();
        self.0.write(&Lookup(value), &mut json);
        json
    }
}

/// The values of words, by a function.
struct Lookup<F>(F);

impl<'v, F: Fn(&str) -> Option<MessageValue<'v>>> Fill<String> for Lookup<F> {
    fn write_value(&self, word: &String, out: &mut String) {
        match (self.0)(word) {
            Some(MessageValue::Number(number)) => push_number(out, number),
            Some(MessageValue::Text(text)) => push_json(out, &text),
            None => out.push_str("null"),
        }
    }

    fn write_within(&self, word: &String, out: &mut String) {
        match (self.0)(word) {
            Some(MessageValue::Number(number)) => push_number(out, number),
            Some(MessageValue::Text(text)) => push_escaped(out, &text),
            None => {}
        }
    }
}
