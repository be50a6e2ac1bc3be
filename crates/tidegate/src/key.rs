//! Keys: which state a limit and a subject share.
//!
//! A key is a keyed hash of policy, limit, algorithm and every part, each with its length or kind
//! before it, so that no two subjects collide by concatenation and nobody without the deployment's secret
//! can tell or guess whose key it is.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt::{self, Write as _};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::context::Context;
use crate::identity::ClientNetwork;
use crate::policy::model::{Limit, Part, Policy};

/// The longest value that stands in a key's name as it is.
pub(crate) const RAW_BYTES_MAX: usize = 64;

/// How much of a fingerprint stands in a generated name: 84 bits, so that names are short, and among
/// a billion keys no two are likely to be one.
const NAME_DIGITS: usize = 14;
/// The digits of URL-safe base64.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The deployment's secret. Nodes that share a store, and restarts, must use the same.
#[derive(Clone)]
pub struct HashKey([u8; 16]);

impl HashKey {
    /// A secret given by the deployment.
    #[must_use]
    pub const fn new(secret: [u8; 16]) -> Self {
        Self(secret)
    }

    /// A secret for this process alone, from the operating system's randomness.
    #[must_use]
    pub fn random() -> Self {
        let half = || RandomState::new().build_hasher().finish().to_ne_bytes();
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&half());
        secret[8..].copy_from_slice(&half());
        Self(secret)
    }

    /// Tells this secret from another without giving it away: what was hashed with one secret means
    /// nothing under another.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = self.hasher();
        write_text(&mut hasher, "tidegate: fingerprint of the secret");
        hasher.finish128().as_u64().0
    }

    /// A secret for another purpose, from which this one cannot be told.
    #[must_use]
    pub fn derive(&self, purpose: &str) -> [u8; 32] {
        let half = |number: u8| {
            let mut hasher = self.hasher();
            write_text(&mut hasher, "tidegate: a secret for a purpose");
            write_text(&mut hasher, purpose);
            hasher.write_u8(number);
            hasher.finish128().as_u128().to_le_bytes()
        };
        let mut derived = [0; 32];
        derived[..16].copy_from_slice(&half(0));
        derived[16..].copy_from_slice(&half(1));
        derived
    }

    /// What says that the lease of a holder is settled: the limit and the key of it.
    pub(crate) fn claim(&self, holder: u64) -> (u64, Key) {
        let mut hasher = self.hasher();
        write_text(&mut hasher, "tidegate: a lease that is settled");
        let family = hasher.finish128().as_u64().0;
        hasher.write_u64(holder);
        (family, Key(hasher.finish128().as_u128()))
    }

    /// What shares the part of the memory for what is used once.
    pub(crate) fn once_family(&self) -> u64 {
        let mut hasher = self.hasher();
        write_text(&mut hasher, "tidegate: what is used once");
        hasher.finish128().as_u64().0
    }

    /// What says that something is used up: the limit and the key of it.
    pub(crate) fn once(&self, purpose: &str, number: u128) -> (u64, Key) {
        let mut hasher = self.hasher();
        write_text(&mut hasher, "tidegate: a number that is used once");
        write_text(&mut hasher, purpose);
        hasher.write(&number.to_le_bytes());
        (self.once_family(), Key(hasher.finish128().as_u128()))
    }

    /// Whom a token of a policy is for: the policy, and the client as limits see it.
    pub(crate) fn client_keys(
        &self,
        policy: &str,
        user: Option<&str>,
        address: Option<&ClientNetwork>,
    ) -> Option<(Key, Key)> {
        let mut hasher = self.hasher();
        write_text(&mut hasher, "tidegate: whom a token is for");
        write_text(&mut hasher, policy);
        let of_policy = Key(hasher.finish128().as_u128());
        match (user, address) {
            (Some(user), _) => {
                hasher.write_u8(b'u');
                write_text(&mut hasher, user);
            }
            (None, Some(address)) => hasher.write(&address.key_bytes()),
            (None, None) => return None,
        }
        Some((of_policy, Key(hasher.finish128().as_u128())))
    }

    /// A hasher that has read these texts.
    pub(crate) fn hasher_of(&self, texts: &[&str]) -> SipHasher24 {
        let mut hasher = self.hasher();
        texts.iter().for_each(|text| write_text(&mut hasher, text));
        hasher
    }

    /// The secret itself, for another hash of the same kind.
    pub(crate) const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    fn hasher(&self) -> SipHasher24 {
        SipHasher24::new_with_key(&self.0)
    }
}

