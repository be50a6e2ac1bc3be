//! The ids of marks: keyed hashes of kind, policy, name and subject, the same from a [`Subject`] as from
//! the request of that subject. Nodes and restarts share them, so their bytes must not change.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::hash::Hasher as _;
use std::net::IpAddr;

use arrayvec::ArrayString;
use siphasher::sip128::{Hasher128 as _, SipHasher24};

use super::MarkKind;
use super::subject::{Subject, SubjectKind};
use crate::context::Context;
use crate::identity::{ClientNetwork, Networks};
use crate::key::{HashKey, Key, write_text};
use crate::policy::Policy;
use crate::policy::model::Part;

/// Longer values are stored as their beginning and a digest: there may be millions of marks.
const VALUE_BYTES_MAX: usize = 256;
/// How much of a longer value people see.
const SHOWN_CHARS: usize = 32;

/// The ids of all marks of one kind, policy and name on subjects by the same parts.
#[derive(Debug)]
pub(crate) struct MarkKeys {
    pub(crate) by: Vec<Part>,
    /// The names of the parts.
    names: Vec<String>,
    prefix: SipHasher24,
}

impl MarkKeys {
    /// `scope` is the policy that the marks are in force in, or `None` for all policies.
    pub(crate) fn new(
        secret: &HashKey,
        kind: MarkKind,
        scope: Option<&str>,
        name: Option<&str>,
        by: &[Part],
        policy: &Policy,
    ) -> Self {
        let names = by.iter().map(|part| part.name(policy)).collect();
        Self { by: by.to_vec(), names, prefix: prefix(secret, kind, scope, name) }
    }

    /// The id of the mark on the subject of a request; `None` if the request lacks a part.
    pub(crate) fn id(&self, context: &Context<'_>) -> Option<Key> {
        let (mut hasher, kind) = (self.prefix, SubjectKind::of(&self.by));
        hasher.write_u8(kind as u8);
        match (kind, context.user) {
            (SubjectKind::User, user) => write_text(&mut hasher, &digested(&self.prefix, user?)),
            (SubjectKind::Client, Some(user)) => {
                write_user(&mut hasher, &digested(&self.prefix, user));
            }
            (SubjectKind::Ip | SubjectKind::Client, _) => {
                hasher.write(&context.client_network()?.key_bytes());
            }
            (SubjectKind::Network | SubjectKind::Other | SubjectKind::Unreadable, _) => {
                for (part, name) in self.by.iter().zip(&self.names) {
                    write_text(&mut hasher, name);
                    self.write_value(&mut hasher, part, context)?;
                }
            }
        }
        Some(finish(hasher))
    }

    /// The id of the mark on the network that an address is in.
    pub(crate) fn network_id(&self, ip: IpAddr, prefix_length: u8) -> Key {
        let mut hasher = self.prefix;
        hasher.write_u8(SubjectKind::Network as u8);
        hasher.write(&ClientNetwork::of_network(ip, prefix_length).key_bytes());
        finish(hasher)
    }

    /// Hashes the text of a part's value. An ordinary client or address is written on the stack, because
    /// every request pays for this while such marks exist.
    fn write_value(
        &self,
        hasher: &mut SipHasher24,
        part: &Part,
        context: &Context<'_>,
    ) -> Option<()> {
        let mut text = ArrayString::<VALUE_BYTES_MAX>::new();
        let written = match (part, context.user) {
            (Part::Client, Some(user)) => write!(text, "user:{user}"),
            (Part::Client, None) => write!(text, "ip:{}", context.client_network()?),
            (Part::Ip, _) => write!(text, "{}", context.client_network()?),
            _ => Err(fmt::Error),
        };
        match written {
            Ok(()) => write_text(hasher, &text),
            Err(fmt::Error) => {
                write_text(hasher, &digested(&self.prefix, &context.part(part)?));
            }
        }
        Some(())
    }
}

impl Subject {
    /// The id of a mark on this subject, behind the [`prefix`] of the mark.
    pub(super) fn id(&self, prefix: SipHasher24) -> Key {
        let (mut hasher, kind) = (prefix, self.kind());
        hasher.write_u8(kind as u8);
        for (name, value) in self.parts() {
            let value = &*shortened_value(&prefix, kind, value);
            match kind {
                SubjectKind::User => write_text(&mut hasher, value),
                SubjectKind::Client => match value.strip_prefix("user:") {
                    Some(user) => write_user(&mut hasher, user),
                    None => write_network(&mut hasher, value.strip_prefix("ip:").unwrap_or(value)),
                },
                SubjectKind::Ip | SubjectKind::Network => write_network(&mut hasher, value),
                SubjectKind::Other | SubjectKind::Unreadable => {
                    write_text(&mut hasher, name);
                    write_text(&mut hasher, value);
                }
            }
        }
        finish(hasher)
    }

    /// The same subject with long values shortened, which has the same id.
    pub(super) fn shortened(&self, prefix: impl FnOnce() -> SipHasher24) -> Cow<'_, Self> {
        if self.0.iter().all(|(_, value)| value.len() <= VALUE_BYTES_MAX) {
            return Cow::Borrowed(self);
        }
        let (prefix, kind) = (prefix(), self.kind());
        let part = |(name, value): &(String, String)| {
            (name.clone(), shortened_value(&prefix, kind, value).into_owned())
        };
        Cow::Owned(Self(self.0.iter().map(part).collect()))
    }
}

/// The beginning of the ids of all marks of a kind, policy and name.
pub(super) fn prefix(
    secret: &HashKey,
    kind: MarkKind,
    policy: Option<&str>,
    name: Option<&str>,
) -> SipHasher24 {
    let kind = ["ban", "flag", "factor"][kind as usize];
    let scope = if policy.is_some() { "in" } else { "everywhere" };
    let texts =
        ["tidegate: a mark", kind, scope, policy.unwrap_or_default(), name.unwrap_or_default()];
    secret.hasher_of(&texts)
}

fn shortened_value<'v>(prefix: &SipHasher24, kind: SubjectKind, value: &'v str) -> Cow<'v, str> {
    match value.strip_prefix("user:") {
        Some(user) if kind == SubjectKind::Client => match digested(prefix, user) {
            Cow::Borrowed(_) => Cow::Borrowed(value),
            Cow::Owned(user) => Cow::Owned(format!("user:{user}")),
        },
        _ => digested(prefix, value),
    }
}

/// A text, or the beginning and the digest of a long one.
fn digested<'t>(prefix: &SipHasher24, text: &'t str) -> Cow<'t, str> {
    if text.len() <= VALUE_BYTES_MAX {
        return Cow::Borrowed(text);
    }
    let mut hasher = *prefix;
    hasher.write(b"a long value");
    write_text(&mut hasher, text);
    let start: String = text.chars().take(SHOWN_CHARS).collect();
    Cow::Owned(format!("{start}…{:032x}", hasher.finish128().as_u128()))
}

fn write_user(hasher: &mut SipHasher24, user: &str) {
    hasher.write_u8(b'u');
    write_text(hasher, user);
}

/// A text that is no network gets an id that no request has.
fn write_network(hasher: &mut SipHasher24, text: &str) {
    match Networks::parse_net(text) {
        Ok(net) => {
            hasher.write(&ClientNetwork::of_network(net.addr(), net.prefix_len()).key_bytes());
        }
        Err(_) => write_text(hasher, text),
    }
}

fn finish(hasher: SipHasher24) -> Key {
    Key(hasher.finish128().as_u128())
}
