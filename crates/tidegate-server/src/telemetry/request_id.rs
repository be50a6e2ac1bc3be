//! Request ids, by which a refusal in the log is found again.

use std::cell::RefCell;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

use http::{HeaderMap, HeaderValue};

/// The header that carries it.
pub(crate) const HEADER: &str = "x-request-id";
/// The longest that is taken from a client.
const LENGTH_MAX: usize = 128;

/// The id of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestId(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// Visible ASCII, checked.
    Given(HeaderValue),
    Made(u128),
}

impl RequestId {
    /// The id that came with the request if it is sane (one, at most 128 visible ASCII characters),
    /// else a new one.
    #[must_use]
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut given = headers.get_all(HEADER).iter();
        match (given.next(), given.next()) {
            (Some(id), None) if is_sane(id.as_bytes()) => Self(Kind::Given(id.clone())),
            _ => Self::random(),
        }
    }

    /// A new one: 128 random bits.
    #[must_use]
    pub(crate) fn random() -> Self {
        Self(Kind::Made(random()))
    }

    /// As a header, to pass on.
    #[must_use]
    pub(crate) fn to_header(&self) -> HeaderValue {
        match &self.0 {
            Kind::Given(id) => id.clone(),
            // Hexadecimal digits are always a header value.
            Kind::Made(_) => HeaderValue::from_str(&self.to_string())
                .unwrap_or_else(|_| HeaderValue::from_static("")),
        }
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            // It was checked to be ASCII.
            Kind::Given(id) => f.write_str(id.to_str().unwrap_or_default()),
            Kind::Made(id) => write!(f, "{id:032x}"),
        }
    }
}

fn is_sane(id: &[u8]) -> bool {
    (1..=LENGTH_MAX).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
}

/// Ids need not be secret, but must not meet on two nodes: each thread draws from two generators
/// that the operating system's randomness starts.
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
