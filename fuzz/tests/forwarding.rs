//! Forwarding headers: whatever a client sends, it cannot choose its address.

#![allow(clippy::unwrap_used, reason = "a target that cannot be set up must fail")]

use std::net::IpAddr;

use bolero::check;
use tidegate::engine::identity::{ForwardingHeader, Networks, canonical, client_address};
use tidegate_fuzz::{Choices, bytes, corpus};

const WORDS: [&str; 34] = [
    "10.0.0.1",
    "10.0.0.2",
    "203.0.113.7",
    "198.51.100.9",
    "2001:db8::1",
    "[2001:db8::2]",
    "[2001:db8::3]:80",
    "::ffff:10.0.0.3",
    "::ffff:203.0.113.8",
    "203.0.113.9:80",
    "10.0.0.4:_x",
    "fd00::1",
    "[fd00::2]",
    ",",
    ", ",
    " ",
    "\t",
    "\"",
    "\\",
    "\\\"",
    ";",
    "for=",
    "For=",
    "by=",
    "proto=https",
    "for=\"[fd00::3]:1\"",
    "for=203.0.113.10",
    "unknown",
    "_hidden",
    "=",
    "]",
    "[",
    "for=\"10.0.0.5\"",
    "é",
];

#[test]
fn the_corpus_holds() {
    for text in corpus("forwarding") {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        ForwardingHeader::ALL.into_iter().for_each(|kind| lines_hold(kind, &lines));
    }
}

#[test]
fn arbitrary_lines() {
    check!().with_iterations(10_000).with_generator(bytes(256)).for_each(|bytes: &Vec<u8>| {
        let mut choices = Choices::new(bytes);
        let kind = choices.pick(&ForwardingHeader::ALL).copied().unwrap();
        let mut lines: Vec<String> =
            (0..choices.below(5)).map(|_| choices.text(&WORDS, 12)).collect();
        if choices.flag() {
            lines.push(choices.rest());
        }
        lines_hold(kind, &lines);
    });
}

/// The entry of a trusted hop at the right end decides, whatever stands to its left.
#[test]
fn nothing_left_of_an_untrusted_hop_counts() {
    check!().with_iterations(10_000).with_generator(bytes(256)).for_each(|bytes: &Vec<u8>| {
        let mut choices = Choices::new(bytes);
        let kind = *choices.pick(&ForwardingHeader::ALL[..2]).unwrap();
        let hop = |address: &str| match kind {
            ForwardingHeader::Forwarded => format!("for=\"{address}\";proto=http"),
            _ => address.to_owned(),
        };
        let right = (0..choices.below(4)).map(|n| hop(&format!("10.0.0.{n}")));
        let written: Vec<String> = [hop("192.0.2.77")].into_iter().chain(right).collect();
        let mut lines = vec![choices.text(&WORDS, 16)];
        match choices.flag() {
            true => lines.extend(written),
            false => lines[0] = format!("{}, {}", lines[0], written.join(", ")),
        }
        let client = address(kind, "10.0.0.9", &lines);
        assert_eq!(client, "192.0.2.77".parse::<IpAddr>().unwrap(), "{kind:?} {lines:?}");
    });
}

fn lines_hold(kind: ForwardingHeader, lines: &[String]) {
    for peer in ["203.0.113.99", "2001:db8::99", "::ffff:203.0.113.99"] {
        let itself = canonical(peer.parse().unwrap());
        assert_eq!(address(kind, peer, lines), itself, "an untrusted peer is the client");
    }
    for peer in ["10.0.0.9", "fd00::9", "::ffff:10.0.0.9"] {
        let itself = canonical(peer.parse().unwrap());
        let client = address(kind, peer, lines);
        let named = || lines.iter().any(|line| names(line).any(|named| named == client));
        assert!(client == itself || named(), "{client} from {kind:?} {lines:?}");
        assert_eq!(client, canonical(client));
    }
}

fn address(kind: ForwardingHeader, peer: &str, lines: &[String]) -> IpAddr {
    let nets = ["10.0.0.0/8", "fd00::/16"].map(|net| Networks::parse_net(net).unwrap());
    let trusted: Networks = nets.into_iter().collect();
    client_address(peer.parse().unwrap(), kind, lines.iter().map(String::as_str), &trusted)
}

/// Every address that a line could name, without escapes.
fn names(line: &str) -> impl Iterator<Item = IpAddr> {
    let plain = line.replace('\\', "");
    let pieces: Vec<String> = plain
        .split([' ', '\t', ',', ';', '=', '"', '[', ']'])
        .flat_map(|piece| [Some(piece), piece.rsplit_once(':').map(|(address, _)| address)])
        .flatten()
        .map(str::to_owned)
        .collect();
    pieces.into_iter().filter_map(|piece| piece.parse().ok().map(canonical))
}
