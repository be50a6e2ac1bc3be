//! The keys of a limit's subjects.

use std::borrow::Cow;
use std::convert::Infallible;
use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher24};

use super::{HashKey, Key, write_text};
use crate::context::Context;
use crate::policy::model::{Limit, Part, Policy};

/// Makes the keys of one limit. They stay the same over reloads.
#[derive(Clone, Debug)]
pub(crate) struct LimitKeys {
    /// The number of the limit in a store, where all keys of a family share a part of the memory.
    pub(crate) family: u64,
    /// A hasher that has read everything that does not depend on the request.
    hasher: SipHasher24,
    /// The only key, if nothing depends on the request.
    only: Option<Key>,
}

impl LimitKeys {
    pub(crate) fn new(secret: &HashKey, policy: &Policy, limit: &Limit) -> Self {
        let texts = [&*policy.name, &*limit.name, limit.algorithm.name()];
        let hasher = hasher_by(secret, &texts, &limit.by, policy);
        let is_one = limit.row.is_none() && limit.by.iter().all(|part| *part == Part::Global);
        let only = is_one.then(|| {
            let mut hasher = hasher;
            limit.by.iter().for_each(|_| write_text(&mut hasher, ""));
            Key(hasher.finish128().as_u128())
        });
        Self { family: hasher.finish128().as_u64().0, hasher, only }
    }

    /// The keys of counters that belong to no limit: what they count, and by which parts.
    pub(crate) fn of_counts(
        secret: &HashKey,
        texts: &[&str],
        by: &[Part],
        policy: &Policy,
    ) -> Self {
        let hasher = hasher_by(secret, texts, by, policy);
        Self { family: hasher.finish128().as_u64().0, hasher, only: None }
    }

    /// The same keys in another family.
    pub(crate) fn in_family(self, family: u64) -> Self {
        Self { family, ..self }
    }

    /// The key of a request's subject by these parts. Requests without a part share the key of those whose part cannot
    /// be read.
    pub(crate) fn key_by(&self, by: &[Part], context: &Context<'_>) -> Key {
        let mut hasher = self.hasher;
        for part in by {
            write_part(&mut hasher, part, context);
        }
        Key(hasher.finish128().as_u128())
    }

    /// The key of a request's subject on the limit. A missing part has a key of its own.
    pub(crate) fn key(&self, limit: &Limit, context: &Context<'_>) -> Key {
        let shared = self.key_unless::<Infallible>(limit, context, |_, _| Ok(()));
        let Ok(key) = shared;
        key
    }

    /// As [`key`](Self::key), unless `missing` returns an error for a missing part.
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

/// The row of a map that the request is in, if rows count separately. The default row has the key of a limit without
/// rows, so that a limit which gets a map keeps what most of its keys owe.
pub(super) fn row<'f>(limit: &Limit, context: &'f Context<'_>) -> Option<Cow<'f, str>> {
    let row = context.part(limit.row.as_ref()?)?;
    let default = match limit.row {
        Some(Part::Tier) => context.tier == context.policy().identity.default_tier,
        _ => row == "default",
    };
    Some(row).filter(|_| !default)
}

/// Hashes a part's value, if there is one, without making a text of an address; returns whether there is one. The kind
/// goes before the value, so that no user can be called like an address.
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
        // No text has this length.
        None => hasher.write_u64(u64::MAX),
    }
    text.is_some()
}

/// A hasher that has read these texts and the names of these parts.
fn hasher_by(secret: &HashKey, texts: &[&str], by: &[Part], policy: &Policy) -> SipHasher24 {
    let mut hasher = secret.hasher_of(texts);
    by.iter().for_each(|part| write_text(&mut hasher, &part.name(policy)));
    hasher
}
