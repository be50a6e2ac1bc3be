//! Making tokens, good and bad.

use std::sync::LazyLock;

use jsonwebtoken::crypto::{aws_lc, sign};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey};
use rcgen::KeyPair;
use serde_json::{Value, json};

use super::SECRET;

/// One key of each kind; RSA takes a while to make.
pub(super) static RSA: LazyLock<Signer> =
    LazyLock::new(|| Signer::new(&rcgen::PKCS_RSA_SHA256, Algorithm::RS256, "RS256"));
pub(super) static EC: LazyLock<Signer> =
    LazyLock::new(|| Signer::new(&rcgen::PKCS_ECDSA_P256_SHA256, Algorithm::ES256, "ES256"));
pub(super) static ED: LazyLock<Signer> =
    LazyLock::new(|| Signer::new(&rcgen::PKCS_ED25519, Algorithm::EdDSA, "EdDSA"));

/// A key pair with which tokens are signed.
pub(super) struct Signer {
    pub(super) pair: KeyPair,
    pub(super) name: &'static str,
    algorithm: Algorithm,
}

impl Signer {
    fn new(
        kind: &'static rcgen::SignatureAlgorithm,
        algorithm: Algorithm,
        name: &'static str,
    ) -> Self {
        Self { pair: KeyPair::generate_for(kind).unwrap(), name, algorithm }
    }

    fn key(&self) -> EncodingKey {
        let pem = self.pair.serialize_pem();
        match self.algorithm {
            Algorithm::RS256 => EncodingKey::from_rsa_pem(pem.as_bytes()),
            Algorithm::ES256 => EncodingKey::from_ec_pem(pem.as_bytes()),
            _ => EncodingKey::from_ed_pem(pem.as_bytes()),
        }
        .unwrap()
    }

    pub(super) fn token(&self, claims: &Value) -> String {
        self.token_of(None, claims)
    }

    /// A token that names the key it is signed with.
    pub(super) fn token_of(&self, kid: Option<&str>, claims: &Value) -> String {
        let mut header = json!({ "alg": self.name });
        if let Some(kid) = kid {
            header["kid"] = json!(kid);
        }
        token(&header, claims, &self.key(), self.algorithm)
    }

    /// The public key as an entry of a JWKS.
    pub(super) fn jwk(&self, kid: &str) -> Value {
        if self.algorithm == Algorithm::EdDSA {
            let x = base64url(self.pair.public_key_raw());
            return json!({ "kty": "OKP", "crv": "Ed25519", "x": x, "kid": kid });
        }
        // The first to choose wins, and all choose the same.
        let _ = aws_lc::DEFAULT_PROVIDER.install_default();
        let jwk = Jwk::from_encoding_key(&self.key(), self.algorithm).unwrap();
        let mut jwk = serde_json::to_value(jwk).unwrap();
        jwk["kid"] = json!(kid);
        jwk
    }
}

/// A token with exactly this header and these claims.
pub(super) fn token(
    header: &Value,
    claims: &Value,
    key: &EncodingKey,
    algorithm: Algorithm,
) -> String {
    let _ = aws_lc::DEFAULT_PROVIDER.install_default();
    let message = unsigned(header, claims);
    let signature = sign(message.as_bytes(), key, algorithm).unwrap();
    format!("{message}.{signature}")
}

pub(super) fn unsigned(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| base64url(value.to_string().as_bytes());
    format!("{}.{}", part(header), part(claims))
}

/// A token by a shared secret.
pub(super) fn hs256_by(secret: &[u8], claims: &Value) -> String {
    token(&json!({ "alg": "HS256" }), claims, &EncodingKey::from_secret(secret), Algorithm::HS256)
}

pub(super) fn hs256(claims: &Value) -> String {
    hs256_by(SECRET, claims)
}

pub(super) fn base64url(bytes: &[u8]) -> String {
    data_encoding::BASE64URL_NOPAD.encode(bytes)
}
