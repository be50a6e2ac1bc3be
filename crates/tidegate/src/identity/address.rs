//! Addresses and networks, in one spelling: IPv4 inside IPv6 counts as IPv4.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::units::ParseError;

/// How many leading bits an IPv4-mapped IPv6 address spends on saying so.
const MAPPED_BITS: u8 = 96;

/// The address itself; one that is IPv4 inside IPv6 (`::ffff:192.0.2.1`) becomes IPv4.
#[must_use]
pub fn canonical(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

/// The client behind an address: an IPv4 client is its address, an IPv6 client its network of
/// `ipv6_prefix` bits (more than 128 count as 128), since one customer owns all addresses in it.
#[must_use]
pub fn client_network(ip: IpAddr, ipv6_prefix: u8) -> ClientNetwork {
    match canonical(ip) {
        IpAddr::V4(address) => ClientNetwork { address: address.into(), prefix: 32 },
        IpAddr::V6(address) => {
            let prefix = ipv6_prefix.min(128);
            let mask = u128::MAX.checked_shl(u32::from(128 - prefix)).unwrap_or(0);
            ClientNetwork { address: Ipv6Addr::from_bits(address.to_bits() & mask).into(), prefix }
        }
    }
}

/// A client by its address: `192.0.2.1` or `2001:db8:1:2::/64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientNetwork {
    address: IpAddr,
    prefix: u8,
}

impl ClientNetwork {
    /// The network of an address, with a prefix of this many bits.
    pub(crate) fn of_network(ip: IpAddr, bits: u8) -> Self {
        match canonical(ip) {
            IpAddr::V4(address) => {
                let prefix = bits.min(32);
                let mask = u32::MAX.checked_shl(u32::from(32 - prefix)).unwrap_or(0);
                Self { address: Ipv4Addr::from_bits(address.to_bits() & mask).into(), prefix }
            }
            address @ IpAddr::V6(_) => client_network(address, bits),
        }
    }

    /// Bytes for hashing: the family, the prefix and the address. They are the same on every host
    /// and in every version, and different for any two subjects.
    #[must_use]
    pub fn key_bytes(&self) -> [u8; 18] {
        let mut bytes = [0; 18];
        let (head, tail) = bytes.split_at_mut(2);
        match self.address {
            IpAddr::V4(address) => {
                head.copy_from_slice(&[4, self.prefix]);
                tail[..4].copy_from_slice(&address.octets());
            }
            IpAddr::V6(address) => {
                head.copy_from_slice(&[6, self.prefix]);
                tail.copy_from_slice(&address.octets());
            }
        }
        bytes
    }
}

impl fmt::Display for ClientNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            IpAddr::V6(address) if self.prefix < 128 => write!(f, "{address}/{}", self.prefix),
            address => write!(f, "{address}"),
        }
    }
}

/// A set of networks; asking it costs the logarithm of its size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    v4: Ranges,
    v6: Ranges,
}

impl Networks {
    /// Whether an address is in one of the networks.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        let ip = canonical(ip);
        let ranges = if ip.is_ipv4() { &self.v4 } else { &self.v6 };
        ranges.contains(bits(ip))
    }

    /// Whether there is no network in it.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.v4.0.is_empty() && self.v6.0.is_empty()
    }

    /// Reads `10.0.0.0/8`, or an address alone, which is the network of that one address. Bits
    /// behind the prefix are cleared: `10.1.2.3/8` is `10.0.0.0/8`.
    ///
    /// # Errors
    /// What is not an address, or a prefix that is not a number or too long for it.
    pub fn parse_net(text: &str) -> Result<IpNet, ParseError> {
        let refuse = |expected| ParseError::new(text, expected);
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let example = "an address or network, such as 192.0.2.1, 10.0.0.0/8 or 2001:db8::/32";
        let address: IpAddr = address.parse().map_err(|_| refuse(example))?;
        let Some(prefix) = prefix else { return Ok(canonical(address).into()) };
        let too_long = refuse(match address {
            IpAddr::V4(_) => "a prefix from 0 to 32 behind an IPv4 address",
            IpAddr::V6(_) => "a prefix from 0 to 128 behind an IPv6 address",
        });
        let net = parse_prefix(prefix).and_then(|prefix| IpNet::new(address, prefix).ok());
        let net = net.ok_or(too_long)?;
        // The author of ::ffff:10.0.0.0/8 means 10.0.0.0/8, not a part of all of IPv6.
        if canonical(address) != address && net.prefix_len() < MAPPED_BITS {
            return Err(refuse("a prefix from 96 to 128 behind an IPv4-mapped address"));
        }
        Ok(canonical_net(net))
    }
}

impl FromIterator<IpNet> for Networks {
    fn from_iter<I: IntoIterator<Item = IpNet>>(nets: I) -> Self {
        let (v4, v6): (Vec<IpNet>, Vec<IpNet>) =
            nets.into_iter().map(canonical_net).partition(|net| net.addr().is_ipv4());
        Self { v4: Ranges::new(&v4), v6: Ranges::new(&v6) }
    }
}

/// Ranges of addresses, sorted, no two of which touch or overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ranges(Vec<(u128, u128)>);

