//! Which addresses a webhook may have: public ones, and those that the operator allows besides.
//!
//! Whoever writes a policy, or a name in the DNS, must not make this daemon speak to what only this
//! daemon can reach.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tidegate::identity::{Networks, canonical};

/// Where clouds tell a machine its credentials: on the link, and at a few addresses besides. Nothing
/// that an operator allows covers these.
const METADATA_V4: [(Ipv4Addr, u32); 4] = [
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(100, 100, 100, 200), 32),
    (Ipv4Addr::new(192, 0, 0, 192), 32),
    (Ipv4Addr::new(168, 63, 129, 16), 32),
];
const METADATA_V6: [(Ipv6Addr, u32); 2] = [
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0), 32),
];

/// What of IPv4 is not the public internet (the special-purpose registry of IANA).
const PRIVATE_V4: [(Ipv4Addr, u32); 14] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    // Multicast, reserved and broadcast.
    (Ipv4Addr::new(224, 0, 0, 0), 3),
];

/// What of the global unicast IPv6 addresses is not the public internet: protocol assignments with
/// Teredo, documentation, 6to4 (which may stand for any IPv4 address).
const PRIVATE_V6: [(Ipv6Addr, u32); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

/// Whether a webhook may be at this address.
pub(super) fn may_be_told(ip: IpAddr, allowed: &Networks) -> bool {
    let meant = meant(ip);
    if is_metadata(meant) {
        return false;
    }
    is_public(meant) || allowed.contains(meant) || allowed.contains(ip)
}

/// Whom an address leads to in the end: IPv4 that is written or translated as IPv6 is IPv4.
fn meant(ip: IpAddr) -> IpAddr {
    match canonical(ip) {
        // Behind NAT64, as `64:ff9b::192.0.2.1`.
        IpAddr::V6(v6) if v6.segments()[..6] == [0x64, 0xff9b, 0, 0, 0, 0] => {
            let [.., a, b, c, d] = v6.octets();
            Ipv4Addr::new(a, b, c, d).into()
        }
        ip => ip,
    }
}

fn is_metadata(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => is_in_v4(v4, &METADATA_V4),
        IpAddr::V6(v6) => is_in_v6(v6, &METADATA_V6),
    }
}

fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => !is_in_v4(v4, &PRIVATE_V4),
        // Of all IPv6 only 2000::/3 is global unicast.
        IpAddr::V6(v6) => v6.segments()[0] >> 13 == 1 && !is_in_v6(v6, &PRIVATE_V6),
    }
}

fn is_in_v4(ip: Ipv4Addr, networks: &[(Ipv4Addr, u32)]) -> bool {
    let differs = |network: &Ipv4Addr| (ip.to_bits() ^ network.to_bits()).leading_zeros();
    networks.iter().any(|(network, prefix)| differs(network) >= *prefix)
}

fn is_in_v6(ip: Ipv6Addr, networks: &[(Ipv6Addr, u32)]) -> bool {
    let differs = |network: &Ipv6Addr| (ip.to_bits() ^ network.to_bits()).leading_zeros();
    networks.iter().any(|(network, prefix)| differs(network) >= *prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(networks: &[&str]) -> Networks {
        networks.iter().map(|network| Networks::parse_net(network).unwrap()).collect()
    }

    fn may(address: &str, networks: &[&str]) -> bool {
        may_be_told(address.parse().unwrap(), &allowed(networks))
    }

    #[test]
    fn public_addresses_may_be_told() {
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
            assert!(may(address, &[]), "{address}");
        }
    }

    #[test]
    fn nothing_that_only_this_host_reaches_may_be_told() {
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
            assert!(!may(address, &[]), "{address}");
        }
    }

    #[test]
    fn what_the_operator_allows_may_be_told_in_every_spelling() {
        for address in ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3"] {
            assert!(may(address, &["10.1.0.0/16"]), "{address}");
        }
        assert!(!may("10.2.0.1", &["10.1.0.0/16"]));
        assert!(may("fd00::7", &["fd00::/8"]));
    }

    #[test]
    fn metadata_services_are_never_told() {
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
            assert!(!may(address, &everything), "{address}");
        }
    }
}
