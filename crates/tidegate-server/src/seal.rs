//! Leases that travel: encrypted and signed, so that only nodes with the deployment's secret can have
//! made one, and nobody else can read whom it is about.

use std::fmt::Write as _;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::error::Unspecified;
use serde::{Deserialize, Serialize};
use tidegate::{HashKey, Reservation};

use crate::protect::Watched;

/// What the key is for. A release that changes what is in it changes this too.
const PURPOSE: &str = "leases, 3";

/// Seals leases, and opens them.
pub(crate) struct Seal(RandomizedNonceKey);

/// A lease, and when it was given.
#[derive(Debug, PartialEq, Deserialize)]
pub(crate) struct Travelled {
    pub(crate) given_unix_us: u64,
    pub(crate) lease: Reservation,
    /// What was checked, if its status may make an event.
    pub(crate) watched: Option<Box<Watched>>,
}

/// The same, to be written down.
#[derive(Serialize)]
struct Travels<'l> {
    given_unix_us: u64,
    lease: &'l Reservation,
    watched: Option<&'l Watched>,
}

impl Seal {
    /// With a key that all nodes make of their secret.
    pub(crate) fn new(secret: &HashKey) -> Result<Self, Unspecified> {
        RandomizedNonceKey::new(&AES_256_GCM, &secret.derive(PURPOSE)).map(Self)
    }

    /// The lease as hexadecimal digits: nonce, cipher text and tag. `None` if the system gives no
    /// random bytes.
    pub(crate) fn seal(
        &self,
        lease: &Reservation,
        watched: Option<&Watched>,
        given_unix_us: u64,
    ) -> Option<String> {
        let mut bytes = postcard::to_stdvec(&Travels { given_unix_us, lease, watched }).ok()?;
        let nonce = self.0.seal_in_place_append_tag(Aad::empty(), &mut bytes).ok()?;
        let mut text = String::with_capacity(2 * (NONCE_LEN + bytes.len()));
        for byte in nonce.as_ref().iter().chain(&bytes) {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        Some(text)
    }

    /// The lease that a text holds, if a node with this secret has sealed it.
    pub(crate) fn open(&self, text: &str) -> Option<Travelled> {
        let bytes = from_hex(text)?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self.0.open_in_place(nonce, Aad::empty(), &mut sealed).ok()?;
        postcard::from_bytes(opened).ok()
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use tidegate::{LimitBuilder, Limiter, Policy, Request};

    use super::*;

    fn lease() -> Reservation {
        let limit = LimitBuilder::concurrency("streams", 9).by("user");
        let limiter = Limiter::new(Policy::builder("p").limit(limit).build().unwrap());
        limiter.check(&Request::operation("default").user("u")).unwrap().reservation.unwrap()
    }

    #[test]
    fn a_lease_is_opened_by_whoever_has_the_secret_and_by_nobody_else() {
        let (seal, lease) = (Seal::new(&HashKey::new([1; 16])).unwrap(), lease());
        let text = seal.seal(&lease, None, 77).unwrap();
        assert_ne!(text, seal.seal(&lease, None, 77).unwrap(), "no two look the same");
        let same = Seal::new(&HashKey::new([1; 16])).unwrap();
        assert_eq!(same.open(&text), Some(Travelled { given_unix_us: 77, lease, watched: None }));
        assert_eq!(Seal::new(&HashKey::new([2; 16])).unwrap().open(&text), None);
    }

    #[test]
    fn what_was_tampered_with_is_no_lease() {
        let seal = Seal::new(&HashKey::new([1; 16])).unwrap();
        let text = seal.seal(&lease(), None, 77).unwrap();
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
            assert_eq!(seal.open(&String::from_utf8(bytes).unwrap()), None, "digit {at}");
        }
        for text in ["", "0", "zz", "ü", &text[2..], &text[..text.len() - 1], &"0".repeat(24)] {
            assert_eq!(seal.open(text), None, "{text}");
        }
    }
}
