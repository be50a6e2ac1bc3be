//! Whom a mark is of.

use std::borrow::Cow;
use std::fmt;
use std::hash::Hasher as _;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128 as _, SipHasher24};

use crate::context::Context;
use crate::identity::{self, ClientNetwork, Networks, canonical};
use crate::key::{Key, write_text};
use crate::policy::model::Part;
use crate::policy::protection::BanBy;

/// Parts of a request, each with its value as people read it: `user u1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Subject(Vec<(String, String)>);

/// How long a value may be that is kept as it is: marks are kept by the million.
pub(super) const VALUE_MAX: usize = 256;
/// How much of a longer one people see.
const SHOWN: usize = 32;

/// How a subject is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    User,
    Client,
    Ip,
    Network,
    /// Any other part, or several.
    Other,
}

impl Shape {
    pub(crate) const ALL: [Self; 5] =
        [Self::User, Self::Client, Self::Ip, Self::Network, Self::Other];
    pub(crate) const COUNT: usize = Self::ALL.len();

    /// That of a `by`.
    pub(crate) const fn of(by: &[Part]) -> Self {
        match by {
            [Part::User] => Self::User,
            [Part::Client] => Self::Client,
            [Part::Ip] => Self::Ip,
            _ => Self::Other,
        }
    }
}

impl Subject {
    /// A user.
    #[must_use]
    pub fn user(user: impl Into<String>) -> Self {
        Self::part("user", user)
    }

    /// A client, as limits by client count it: `user:u1`, or `ip:192.0.2.1` of one without a user.
    #[must_use]
    pub fn client(client: impl Into<String>) -> Self {
        Self::part("client", client)
    }

    /// An address. That of an IPv6 client is its network, as the policy's `ipv6_prefix` has it.
    #[must_use]
    pub fn ip(ip: IpAddr) -> Self {
        Self::part("ip", canonical(ip).to_string())
    }

    /// All addresses of a network.
    #[must_use]
    pub fn network(net: IpNet) -> Self {
        Self::part("network", net.trunc().to_string())
    }

    /// Any part that a penalty counts by, such as an attribute.
    #[must_use]
    pub fn part(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self(vec![(name.into(), value.into())])
    }

    /// Several parts together.
    #[must_use]
    pub fn of_parts(parts: Vec<(String, String)>) -> Self {
        Self(parts)
    }

    /// The parts, each with its value.
    pub fn parts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// The subject of a request as notices tell of it, where one of these parts cannot be read.
    pub(crate) fn unread(by: &[Part], context: &Context<'_>) -> Self {
        let value = |part| context.part(part).map_or_else(|| "-".to_owned(), Cow::into_owned);
        Self::of_parts(by.iter().map(|part| (part.name(context.policy), value(part))).collect())
    }

    /// The subject of a request by these parts; `None` where one is missing.
    pub(crate) fn of(by: &[Part], context: &Context<'_>) -> Option<Self> {
        let part =
            |part: &Part| Some((part.name(context.policy), context.part(part)?.into_owned()));
        by.iter().map(part).collect::<Option<_>>().map(Self)
    }

    /// Whom a ban of a request is to touch; `None` where the request has no such part.
    pub(crate) fn banned(by: BanBy, context: &Context<'_>) -> Option<Self> {
        match by {
            BanBy::User => Self::of(&[Part::User], context),
            BanBy::Client => Self::of(&[Part::Client], context),
            BanBy::Ip => Self::of(&[Part::Ip], context),
            BanBy::Network { v4_bits, v6_bits } => {
                let address = canonical(context.address?);
                let bits = if address.is_ipv4() { v4_bits.min(32) } else { v6_bits.min(128) };
                IpNet::new(address, bits).ok().map(Self::network)
            }
        }
    }

    /// Its IPv6 addresses as the networks that stand for their clients. One alone is, where policies
    /// may differ in that, a network that does not ask them.
    pub(crate) fn with_prefix(self, ipv6_prefix: u8, may_differ: bool) -> Self {
        let may_differ = may_differ && self.0.len() == 1;
        let known = |(name, value): (String, String)| {
            let (address, is_client) = match (&*name, value.strip_prefix("ip:")) {
                ("ip", _) => (value.parse::<IpAddr>(), false),
                ("client", Some(address)) => (address.parse(), true),
                _ => return (name, value),
            };
            let Ok(ip) = address else { return (name, value) };
            let subject = identity::client_network(ip, ipv6_prefix);
            match is_client {
                true => (name, format!("ip:{subject}")),
                false if canonical(ip).is_ipv6() && may_differ => {
                    ("network".to_owned(), subject.to_string())
                }
                false => (name, subject.to_string()),
            }
        };
        Self(self.0.into_iter().map(known).collect())
    }

    /// The network that it is, where it is one.
    pub(crate) fn as_network(&self) -> Option<IpNet> {
        match &*self.0 {
            [(name, value)] if name == "network" => Networks::parse_net(value).ok(),
            _ => None,
        }
    }

