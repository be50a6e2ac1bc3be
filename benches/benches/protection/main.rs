//! Protection at its full size: ten thousand networks, the countries of the whole internet, a million
//! bans. Each must cost about as much as a few of them. `-- bans` measures the bans alone.

#![allow(clippy::unwrap_used, reason = "a benchmark may stop at the first surprise")]

mod bans;

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use tidegate::engine::Countries as _;
use tidegate::engine::identity::Networks;
use tidegate::{Limiter, Policy, Request};
use tidegate_benches::{Candidate, compare};
use tidegate_server::GeoIp;
use tidegate_testkit::geography::{RecordForm, database};

/// About as many networks as free databases of countries have.
const NETWORKS: u32 = 300_000;

fn main() {
    if !std::env::args().any(|asked| asked == "bans") {
        networks();
        blocked();
        countries();
    }
    bans::all();
}

/// A pseudo-random address, the same in every run.
fn address(turn: u32) -> IpAddr {
    Ipv4Addr::from_bits(turn.wrapping_mul(2_654_435_761).rotate_left(7)).into()
}

fn next(turn: &mut u32) -> IpAddr {
    *turn = turn.wrapping_add(1);
    address(*turn)
}

fn networks() {
    let set = |count: u32| -> Networks {
        (0..count).map(|n| Networks::parse_net(&format!("{}/24", address(n))).unwrap()).collect()
    };
    let (few, many) = (set(10), set(10_000));
    let (mut one, mut other) = (0, 0);
    compare(
        "is an address in one of these networks",
        vec![
            Candidate::new("10 networks", || few.contains(next(&mut one))),
            Candidate::new("10,000 networks", || many.contains(next(&mut other))),
        ],
    );
}

/// The same as part of a decision.
fn blocked() {
    let limiter = |count: u32| {
        let mut text =
            "tidegate: 1\nname: b\nlimits: { a: { by: ip, token_bucket: 1m/s } }\nblock:\n  ips:\n"
                .to_owned();
        for n in 0..count {
            writeln!(text, "    - {}/24", address(n)).unwrap();
        }
        Limiter::builder().policy(Policy::parse("b.yaml", &text).unwrap()).build().unwrap()
    };
    let (few, many) = (limiter(10), limiter(10_000));
    let request = Request::new("GET", "/").ip([10, 1, 2, 3].into());
    compare(
        "a decision with blocked networks",
        vec![
            Candidate::new("10 networks", || few.check(&request).unwrap()),
            Candidate::new("10,000 networks", || many.check(&request).unwrap()),
        ],
    );
}

fn countries() {
    let codes = ["DE", "FR", "US", "JP", "BR", "IN", "CN", "GB"];
    let place = |n: u32| (address(n), 24, codes[n as usize % codes.len()]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("countries.mmdb");
    let networks: Vec<_> = (0..NETWORKS).map(place).collect();
    std::fs::write(&file, database(RecordForm::Nested, &networks)).unwrap();
    let given = std::env::var_os("TIDEGATE_TEST_GEOIP");
    let geoip = GeoIp::load(Some(given.as_deref().map_or(&*file, Path::new))).unwrap();
    let (mut one, mut other) = (0, 0);
    compare(
        "the country of an address (must: less than 1,000 ns)",
        vec![
            Candidate::new("any address", || geoip.country(next(&mut one))),
            Candidate::new("one that is in a network", || {
                other = (other + 1) % NETWORKS;
                geoip.country(address(other))
            }),
        ],
    );
}
