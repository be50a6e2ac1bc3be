//! The port of a URL.

use http::uri::Authority;

/// The port that a URL names, else that of its scheme; `None` where what it names is no port.
pub(crate) fn port(authority: &Authority, is_tls: bool) -> Option<u16> {
    let whole = authority.as_str();
    let place = whole.rsplit_once('@').map_or(whole, |(_, place)| place);
    match place.strip_prefix(authority.host()) {
        Some("") => Some(if is_tls { 443 } else { 80 }),
        _ => authority.port_u16().filter(|port| *port > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_the_one_that_is_named_or_none() {
        for (authority, found) in [
            ("example.com", Some(443)),
            ("me:pw@example.com", Some(443)),
            ("example.com:8443", Some(8443)),
            ("[::1]", Some(443)),
            ("[::1]:80", Some(80)),
            ("example.com:99999", None),
            ("example.com:0", None),
            ("example.com:", None),
            ("[::1]:65536", None),
        ] {
            assert_eq!(port(&authority.parse().unwrap(), true), found, "{authority}");
        }
        assert_eq!(port(&Authority::from_static("example.com"), false), Some(80));
    }
}
