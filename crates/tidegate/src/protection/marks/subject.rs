//! The subject of a mark: a user, a client, an address, a network, or any parts that a penalty counts
//! by.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::identity::{self, Networks, canonical};
use crate::policy::model::Part;
use crate::policy::protection::BanBy;

/// Parts of a request, each with its value as people read it: `user u1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Subject(pub(super) Vec<(String, String)>);

/// What a subject is. Each kind has keys of its own; the numbers are hashed into them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubjectKind {
    User = 0,
    Client = 1,
    Ip = 2,
    Network = 3,
    /// Another part, or several.
    Other = 4,
    /// Requests that cannot be read, to the operations of a penalty.
    Unreadable = 5,
}

/// What stands before the name of a part that cannot be read. No part has a name with a space.
const UNREADABLE: &str = "unreadable ";

impl SubjectKind {
    pub(crate) const COUNT: usize = 6;

    /// The kind of the subjects of a `by`.
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

    /// A client, as limits by client count it: `user:u1`, or `ip:192.0.2.1` without a user.
    #[must_use]
    pub fn client(client: impl Into<String>) -> Self {
        Self::part("client", client)
    }

    /// An address. An IPv6 client is known by its network, of the policy's `ipv6_prefix`.
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

    /// A part as people write it, with addresses and networks in their canonical form.
    ///
    /// # Errors
    /// An `ip` or a `network` is none.
    pub fn parse_part(name: &str, value: &str) -> Result<Self, &'static str> {
        Ok(match name {
            "ip" => Self::ip(value.parse().map_err(|_| "expected an IP address")?),
            "network" => {
                let expected = "expected a network such as 203.0.113.0/24";
                Self::network(value.parse().map_err(|_| expected)?)
            }
            name => Self::part(name, value),
        })
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

    /// The subject of a request by these parts; `None` if the request lacks one of them.
    pub(crate) fn of(by: &[Part], context: &Context<'_>) -> Option<Self> {
        let part =
            |part: &Part| Some((part.name(context.policy()), context.part(part)?.into_owned()));
        by.iter().map(part).collect::<Option<_>>().map(Self)
    }

    /// The same for a notice, with `-` for a part that cannot be read.
    pub(crate) fn for_notice(by: &[Part], context: &Context<'_>) -> Self {
        let value = |part| context.part(part).map_or_else(|| "-".to_owned(), Cow::into_owned);
        Self(by.iter().map(|part| (part.name(context.policy()), value(part))).collect())
    }

    /// The requests that are like this one, but for the parts that it lacks or that cannot be read, and
    /// that belong to the penalty of this name: `unreadable email brute-force`.
    pub(crate) fn unreadable(by: &[Part], penalty: &str, context: &Context<'_>) -> Self {
        let part = |part: &Part| {
            let name = part.name(context.policy());
            match context.part(part) {
                Some(value) => (name, value.into_owned()),
                None => (format!("{UNREADABLE}{name}"), penalty.to_owned()),
            }
        };
        Self(by.iter().map(part).collect())
    }

    /// The subject that a ban of a request is on; `None` if the request has no such part.
    pub(crate) fn of_ban(by: BanBy, context: &Context<'_>) -> Option<Self> {
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

    /// Replaces IPv6 addresses by the networks that stand for their clients. If policies may differ in
    /// `ipv6_prefix`, a subject that is one address becomes a `network`, which means the same in all of
    /// them.
    pub(crate) fn with_prefix(self, ipv6_prefix: u8, may_differ: bool) -> Self {
        let may_differ = may_differ && self.0.len() == 1;
        let convert = |(name, value): (String, String)| {
            let (address, is_client) = match (&*name, value.strip_prefix("ip:")) {
                ("ip", _) => (value.parse::<IpAddr>(), false),
                ("client", Some(address)) => (address.parse(), true),
                _ => return (name, value),
            };
            let Ok(ip) = address else { return (name, value) };
            let network = identity::client_network(ip, ipv6_prefix);
            match is_client {
                true => (name, format!("ip:{network}")),
                false if canonical(ip).is_ipv6() && may_differ => {
                    ("network".to_owned(), network.to_string())
                }
                false => (name, network.to_string()),
            }
        };
        Self(self.0.into_iter().map(convert).collect())
    }

    /// The network, if the subject is one.
    pub(crate) fn as_network(&self) -> Option<IpNet> {
        match &*self.0 {
            [(name, value)] if name == "network" => Networks::parse_net(value).ok(),
            _ => None,
        }
    }

    pub(crate) fn kind(&self) -> SubjectKind {
        if self.parts().any(|(name, _)| name.starts_with(UNREADABLE)) {
            return SubjectKind::Unreadable;
        }
        match &*self.0 {
            [(name, _)] => match &**name {
                "user" => SubjectKind::User,
                "client" => SubjectKind::Client,
                "ip" => SubjectKind::Ip,
                "network" => SubjectKind::Network,
                _ => SubjectKind::Other,
            },
            _ => SubjectKind::Other,
        }
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