impl Ranges {
    fn new(nets: &[IpNet]) -> Self {
        let mut all: Vec<_> =
            nets.iter().map(|net| (bits(net.network()), bits(net.broadcast()))).collect();
        all.sort_unstable();
        let mut merged: Vec<(u128, u128)> = Vec::new();
        for (first, last) in all {
            match merged.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    fn contains(&self, bits: u128) -> bool {
        let behind = self.0.partition_point(|(first, _)| *first <= bits);
        let nearest = behind.checked_sub(1).and_then(|index| self.0.get(index));
        nearest.is_some_and(|(_, last)| bits <= *last)
    }
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The network without host bits; one within the IPv4-mapped addresses becomes IPv4.
fn canonical_net(net: IpNet) -> IpNet {
    let address = canonical(net.network());
    let mapped = net.prefix_len().checked_sub(MAPPED_BITS).filter(|_| address != net.network());
    mapped.and_then(|prefix| IpNet::new(address, prefix).ok()).unwrap_or(net).trunc()
}

/// Digits only: a number type's own parser would also take `+8`.
fn parse_prefix(text: &str) -> Option<u8> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn networks(texts: &[&str]) -> Networks {
        texts.iter().map(|text| Networks::parse_net(text).unwrap()).collect()
    }

    #[test]
    fn a_subject_is_an_ipv4_address_or_an_ipv6_network() {
        let shown = |text, prefix| client_network(ip(text), prefix).to_string();
        assert_eq!(shown("192.0.2.1", 64), "192.0.2.1");
        assert_eq!(shown("::ffff:192.0.2.1", 64), "192.0.2.1");
        assert_eq!(shown("2001:db8:1:2:3:4:5:6", 64), "2001:db8:1:2::/64");
        assert_eq!(shown("2001:db8::1", 128), "2001:db8::1");
        assert_eq!(shown("2001:db8::1", 200), "2001:db8::1");
        assert_eq!(shown("2001:db8::1", 0), "::/0");
    }

    #[test]
    fn key_bytes_tell_families_and_prefixes_apart() {
        let key = |text, prefix| client_network(ip(text), prefix).key_bytes();
        assert_eq!(key("1.2.3.4", 64), key("::ffff:1.2.3.4", 48));
        assert_ne!(key("1.2.3.4", 64), key("102:304::", 64));
        assert_ne!(key("2001:db8::", 64), key("2001:db8::", 48));
        assert_eq!(key("2001:db8::1", 64), key("2001:db8::2", 64));
    }

    #[test]
    fn networks_are_read_in_one_spelling() {
        let shown = |text| Networks::parse_net(text).unwrap().to_string();
        assert_eq!(shown("10.1.2.3/8"), "10.0.0.0/8");
        assert_eq!(shown("10.1.2.3"), "10.1.2.3/32");
        assert_eq!(shown("::1"), "::1/128");
        assert_eq!(shown("::ffff:10.0.0.0/104"), "10.0.0.0/8");
        assert_eq!(shown("::ffff:10.0.0.1"), "10.0.0.1/32");
    }

    #[test]
    fn what_is_not_a_network_says_what_was_expected() {
        for (text, expected) in [
            ("", "an address"),
            ("10.0.0/8", "an address"),
            ("host/8", "an address"),
            (" ::1", "an address"),
            ("10.0.0.0/", "0 to 32"),
            ("10.0.0.0/33", "0 to 32"),
            ("10.0.0.0/+8", "0 to 32"),
            ("::1/129", "0 to 128"),
            ("::1/64/2", "0 to 128"),
            ("::ffff:10.0.0.0/8", "96 to 128"),
        ] {
            let error = Networks::parse_net(text).unwrap_err();
            assert!(error.to_string().contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn families_do_not_leak_into_each_other() {
        assert!(networks(&["10.0.0.0/8"]).contains(ip("::ffff:10.1.2.3")));
        assert!(networks(&["::ffff:10.0.0.0/104"]).contains(ip("10.1.2.3")));
        assert!(!networks(&["::/0"]).contains(ip("10.1.2.3")));
        assert!(!networks(&["0.0.0.0/0"]).contains(ip("::1")));
        assert!(networks(&["0.0.0.0/0", "::/0"]).contains(ip("255.255.255.255")));
        assert!(networks(&["::/0"]).contains(ip("ffff::")));
        assert!(networks(&[]).is_empty() && !networks(&[]).contains(ip("::")));
    }

    #[test]
    fn neighbours_merge_into_one_range() {
        let merged = networks(&["10.0.0.0/9", "10.128.0.0/9", "10.1.0.0/16", "12.0.0.0/8"]);
        assert_eq!(merged.v4.0.len(), 2);
        assert!(!merged.contains(ip("11.0.0.0")) && merged.contains(ip("10.255.255.255")));
    }

    proptest! {
        #[test]
        fn asking_the_set_is_asking_each_network(
            nets in prop::collection::vec((any::<[u8; 4]>(), 0u8..=32), 0..20),
            address in any::<[u8; 4]>(),
        ) {
            let nets: Vec<IpNet> =
                nets.into_iter().map(|(ip, prefix)| IpNet::new(ip.into(), prefix).unwrap()).collect();
            let set: Networks = nets.iter().copied().collect();
            let edges = nets.iter().flat_map(|net| {
                let (first, last) = (bits(net.network()), bits(net.broadcast()));
                [first, last, first.wrapping_sub(1), last + 1]
            });
            let edges = edges.filter_map(|bits| Some(Ipv4Addr::from_bits(u32::try_from(bits).ok()?).into()));
            for ip in edges.chain([IpAddr::from(address)]) {
                prop_assert_eq!(set.contains(ip), nets.iter().any(|net| net.contains(&ip)), "{}", ip);
            }
        }

        #[test]
        fn no_text_breaks_the_parser(text in "\\PC*|[0-9a-f:./]{0,20}") {
            let _ = Networks::parse_net(&text);
        }
    }
}
