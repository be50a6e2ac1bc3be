//! Request ids, which connect a refusal with its log line.

use std::cell::RefCell;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

use http::{HeaderMap, HeaderValue};

/// The header of the id.
pub(crate) const HEADER: &str = "x-request-id";
/// The longest id that a client may choose.
const LENGTH_MAX: usize = 128;

/// The id of one request: visible ASCII characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestId(HeaderValue);

impl RequestId {
    /// The id in the headers if there is one of at most 128 visible ASCII characters, else a new one.
    #[must_use]
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut given = headers.get_all(HEADER).iter();
        match (given.next(), given.next()) {
            (Some(id), None) if is_sane(id.as_bytes()) => Self(id.clone()),
            _ => Self::random(),
        }
    }

    /// A new id: 128 random bits.
    #[must_use]
    pub(crate) fn random() -> Self {
        // Hexadecimal digits are always a header value.
        let id = HeaderValue::try_from(format!("{:032x}", random()));
        Self(id.unwrap_or_else(|_| HeaderValue::from_static("")))
    }

    /// The header to forward.
    #[must_use]
    pub(crate) fn to_header(&self) -> HeaderValue {
        self.0.clone()
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_str().unwrap_or_default())
    }
}

fn is_sane(id: &[u8]) -> bool {
    (1..=LENGTH_MAX).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
}

/// Ids need not be secret, but must differ between nodes: each thread has two generators, seeded by
/// the operating system.
fn random() -> u128 {
    thread_local! {
        static HALVES: RefCell<[fastrand::Rng; 2]> = RefCell::new([seeded(), seeded()]);
    }
    HALVES.with_borrow_mut(|[high, low]| u128::from(high.u64(..)) << 64 | u128::from(low.u64(..)))
}

fn seeded() -> fastrand::Rng {
    fastrand::Rng::with_seed(RandomState::new().build_hasher().finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&[u8]]) -> String {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(HEADER, HeaderValue::from_bytes(value).unwrap());
        }
        RequestId::of(&headers).to_string()
    }

    #[test]
    fn a_sane_id_is_kept() {
        assert_eq!(of(&[b"a-1/{}\"x"]), "a-1/{}\"x");
        let longest = "x".repeat(128);
        assert_eq!(of(&[longest.as_bytes()]), longest);
    }

    #[test]
    fn an_id_that_is_not_sane_is_replaced() {
        let long = [b'x'; 129];
        let cases: [&[&[u8]]; 6] =
            [&[], &[b""], &[b"a b"], &["ü".as_bytes()], &[&long], &[b"a", b"b"]];
        for values in cases {
            let made = of(values);
            assert_eq!(made.len(), 32, "{made}");
            assert!(made.bytes().all(|b| b.is_ascii_hexdigit()), "{made}");
        }
    }

    #[test]
    fn made_ids_differ_and_pass_on_as_they_are_logged() {
        let (one, two) = (RequestId::random(), RequestId::random());
        assert_ne!(one, two);
        assert_eq!(one.to_header().to_str().unwrap(), one.to_string());
    }
}
