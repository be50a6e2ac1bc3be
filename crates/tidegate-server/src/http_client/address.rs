//! Which addresses the client may connect to: any, or public ones and those that the operator allows.
//!
//! The author of a policy, or of a DNS entry, must not make this daemon connect to a private service
//! that only this daemon can reach.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;

use tidegate::engine::identity::{Networks, canonical};

/// Where clouds give a machine its credentials. No operator can allow these addresses.
static METADATA: LazyLock<Networks> = LazyLock::new(|| {
    networks(&[
        "169.254.0.0/16",
        "100.100.100.200",
        "192.0.0.192",
        "168.63.129.16",
        "fd00:ec2::/32",
        "fd20:ce::/32",
    ])
});

/// The networks that are not public, by the special-purpose registries of IANA. All IPv6 networks
/// outside of the global unicast addresses, `2000::/3`, are not public either.
static PRIVATE: LazyLock<Networks> = LazyLock::new(|| {
    networks(&[
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        // Multicast, reserved and broadcast.
        "224.0.0.0/3",
        // Protocol assignments with Teredo, documentation, and 6to4, which may stand for any IPv4.
        "2001::/23",
        "2001:db8::/32",
        "2002::/16",
        "3fff::/20",
    ])
});

fn networks(list: &[&str]) -> Networks {
    list.iter().flat_map(|network| Networks::parse_net(network)).collect()
}

/// Which addresses a client may connect to.
#[derive(Clone, Debug)]
pub enum AddressFilter {
    /// All of them.
    Any,
    /// Public addresses, and private networks that the operator allows.
    Public {
        /// Private networks that are allowed too.
        besides: Networks,
    },
}

impl AddressFilter {
    /// True if a client may connect to this address.
    pub(crate) fn allows(&self, ip: IpAddr) -> bool {
        let Self::Public { besides } = self else { return true };
        let target = translate(ip);
        !METADATA.contains(target)
            && (is_public(target) || besides.contains(target) || besides.contains(ip))
    }
}

/// The address that a connection reaches in the end: IPv4 that is written or translated as IPv6 is
/// IPv4.
fn translate(ip: IpAddr) -> IpAddr {
    match canonical(ip) {
        // Behind NAT64, as `64:ff9b::192.0.2.1`.
        IpAddr::V6(v6) if v6.segments()[..6] == [0x64, 0xff9b, 0, 0, 0, 0] => {
            let [.., a, b, c, d] = v6.octets();
            Ipv4Addr::new(a, b, c, d).into()
        }
        ip => ip,
    }
}

fn is_public(ip: IpAddr) -> bool {
    let is_global = match ip {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => v6.segments()[0] >> 13 == 1,
    };
    is_global && !PRIVATE.contains(ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(address: &str, networks: &[&str]) -> bool {
        let besides = networks.iter().map(|network| Networks::parse_net(network).unwrap());
        AddressFilter::Public { besides: besides.collect() }.allows(address.parse().unwrap())
    }

    #[test]
    fn public_addresses_are_allowed() {
        for address in [
            "1.1.1.1",
            "93.184.215.14",
            "172.15.255.255",
            "172.32.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "223.255.255.255",
            "2606:4700:4700::1111",
            "2a00:1450::1",
            "::ffff:1.1.1.1",
            "64:ff9b::1.1.1.1",
        ] {
            assert!(allows(address, &[]), "{address}");
        }
    }

    #[test]
    fn private_addresses_are_forbidden() {
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.1.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b::127.0.0.1",
            "64:ff9b:1::1.1.1.1",
            "100::1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::1",
            "3fff::1",
            "4000::1",
        ] {
            assert!(!allows(address, &[]), "{address}");
        }
    }

    #[test]
    fn networks_of_the_operator_are_allowed_in_every_notation() {
        for address in ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3"] {
            assert!(allows(address, &["10.1.0.0/16"]), "{address}");
        }
        assert!(!allows("10.2.0.1", &["10.1.0.0/16"]));
        assert!(allows("fd00::7", &["fd00::/8"]));
    }

    #[test]
    fn metadata_services_are_always_forbidden() {
        let everything = ["0.0.0.0/0", "::/0"];
        for address in [
            "169.254.169.254",
            "169.254.170.2",
            "169.254.0.23",
            "169.254.170.23",
            "fd00:ec2::23",
            "fd20:ce::254",
            "100.100.100.200",
            "192.0.0.192",
            "168.63.129.16",
            "fd00:ec2::254",
            "::ffff:169.254.169.254",
            "64:ff9b::169.254.169.254",
        ] {
            assert!(!allows(address, &everything), "{address}");
        }
    }
}
