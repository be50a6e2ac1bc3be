//! The client's address behind trusted proxies.
//!
//! Each proxy appends the hop it saw, so the right end of the header is what trusted hops wrote and
//! the left end is what the client sent. Everything here reads from the right, quotes included:
//! a quote that a client leaves open on the left cannot swallow what a proxy wrote behind it.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::address::{Networks, canonical};

/// The most hops that are walked; no honest chain is nearly as long.
const HOPS_MAX: usize = 64;

/// The one header that a policy lets trusted proxies name clients in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForwardingHeader {
    /// `X-Forwarded-For`: addresses with commas between them.
    XForwardedFor,
    /// `Forwarded`, RFC 7239: elements with a `for=` each.
    Forwarded,
    /// `X-Real-IP`: one address.
    XRealIp,
}

impl ForwardingHeader {
    /// All of them, for error messages that list what is known.
    pub const ALL: [Self; 3] = [Self::XForwardedFor, Self::Forwarded, Self::XRealIp];

    /// The header's name in lower case.
    #[must_use]
    pub const fn header_name(self) -> &'static str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
            Self::XRealIp => "x-real-ip",
        }
    }

    /// The header of that name, in any case.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.header_name().eq_ignore_ascii_case(text))
    }
}

/// The client's address: the first hop, from the socket's peer backwards through all lines of the
/// header, that is not a trusted proxy.
///
/// An entry that is not an address ends the walk: the hop that reported it is the client. Where all
/// hops are trusted, the furthest one is. A line that is not text must be given as an empty line,
/// not left out, or what stands to its left would be believed.
#[must_use]
pub fn client_address<'a>(
    peer: IpAddr,
    kind: ForwardingHeader,
    lines: impl DoubleEndedIterator<Item = &'a str>,
    trusted: &Networks,
) -> IpAddr {
    let mut client = canonical(peer);
    if !trusted.contains(client) {
        return client;
    }
    let entries = lines.rev().flat_map(|line| entries_from_right(kind, line));
    for entry in entries.take(HOPS_MAX) {
        let Some(hop) = entry_address(kind, entry) else { return client };
        client = hop;
        if !trusted.contains(client) {
            return client;
        }
    }
    client
}

fn entries_from_right(kind: ForwardingHeader, line: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let (before, entry) = match kind {
            ForwardingHeader::XRealIp => (None, rest?),
            ForwardingHeader::XForwardedFor | ForwardingHeader::Forwarded => cut_last(rest?, b','),
        };
        rest = before;
        Some(entry)
    })
}

fn entry_address(kind: ForwardingHeader, entry: &str) -> Option<IpAddr> {
    match kind {
        ForwardingHeader::XForwardedFor | ForwardingHeader::XRealIp => parse_hop(trim(entry)),
        ForwardingHeader::Forwarded => parse_hop(&forwarded_for(entry)?),
    }
}

/// What stands behind the last separator that is not within quotes, and what stands before it.
fn cut_last(text: &str, separator: u8) -> (Option<&str>, &str) {
    let bytes = text.as_bytes();
    let mut quoted = false;
    for (index, byte) in bytes.iter().enumerate().rev() {
        if *byte == b'"' {
            let before = bytes.get(..index).unwrap_or_default();
            let backslashes = before.iter().rev().take_while(|byte| **byte == b'\\').count();
            quoted ^= backslashes.is_multiple_of(2);
        } else if *byte == separator
            && !quoted
            && let (Some(before), Some(behind)) = (text.get(..index), text.get(index + 1..))
        {
            return (Some(before), behind);
        }
    }
    (None, text)
}

/// The value of `for=` in one element of a `Forwarded` header. Named twice, it says nothing.
fn forwarded_for(element: &str) -> Option<Cow<'_, str>> {
    let mut rest = Some(element);
    let mut found = None;
    while let Some(pairs) = rest {
        let (before, pair) = cut_last(pairs, b';');
        rest = before;
        let Some((name, value)) = trim(pair).split_once('=') else { continue };
        if name.eq_ignore_ascii_case("for") && found.replace(value).is_some() {
            return None;
        }
    }
    unquote(found?)
}