    pub(crate) fn shape(&self) -> Shape {
        match &*self.0 {
            [(name, _)] => match &**name {
                "user" => Shape::User,
                "client" => Shape::Client,
                "ip" => Shape::Ip,
                "network" => Shape::Network,
                _ => Shape::Other,
            },
            _ => Shape::Other,
        }
    }

    /// Its key, behind what has been hashed already: the same that [`key_of`] and [`network_key`]
    /// make of a request.
    pub(crate) fn key(&self, mut hasher: SipHasher24) -> Key {
        let (shape, prefix) = (self.shape(), hasher);
        hasher.write_u8(tag(shape));
        for (name, value) in self.parts() {
            let value = &*short(prefix, shape, value);
            match shape {
                Shape::User => write_text(&mut hasher, value),
                Shape::Client => match value.strip_prefix("user:") {
                    Some(user) => write_user(&mut hasher, user),
                    None => write_net(&mut hasher, value.strip_prefix("ip:").unwrap_or(value)),
                },
                Shape::Ip | Shape::Network => write_net(&mut hasher, value),
                Shape::Other => {
                    write_text(&mut hasher, name);
                    write_text(&mut hasher, value);
                }
            }
        }
        Key(hasher.finish128().as_u128())
    }

    /// The same subject in few bytes, behind what the keys of its mark begin with: values that are too
    /// long to be kept are their beginning and a digest, which has the same key.
    pub(crate) fn shortened(&self, prefix: impl FnOnce() -> SipHasher24) -> Cow<'_, Self> {
        if self.0.iter().all(|(_, value)| value.len() <= VALUE_MAX) {
            return Cow::Borrowed(self);
        }
        let (prefix, shape) = (prefix(), self.shape());
        let part = |(name, value): &(String, String)| {
            (name.clone(), short(prefix, shape, value).into_owned())
        };
        Cow::Owned(Self(self.0.iter().map(part).collect()))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.parts().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{name} {value}")?;
        }
        Ok(())
    }
}

/// The key of a request's subject by these parts, without making a text of what is none; `None`
/// where one is missing.
pub(crate) fn key_of(mut hasher: SipHasher24, by: &[Part], context: &Context<'_>) -> Option<Key> {
    let (shape, prefix) = (Shape::of(by), hasher);
    hasher.write_u8(tag(shape));
    match (shape, context.user) {
        (Shape::User, user) => write_text(&mut hasher, &digested(prefix, user?)),
        (Shape::Client, Some(user)) => write_user(&mut hasher, &digested(prefix, user)),
        (Shape::Ip | Shape::Client, _) => hasher.write(&context.client_network()?.key_bytes()),
        (Shape::Network | Shape::Other, _) => {
            for part in by {
                write_text(&mut hasher, &part.name(context.policy));
                write_text(&mut hasher, &digested(prefix, &context.part(part)?));
            }
        }
    }
    Some(Key(hasher.finish128().as_u128()))
}

/// The key of the network of so many bits that an address is in.
pub(crate) fn network_key(mut hasher: SipHasher24, ip: IpAddr, bits: u8) -> Key {
    hasher.write_u8(tag(Shape::Network));
    hasher.write(&ClientNetwork::of_network(ip, bits).key_bytes());
    Key(hasher.finish128().as_u128())
}

const fn tag(shape: Shape) -> u8 {
    shape as u8
}

/// A value as it is kept.
fn short(prefix: SipHasher24, shape: Shape, value: &str) -> Cow<'_, str> {
    match value.strip_prefix("user:") {
        Some(user) if shape == Shape::Client && user.len() > VALUE_MAX => {
            Cow::Owned(format!("user:{}", digested(prefix, user)))
        }
        // Its user is short enough.
        Some(_) if shape == Shape::Client => Cow::Borrowed(value),
        _ => digested(prefix, value),
    }
}

/// A text, or the beginning and the digest of one that is too long.
fn digested(mut prefix: SipHasher24, text: &str) -> Cow<'_, str> {
    if text.len() <= VALUE_MAX {
        return Cow::Borrowed(text);
    }
    prefix.write(b"a long value");
    write_text(&mut prefix, text);
    let start: String = text.chars().take(SHOWN).collect();
    Cow::Owned(format!("{start}…{:032x}", prefix.finish128().as_u128()))
}

fn write_user(hasher: &mut SipHasher24, user: &str) {
    hasher.write_u8(b'u');
    write_text(hasher, user);
}

/// What is no address is nobody's.
fn write_net(hasher: &mut SipHasher24, text: &str) {
    match Networks::parse_net(text) {
        Ok(net) => {
            hasher.write(&ClientNetwork::of_network(net.addr(), net.prefix_len()).key_bytes());
        }
        Err(_) => write_text(hasher, text),
    }
}
