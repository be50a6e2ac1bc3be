//! The names of keys in a store that operators read, and the templates that make them.

use std::fmt::Write as _;
use std::sync::Arc;

use super::limit_keys::row;
use super::{HashKey, Key, hashed};
use crate::context::Context;
use crate::policy::model::{Limit, Part};
use crate::policy::protection::Penalty;

/// The longest value that stands in a key's name as it is.
pub(crate) const RAW_BYTES_MAX: usize = 64;
/// How many digits of a fingerprint stand in a generated name. They have 84 bits: names are short, and among a billion
/// keys no two are likely to share one.
const NAME_DIGITS: usize = 14;
/// The digits of URL-safe base64.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

impl Key {
    /// The first digits of the key, for names that people see.
    fn digits(self) -> impl Iterator<Item = char> {
        (1..=NAME_DIGITS).map(move |place| {
            let digit = (self.0 >> (128 - 6 * place)) & 63;
            // Six bits are the index of a digit.
            char::from(DIGITS[usize::try_from(digit).unwrap_or(0)])
        })
    }
}

/// Whether the raw parts of a template are shown, or hashed like the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Raw {
    Shown,
    Hashed,
}

/// The name of a key in a store that operators read: the limit's template, or the limit's name and the key's
/// fingerprint, which tells limits of the same name in several policies apart.
pub(crate) fn name(
    secret: &HashKey,
    limit: &Limit,
    context: &Context<'_>,
    raw: Raw,
    key: impl FnOnce() -> Key,
) -> String {
    match &limit.key {
        Some(template) => template.fill(secret, row(limit, context).as_deref(), context, raw),
        None => generated(limit, key()),
    }
}

/// The name of a key of a limit without a template.
pub(crate) fn generated(limit: &Limit, key: Key) -> String {
    let mut name = String::with_capacity(limit.name.len() + 1 + NAME_DIGITS);
    name.push_str(&limit.name);
    name.push(':');
    name.extend(key.digits());
    name
}

/// The name of a key of a counter that belongs to no limit.
pub(crate) fn counted_name(name: &str, key: Key) -> Arc<str> {
    format!("count:{name}:{}", key.digits().collect::<String>()).into()
}

/// The name of a penalty's count: its template, or the penalty's name and the key's fingerprint.
pub(crate) fn penalty_name(
    secret: &HashKey,
    penalty: &Penalty,
    context: &Context<'_>,
    key: Key,
) -> Arc<str> {
    match &penalty.key {
        Some(template) => template.fill(secret, None, context, Raw::Shown).into(),
        None => counted_name(&penalty.name, key),
    }
}

/// Tests whether a key has these digits in its generated name; `None` if no key can have them.
pub(crate) fn called(digits: &str) -> Option<impl Fn(Key) -> bool + use<>> {
    let value = |digit: u8| DIGITS.iter().position(|known| *known == digit);
    let mut first = 0;
    for digit in digits.bytes() {
        first = (first << 6) | u128::try_from(value(digit)?).ok()?;
    }
    let is_whole = digits.len() == NAME_DIGITS;
    is_whole.then_some(move |key: Key| key.0 >> (128 - 6 * NAME_DIGITS) == first)
}

/// A key template, `rl:deals:w:{user}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    pub(crate) text: String,
    pub(crate) pieces: Vec<Piece>,
}

/// True if a value can stand in a name as it is, so that no name of a client makes two keys of one or one of two. Other
/// values are hashed.
pub(crate) fn is_plain(value: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"._@+-".contains(&b);
    !value.is_empty() && value != "-" && value.len() <= RAW_BYTES_MAX && value.bytes().all(fits)
}

/// A piece of a key template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Literal(String),
    /// Hashed, unless the operator asked for the raw value.
    Part {
        part: Part,
        raw: bool,
    },
}

impl Template {
    /// The row of a map stands behind what the operator wrote.
    fn fill(
        &self,
        secret: &HashKey,
        row: Option<&str>,
        context: &Context<'_>,
        shown: Raw,
    ) -> String {
        let mut name = String::with_capacity(self.text.len() + 16);
        for piece in &self.pieces {
            match piece {
                Piece::Literal(text) => name.push_str(text),
                Piece::Part { part, raw } => match context.part(part) {
                    None => name.push('-'),
                    Some(value) if *raw && shown == Raw::Shown && is_plain(&value) => {
                        name.push_str(&value);
                    }
                    Some(value) => {
                        let hash = hashed(secret, &part.name(context.policy()), &value);
                        // Writing to a String cannot fail.
                        let _ = write!(name, "{hash:016x}");
                    }
                },
            }
        }
        if let Some(row) = row {
            name.push(':');
            name.push_str(row);
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Limiter;
    use crate::policy::model::Policy;
    use crate::request::Request;

    #[test]
    fn limits_of_one_name_in_two_policies_have_keys_of_their_own() {
        let name = |policy: &str| {
            let text =
                format!("{{tidegate: 1, name: {policy}, limits: {{a: {{by: user, total: 1}}}}}}");
            let policy = Policy::parse("p.yaml", &text).unwrap();
            let builder = Limiter::builder().policy(policy).hash_key(HashKey::new([1; 16]));
            let explained = builder.build().unwrap().explain(&Request::new("GET", "/").user("u"));
            explained.unwrap().limits[0].applies.as_ref().unwrap().key.clone()
        };
        let (one, other) = (name("one"), name("other"));
        assert_ne!(one, other);
        for name in [one, other] {
            assert!(name.starts_with("a:") && name.len() == 2 + NAME_DIGITS, "{name}");
        }
    }

    #[test]
    fn names_have_the_first_bits_of_the_fingerprint() {
        let digits = |key: u128| Key(key).digits().collect::<String>();
        assert_eq!(digits(0), "AAAAAAAAAAAAAA");
        assert_eq!(digits(u128::MAX), "______________");
        assert_eq!(digits(0b000001_000010 << 116), "BCAAAAAAAAAAAA");
        assert_eq!(digits(1 << 44), "AAAAAAAAAAAAAB", "the last of 84 bits");
        assert_eq!(digits((1 << 44) - 1), digits(0), "the others are left out");
    }
}