/// A token as it is, or a quoted string without its quotes and escapes.
fn unquote(value: &str) -> Option<Cow<'_, str>> {
    let Some(open) = value.strip_prefix('"') else { return Some(Cow::Borrowed(value)) };
    let inner = open.strip_suffix('"')?;
    if !inner.contains('\\') {
        return Some(Cow::Borrowed(inner));
    }
    let mut letters = inner.chars();
    let mut plain = String::with_capacity(inner.len());
    while let Some(letter) = letters.next() {
        plain.push(if letter == '\\' { letters.next()? } else { letter });
    }
    Some(Cow::Owned(plain))
}

/// `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:80`.
fn parse_hop(text: &str) -> Option<IpAddr> {
    if let Some(open) = text.strip_prefix('[') {
        let (address, port) = open.split_once(']')?;
        let address: Ipv6Addr = address.parse().ok()?;
        let port_fits = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        return port_fits.then(|| canonical(address.into()));
    }
    if let Ok(address) = text.parse() {
        return Some(canonical(address));
    }
    let (address, port) = text.split_once(':')?;
    let address: Ipv4Addr = address.parse().ok()?;
    is_port(port).then_some(address.into())
}

/// A port's number, or a name that hides it, which RFC 7239 allows.
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(hidden) => {
            let is_hidden = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
            !hidden.is_empty() && hidden.bytes().all(is_hidden)
        }
        None => text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u16>().is_ok(),
    }
}

fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

#[cfg(test)]
mod tests {
    use super::ForwardingHeader::{Forwarded, XForwardedFor, XRealIp};
    use super::*;
    use proptest::prelude::*;

    const PROXY: &str = "10.0.0.1";

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn trusted() -> Networks {
        ["10.0.0.0/8", "fd00::/8"].iter().map(|net| Networks::parse_net(net).unwrap()).collect()
    }

    fn client(kind: ForwardingHeader, lines: &[&str]) -> String {
        client_address(ip(PROXY), kind, lines.iter().copied(), &trusted()).to_string()
    }

    #[test]
    fn headers_are_known_by_name() {
        for kind in ForwardingHeader::ALL {
            assert_eq!(ForwardingHeader::parse(kind.header_name()), Some(kind));
        }
        assert_eq!(ForwardingHeader::parse("X-Forwarded-For"), Some(XForwardedFor));
        assert_eq!(ForwardingHeader::parse("via"), None);
    }

    #[test]
    fn the_first_untrusted_hop_from_the_right_is_the_client() {
        assert_eq!(client(XForwardedFor, &["6.6.6.6, 203.0.113.9"]), "203.0.113.9");
        assert_eq!(client(XForwardedFor, &["6.6.6.6,203.0.113.9 ,\t10.0.0.2"]), "203.0.113.9");
        assert_eq!(
            client(XForwardedFor, &["6.6.6.6", "203.0.113.9", "10.0.0.2, fd00::1"]),
            "203.0.113.9"
        );
        assert_eq!(client(XForwardedFor, &["10.0.0.4, 10.0.0.3"]), "10.0.0.4");
        assert_eq!(client(XForwardedFor, &[]), PROXY);
        assert_eq!(client(XRealIp, &["203.0.113.9"]), "203.0.113.9");
    }

    #[test]
    fn an_untrusted_peer_cannot_speak_for_others() {
        let peer = ip("::ffff:198.51.100.1");
        let client = client_address(peer, XForwardedFor, ["10.0.0.9"].into_iter(), &trusted());
        assert_eq!(client, ip("198.51.100.1"));
    }

    #[test]
    fn addresses_come_in_many_spellings() {
        for (entry, expected) in [
            ("1.2.3.4:80", "1.2.3.4"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:db8::1]:443", "2001:db8::1"),
            ("2001:db8::1", "2001:db8::1"),
            ("::ffff:1.2.3.4", "1.2.3.4"),
            ("[::ffff:1.2.3.4]:1", "1.2.3.4"),
        ] {
            assert_eq!(client(XForwardedFor, &[entry]), expected, "{entry}");
            assert_eq!(client(Forwarded, &[&format!("for=\"{entry}\"")]), expected, "{entry}");
        }
    }

