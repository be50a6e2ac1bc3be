//! Bearer tokens, verified by a key of the operator. A token that does not verify gives no identity.
//!
//! The key decides the algorithm; the header of a token never does. A token must have an `exp`; clocks
//! may differ by [`LEEWAY_S`]. Nothing is fetched: a key or key set is a file.

mod keys;
mod unique_names;

#[cfg(test)]
mod tests;

use std::path::Path;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{decode, decode_header};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tidegate::clock::Now;
use tidegate::engine::identity::Claims;
use tidegate::engine::units::canonical_number;

use crate::error::StartError;
use crate::telemetry::TokenFailure;
use keys::{Key, KeyFile};

/// The largest difference between the issuer's clock and ours, in seconds.
pub(crate) const LEEWAY_S: u64 = 60;

/// Longer tokens are refused.
const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// Verifies the tokens of one issuer.
#[derive(Debug)]
pub(crate) struct Verifier {
    keys: Vec<Key>,
    skipped: Vec<String>,
    issuer: Option<String>,
    audience: Option<String>,
}

impl Verifier {
    /// Reads the key: a PEM public key (RSA, EC P-256 or Ed25519), a JWKS, or else the bytes of an
    /// HMAC secret. A given issuer or audience must be the token's.
    ///
    /// # Errors
    /// The file cannot be read, or holds no key that tokens could be verified by.
    pub(crate) fn load(
        path: &Path,
        issuer: Option<String>,
        audience: Option<String>,
    ) -> Result<Self, StartError> {
        let KeyFile { keys, skipped } = KeyFile::read(path)?;
        Ok(Self { keys, skipped, issuer, audience })
    }

    /// The unused keys of a set, each with the reason, for the log.
    #[must_use]
    pub(crate) fn skipped(&self) -> &[String] {
        &self.skipped
    }

    /// The claims of the token in an `Authorization` header; `None` without a bearer token.
    ///
    /// # Errors
    /// Why the token does not verify.
    pub(crate) fn claims(
        &self,
        authorization: &str,
        now: Now,
    ) -> Result<Option<Claims>, TokenFailure> {
        match bearer_token(authorization) {
            Some(token) => self.verify(token, now).map(Some),
            None => Ok(None),
        }
    }

    fn verify(&self, token: &str, now: Now) -> Result<Claims, TokenFailure> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(TokenFailure::Malformed);
        }
        let header = decode_header(token).map_err(|_| TokenFailure::Malformed)?;
        // We must understand all critical extensions, and we understand none.
        if header.crit.is_some() {
            return Err(TokenFailure::Malformed);
        }
        let key = self.key(header.kid.as_deref()).ok_or(TokenFailure::UnknownKey)?;
        let decoded = decode::<Box<RawValue>>(token, &key.key, &key.validation);
        let payload = decoded.map_err(|error| failure_of(error.kind()))?.claims;
        unique_names::check(payload.get()).map_err(|_| TokenFailure::Malformed)?;
        let registered: RegisteredClaims<'_> =
            serde_json::from_str(payload.get()).map_err(|_| TokenFailure::Malformed)?;
        if !registered.is_timely(now.unix_us / 1_000_000) {
            return Err(TokenFailure::Time);
        }
        if !self.issuer.as_ref().is_none_or(|issuer| registered.is_from(issuer)) {
            return Err(TokenFailure::Issuer);
        }
        if !self.audience.as_ref().is_none_or(|audience| registered.is_for(audience)) {
            return Err(TokenFailure::Audience);
        }
        Claims::parse(payload.get()).map_err(|_| TokenFailure::Malformed)
    }

    /// The key of this id. A key without an id is the only one, and verifies every token.
    fn key(&self, kid: Option<&str>) -> Option<&Key> {
        match (kid, self.keys.as_slice()) {
            (None, [only]) | (Some(_), [only @ Key { kid: None, .. }]) => Some(only),
            (None, _) => None,
            (Some(kid), keys) => keys.iter().find(|key| key.kid.as_deref() == Some(kid)),
        }
    }
}

/// The token of an `Authorization` header of this scheme.
fn bearer_token(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.trim_ascii().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_ascii_start())
}

fn failure_of(error: &ErrorKind) -> TokenFailure {
    match error {
        // The key decides the algorithm, so that another one is another signature.
        ErrorKind::InvalidSignature | ErrorKind::InvalidAlgorithm => TokenFailure::Signature,
        _ => TokenFailure::Malformed,
    }
}

/// The claims that decide if a token is valid.
#[derive(Deserialize)]
struct RegisteredClaims<'p> {
    #[serde(borrow)]
    exp: Option<&'p RawValue>,
    #[serde(borrow)]
    nbf: Option<&'p RawValue>,
    iss: Option<Value>,
    aud: Option<Value>,
}

impl RegisteredClaims<'_> {
    fn is_timely(&self, now_s: u64) -> bool {
        let expires = self.exp.and_then(seconds);
        let begins = self.nbf.map_or(Some(0), seconds);
        let (Some(expires), Some(begins)) = (expires, begins) else { return false };
        now_s < expires.saturating_add(LEEWAY_S) && begins <= now_s.saturating_add(LEEWAY_S)
    }

    fn is_from(&self, issuer: &str) -> bool {
        self.iss.as_ref().and_then(Value::as_str) == Some(issuer)
    }

    fn is_for(&self, audience: &str) -> bool {
        match &self.aud {
            Some(Value::String(one)) => one == audience,
            Some(Value::Array(many)) => many.iter().any(|one| one.as_str() == Some(audience)),
            _ => false,
        }
    }
}

/// A date in whole seconds, rounded down; `None` for anything else, and before 1970.
fn seconds(value: &RawValue) -> Option<u64> {
    let number = canonical_number(value.get())?;
    let (whole, _) = number.split_once('.').unwrap_or((&number, ""));
    whole.parse().ok()
}
