//! Sealed reservations: encrypted and signed, so that only nodes with the deployment's secret can make
//! one, and nobody else can read its subject.

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::error::Unspecified;
use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use serde::Deserialize;
use tidegate::{HashKey, Reservation};

use crate::leases::ReservedRequest;

/// Derives the key. A release that changes the sealed format changes this string too.
const PURPOSE: &str = "leases, 3";

/// Seals and opens reservations.
pub(crate) struct Seal(RandomizedNonceKey);

/// A reservation from a lease, and when it was given.
#[derive(Debug, PartialEq, Deserialize)]
pub(crate) struct SealedReservation {
    pub(crate) given_unix_us: u64,
    pub(crate) reservation: Reservation,
    /// The request of the check, if its status may make an event.
    pub(crate) request: Option<Box<ReservedRequest>>,
}

impl Seal {
    /// With a key that all nodes derive from their secret.
    pub(crate) fn new(secret: &HashKey) -> Result<Self, Unspecified> {
        RandomizedNonceKey::new(&AES_256_GCM, &secret.derive(PURPOSE)).map(Self)
    }

    /// The lease in hexadecimal: nonce, cipher text and tag. `None` if the system gives no random
    /// bytes.
    pub(crate) fn seal(
        &self,
        reservation: &Reservation,
        request: Option<&ReservedRequest>,
        given_unix_us: u64,
    ) -> Option<String> {
        let mut bytes = postcard::to_stdvec(&(given_unix_us, reservation, request)).ok()?;
        let nonce = self.0.seal_in_place_append_tag(Aad::empty(), &mut bytes).ok()?;
        Some(HEXLOWER.encode(nonce.as_ref()) + &HEXLOWER.encode(&bytes))
    }

    /// Opens a lease that a node with this secret has sealed.
    pub(crate) fn open(&self, text: &str) -> Option<SealedReservation> {
        let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self.0.open_in_place(nonce, Aad::empty(), &mut sealed).ok()?;
        postcard::from_bytes(opened).ok()
    }
}

#[cfg(test)]
mod tests {
    use tidegate::{LimitBuilder, Limiter, Policy, Request};

    use super::*;

    fn reservation() -> Reservation {
        let limit = LimitBuilder::concurrency("streams", 9).by("user");
        let limiter = Limiter::new(Policy::builder("p").limit(limit).build().unwrap());
        limiter.check(&Request::operation("default").user("u")).unwrap().reservation.unwrap()
    }

    #[test]
    fn a_lease_is_opened_by_whoever_has_the_secret_and_by_nobody_else() {
        let (seal, reservation) = (Seal::new(&HashKey::new([1; 16])).unwrap(), reservation());
        let text = seal.seal(&reservation, None, 77).unwrap();
        assert_ne!(text, seal.seal(&reservation, None, 77).unwrap(), "no two look the same");
        let same = Seal::new(&HashKey::new([1; 16])).unwrap();
        let sealed = SealedReservation { given_unix_us: 77, reservation, request: None };
        assert_eq!(same.open(&text), Some(sealed));
        assert_eq!(Seal::new(&HashKey::new([2; 16])).unwrap().open(&text), None);
    }

    #[test]
    fn what_was_tampered_with_is_no_lease() {
        let seal = Seal::new(&HashKey::new([1; 16])).unwrap();
        let text = seal.seal(&reservation(), None, 77).unwrap();
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