    #[test]
    fn what_is_not_an_address_ends_the_walk() {
        let ascii = "unknown _hidden 1.2.3 1.2.3.4: 1.2.3.4:x 1.2.3.4:+8 1.2.3.4:99999 [::1 [::1]80 \
                     [1.2.3.4] fe80::1%eth0";
        let others = ["", "1.2.3.4\u{0}", "1.2.3.4\u{a0}", "\u{0661}.2.3.4"];
        for entry in ascii.split(' ').chain(others) {
            let line = format!("6.6.6.6, {entry}, 10.0.0.7");
            assert_eq!(client(XForwardedFor, &[&line]), "10.0.0.7", "{entry}");
        }
        assert_eq!(client(XForwardedFor, &["6.6.6.6", ""]), PROXY);
        assert_eq!(client(XRealIp, &["6.6.6.6, 10.0.0.2"]), PROXY);
    }

    #[test]
    fn forwarded_elements_are_read_with_their_quotes() {
        for (line, expected) in [
            ("for=6.6.6.6, For=203.0.113.9;proto=https;by=10.0.0.1", "203.0.113.9"),
            ("proto=http; FOR=\"[2001:db8::1]:4711\"", "2001:db8::1"),
            ("for=203.0.113.9;host=\"a, for=6.6.6.6; b\"", "203.0.113.9"),
            ("for=203.0.113.9;host=\"a\\\", for=6.6.6.6\"", "203.0.113.9"),
            ("for=203.0.113.9;host=\"a\\\\\", for=10.0.0.8", "203.0.113.9"),
            ("for=\"\\2\\03.0.113.9\"", "203.0.113.9"),
            ("for=\"203.0.113.9:_port\"", "203.0.113.9"),
            ("for=unknown", PROXY),
            ("for=_hidden, for=10.0.0.2", "10.0.0.2"),
            ("proto=https", PROXY),
            ("for=203.0.113.9;for=6.6.6.6", PROXY),
            ("for=\"203.0.113.9", PROXY),
            ("for=\"1\\\"", PROXY),
        ] {
            assert_eq!(client(Forwarded, &[line]), expected, "{line}");
        }
    }

    #[test]
    fn a_quote_left_open_by_the_client_hides_no_proxy() {
        for opened in ["for=\"", "for=\"\\", "\"", "for=6.6.6.6;host=\"x"] {
            assert_eq!(client(Forwarded, &[&format!("{opened}, for=203.0.113.9")]), "203.0.113.9");
        }
    }

    #[test]
    fn the_walk_is_bounded() {
        let line = (0..=255).rev().map(|n| format!("10.0.1.{n}")).collect::<Vec<_>>().join(",");
        assert_eq!(client(XForwardedFor, &[&line]), "10.0.1.63");
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_walk(
            kind in prop::sample::select(ForwardingHeader::ALL.to_vec()),
            lines in prop::collection::vec("\\PC*|(for=|[\"\\\\,;:.1a\\[\\]]){0,30}", 0..4),
        ) {
            let lines = || lines.iter().map(String::as_str);
            let _ = client_address(ip(PROXY), kind, lines(), &trusted());
            prop_assert_eq!(client_address(ip("192.0.2.1"), kind, lines(), &trusted()), ip("192.0.2.1"));
        }

        #[test]
        fn nothing_left_of_an_untrusted_hop_is_believed(
            left in "\\PC{0,20}|(for=6.6.6.6|[\"\\\\,; ]){0,8}",
            client_octet in 1u8..=9,
            proxies in prop::collection::vec(1u8..=9, 0..5),
            split_lines in any::<bool>(),
        ) {
            let shown = format!("203.0.113.{client_octet}");
            let hops = || [shown.clone()].into_iter().chain(proxies.iter().map(|n| format!("10.0.0.{n}")));
            let plain = hops().collect::<Vec<_>>();
            let rfc = hops().map(|hop| format!("for=\"{hop}\"")).collect();
            for (kind, mut entries) in [(XForwardedFor, plain), (Forwarded, rfc)] {
                entries.insert(0, left.clone());
                let lines = if split_lines { entries } else { vec![entries.join(", ")] };
                let lines: Vec<_> = lines.iter().map(String::as_str).collect();
                prop_assert_eq!(client(kind, &lines), shown.as_str());
            }
        }
    }
}
