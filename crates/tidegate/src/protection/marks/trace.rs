//! Traces: what the [filter](super::filter) knows marks by. A cheap hash, keyed with a secret of this
//! process alone, so that nobody outside can tell two subjects whose traces are alike.

use std::hash::{BuildHasher as _, Hasher as _};

use foldhash::SharedSeed;
use foldhash::quality::{FixedState, FoldHasher};
use siphasher::sip128::SipHasher24;

use super::subject::{Subject, VALUE_MAX, key_of};
use super::{Mark, MarkKind, prefix};
use crate::context::Context;
use crate::identity::{ClientNetwork, Networks};
use crate::key::{HashKey, Key};
use crate::policy::Policy;
use crate::policy::model::Part;

/// What stands before the user in the value of a client.
const USER: &str = "user:";
const IP: &str = "ip:";

/// Marks of one kind in one scope and by the same parts, as requests look for them.
#[derive(Debug)]
pub(crate) struct Sought {
    pub(super) kind: MarkKind,
    pub(crate) by: Vec<Part>,
    /// What their keys begin with.
    pub(super) prefix: SipHasher24,
    salt: u64,
}

/// What a request's trace can be.
pub(super) enum Traced {
    /// The request lacks a part.
    Nobody,
    Is(u64),
    /// Marks know it by the digest of a long value, so that the filter does not know it.
    Unknown,
}

/// Makes traces.
pub(super) struct Tracer {
    seed: u64,
    shared: SharedSeed,
}

impl Sought {
    /// Those in a policy, or in all, by parts that this policy has.
    pub(crate) fn new(
        secret: &HashKey,
        kind: MarkKind,
        scope: Option<&str>,
        name: Option<&str>,
        by: &[Part],
        policy: &Policy,
    ) -> Self {
        let names: Vec<String> = by.iter().map(|part| part.name(policy)).collect();
        let salt = salt(scope, name, names.iter().map(String::as_str));
        Self { kind, by: by.to_vec(), prefix: prefix(secret, kind, scope, name), salt }
    }

    /// Bans of networks.
    pub(crate) fn networks(secret: &HashKey, scope: Option<&str>) -> Self {
        let (kind, salt) = (MarkKind::Ban, salt(scope, None, ["network"]));
        Self { kind, by: Vec::new(), prefix: prefix(secret, kind, scope, None), salt }
    }

    /// The key of the mark of a request; `None` where it lacks a part.
    pub(super) fn key(&self, context: &Context<'_>) -> Option<Key> {
        key_of(self.prefix, &self.by, context)
    }
}

impl Tracer {
    /// With a secret of its own.
    #[allow(clippy::cast_possible_truncation, reason = "half of a secret is one")]
    pub(super) fn random() -> Self {
        let secret = u128::from_le_bytes(*HashKey::random().bytes());
        let [seed, shared] = [secret, secret >> 64].map(|half| half as u64);
        Self { seed, shared: SharedSeed::from_u64(shared) }
    }

    /// The trace of the mark that a request looks for.
    pub(super) fn of_request(&self, sought: &Sought, context: &Context<'_>) -> Traced {
        let mut hasher = self.hasher(sought.salt);
        for part in &sought.by {
            match write_part(&mut hasher, part, context) {
                Some(true) => {}
                Some(false) => return Traced::Unknown,
                None => return Traced::Nobody,
            }
        }
        Traced::Is(hasher.finish())
    }

    /// The trace of a ban of a network.
    pub(super) fn of_network(&self, sought: &Sought, network: &ClientNetwork) -> u64 {
        let mut hasher = self.hasher(sought.salt);
        write_network(&mut hasher, network);
        hasher.finish()
    }

    /// The trace of a mark, of its subject as it is kept.
    pub(super) fn of_mark(&self, mark: &Mark, subject: &Subject) -> u64 {
        let names = subject.parts().map(|(name, _)| name);
        let mut hasher = self.hasher(salt(mark.policy.as_deref(), mark.name(), names));
        for (name, value) in subject.parts() {
            match (name, value.strip_prefix(USER)) {
                ("client", Some(user)) => write_user(&mut hasher, user),
                ("client", None) => write_net(&mut hasher, value.strip_prefix(IP).unwrap_or(value)),
                ("ip" | "network", _) => write_net(&mut hasher, value),
                _ => hasher.write(value.as_bytes()),
            }
        }
        hasher.finish()
    }

    fn hasher(&self, salt: u64) -> FoldHasher<'_> {
        FoldHasher::with_seed(self.seed ^ salt, &self.shared)
    }
}

/// Tells scopes, names and parts apart, which nobody outside can choose.
fn salt<'n>(
    scope: Option<&str>,
    name: Option<&str>,
    parts: impl IntoIterator<Item = &'n str>,
) -> u64 {
    let parts: Vec<&str> = parts.into_iter().collect();
    FixedState::default().hash_one((scope, name, parts))
}

/// Whether a value is short enough to be known by itself; `None` where there is none.
fn write_part(hasher: &mut FoldHasher<'_>, part: &Part, context: &Context<'_>) -> Option<bool> {
    let is_short = |hasher: &mut FoldHasher<'_>, value: &str| {
        hasher.write(value.as_bytes());
        Some(value.len() <= VALUE_MAX)
    };
    match (part, context.user) {
        (Part::User, user) => is_short(hasher, user?),
        (Part::Client, Some(user)) => {
            write_user(hasher, user);
            Some(USER.len() + user.len() <= VALUE_MAX)
        }
        (Part::Ip | Part::Client, _) => {
            write_network(hasher, &context.client_network()?);
            Some(true)
        }
        _ => is_short(hasher, &context.part(part)?),
    }
}

fn write_user(hasher: &mut FoldHasher<'_>, user: &str) {
    hasher.write_u128(b'u'.into());
    hasher.write(user.as_bytes());
}

fn write_network(hasher: &mut FoldHasher<'_>, subject: &ClientNetwork) {
    let (address, prefix) = subject.numbers();
    hasher.write_u128(address);
    hasher.write_u128(prefix.into());
}

fn write_net(hasher: &mut FoldHasher<'_>, text: &str) {
    match Networks::parse_net(text) {
        Ok(net) => write_network(hasher, &ClientNetwork::of_network(net.addr(), net.prefix_len())),
        Err(_) => hasher.write(text.as_bytes()),
    }
}

#[cfg(test)]
mod tests;