impl fmt::Debug for HashKey {
    /// The secret stays out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(…)")
    }
}

/// A key's fingerprint: a keyed hash. A [memory store](crate::store::Memory) reads where a key stands off its
/// upper half, whose bits must be as even as a hash's; numbers that somebody has counted are not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key(pub u128);

impl Key {
    /// Its first digits, for names that people see.
    fn digits(self) -> impl Iterator<Item = char> {
        (1..=NAME_DIGITS).map(move |place| {
            let digit = (self.0 >> (128 - 6 * place)) & 63;
            // Six bits are the index of a digit.
            char::from(DIGITS[usize::try_from(digit).unwrap_or(0)])
        })
    }
}

#[cfg(test)]
impl Key {
    /// The key of a number that somebody has counted, spread as hashes are.
    #[allow(clippy::cast_possible_truncation, reason = "the halves of a number")]
    pub(crate) const fn counted(number: u128) -> Self {
        let (low, high) = (number as u64, (number >> 64) as u64);
        let spread = (high.rotate_left(29) ^ low).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self((spread as u128) << 64 | low as u128)
    }

    /// The lower half of that number.
    #[allow(clippy::cast_possible_truncation, reason = "half of a key")]
    pub(crate) const fn number(self) -> u64 {
        self.0 as u64
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What all keys of one limit begin with, also over reloads.
#[derive(Clone, Debug)]
pub(crate) struct LimitKeys {
    /// What shares one part of the store's memory.
    pub(crate) family: u64,
    /// Has read everything that does not depend on the request.
    hasher: SipHasher24,
    /// The one key that there is, if nothing depends on the request.
    only: Option<Key>,
}

impl LimitKeys {
    pub(crate) fn new(secret: &HashKey, policy: &Policy, limit: &Limit) -> Self {
        let mut hasher = secret.hasher();
        write_limit(&mut hasher, policy, limit);
        let is_one = limit.row.is_none() && limit.by.iter().all(|part| *part == Part::Global);
        let only = is_one.then(|| {
            let mut hasher = hasher;
            limit.by.iter().for_each(|_| write_text(&mut hasher, ""));
            Key(hasher.finish128().as_u128())
        });
        Self { family: hasher.finish128().as_u64().0, hasher, only }
    }

    /// Of counts that no limit has: what they are, and by what they count.
    pub(crate) fn of_counts(
        secret: &HashKey,
        texts: &[&str],
        by: &[Part],
        policy: &Policy,
    ) -> Self {
        let mut hasher = secret.hasher();
        texts.iter().for_each(|text| write_text(&mut hasher, text));
        for part in by {
            write_text(&mut hasher, &part.name(policy));
        }
        Self { family: hasher.finish128().as_u64().0, hasher, only: None }
    }

    /// The same keys, sharing another part of the store's memory.
    pub(crate) fn in_family(self, family: u64) -> Self {
        Self { family, ..self }
    }

    /// The key of the subject of a request by these parts; `None` where one is missing. Those with a
    /// part that cannot be read share the key of a missing one.
    pub(crate) fn key_by(&self, by: &[Part], context: &Context<'_>) -> Option<Key> {
        let mut hasher = self.hasher;
        for part in by {
            if !context.distinguishes(part) {
                return None;
            }
            write_part(&mut hasher, part, context);
        }
        Some(Key(hasher.finish128().as_u128()))
    }

    /// The key of the limit for the subject of a request. Parts that are missing have a key of their
    /// own.
    pub(crate) fn key(&self, limit: &Limit, context: &Context<'_>) -> Key {
        let shared = self.key_unless::<Infallible>(limit, context, |_, _| Ok(()));
        let Ok(key) = shared;
        key
    }

    /// The same, unless something is to be said of a part that is missing.
    pub(crate) fn key_unless<E>(
        &self,
        limit: &Limit,
        context: &Context<'_>,
        mut missing: impl FnMut(usize, &Part) -> Result<(), E>,
    ) -> Result<Key, E> {
        if let Some(only) = self.only {
            return Ok(only);
        }
        let mut hasher = self.hasher;
        for (at, part) in limit.by.iter().enumerate() {
            if !write_part(&mut hasher, part, context) {
                missing(at, part)?;
            }
        }
        if let Some(row) = row(limit, context) {
            write_text(&mut hasher, &row);
        }
        Ok(Key(hasher.finish128().as_u128()))
    }
}

/// The row of a map that this request is in, where rows count by themselves. The default row has the
/// key of a limit without rows, so that a limit which gets a map keeps what most of its keys owe.
fn row<'f>(limit: &Limit, context: &'f Context<'_>) -> Option<Cow<'f, str>> {
    let row = context.part(limit.row.as_ref()?)?;
    let default = match limit.row {
        Some(Part::Tier) => context.tier == context.policy().identity.default_tier,
        _ => row == "default",
    };
    Some(row).filter(|_| !default)
}

/// A part's value, without making a text of an address; whether there is one. What kind it is goes
/// before it, so that no user can be called as an address.
#[inline(always)]
fn write_part(hasher: &mut SipHasher24, part: &Part, context: &Context<'_>) -> bool {
    let text = match (part, context.user) {
        (Part::User, Some(user)) => Some(Cow::Borrowed(user)),
        (Part::Client, Some(user)) => {
            hasher.write_u8(b'u');
            Some(Cow::Borrowed(user))
        }
        (Part::Ip | Part::Client, _) => {
            if let Some(subject) = context.client_network() {
                hasher.write(&subject.key_bytes());
                return true;
            }
            None
        }
        (Part::Attribute(id), _) => context.attribute(*id),
        _ => context.part(part),
    };
    match &text {
        Some(text) => write_text(hasher, text),
        // Nothing is so long.
        None => hasher.write_u64(u64::MAX),
    }
    text.is_some()
}

fn write_limit(hasher: &mut SipHasher24, policy: &Policy, limit: &Limit) {
    write_text(hasher, &policy.name);
    write_text(hasher, &limit.name);
    write_text(hasher, limit.algorithm.name());
    for part in &limit.by {
        write_text(hasher, &part.name(policy));
    }
}

#[inline]
pub(crate) fn write_text(hasher: &mut impl Hasher, text: &str) {
    hasher.write_u64(u64::try_from(text.len()).unwrap_or(u64::MAX - 1));
    hasher.write(text.as_bytes());
}

/// The value of a part so that nobody can tell or guess it, the same in key names and in logs. With
/// the part's name: a user called as an address is no address.
pub(crate) fn hashed(secret: &HashKey, part: &str, value: &str) -> u64 {
    let mut hasher = secret.hasher();
    write_text(&mut hasher, part);
    write_text(&mut hasher, value);
    hasher.finish128().as_u64().0
}

/// Whether a template's raw parts are shown, or hashed like the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Raw {
    Shown,
    Hashed,
}

/// The key's name in a store that operators look into: the limit's template, or the limit and its
/// fingerprint, which tells limits of the same name apart where several policies have one.
pub(crate) fn name(
    secret: &HashKey,
    limit: &Limit,
    context: &Context<'_>,
    raw: Raw,
    key: impl FnOnce() -> Key,
) -> String {
    match &limit.key {
        Some(template) => template.fill(secret, limit, context, raw),
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

/// The name of a key of counts that no limit has.
pub(crate) fn counted_name(name: &str, key: Key) -> Arc<str> {
    format!("count:{name}:{}", key.digits().collect::<String>()).into()
}

/// Whether a key has these digits in its generated name; `None` if no key has.
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

/// Whether a value can stand in a name as it is: nobody can make two keys of one, or one of two, by
/// what a client is called. Others are hashed.
pub(crate) fn is_plain(value: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"._@+-".contains(&b);
    !value.is_empty() && value != "-" && value.len() <= RAW_BYTES_MAX && value.bytes().all(fits)
}

/// A piece of a key template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Literal(String),
    /// Hashed, unless the operator asked for it raw.
    Part {
        part: Part,
        raw: bool,
    },
}

impl Template {
    fn fill(&self, secret: &HashKey, limit: &Limit, context: &Context<'_>, shown: Raw) -> String {
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
        // The row of a map stands behind what the operator wrote.
        if let Some(row) = row(limit, context) {
            name.push(':');
            name.push_str(&row);
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Limiter;
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
