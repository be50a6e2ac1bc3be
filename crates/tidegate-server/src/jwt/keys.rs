//! Key files: a PEM public key, a JWKS, or an HMAC secret. Each key is fixed to one algorithm.

use std::path::Path;

use jsonwebtoken::crypto::aws_lc::DEFAULT_PROVIDER;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, Validation};
use memchr::memmem;
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject;
use serde_json::Value;

use crate::error::StartError;
use crate::files::read_bytes;

const KEYS_MAX: usize = 100;
const SECRET_BYTES_MIN: usize = 32;
const RSA_MODULUS_BYTES_MIN: usize = 256;

/// The DER of a P-256 public key before the point itself.
const P256_HEAD: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// The DER of an Ed25519 public key before the key itself.
const ED25519_HEAD: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Public keys in other formats: Base64 of DER without its PEM lines, and the keys of ssh.
const PUBLIC_KEY_HEADS: [&str; 5] = ["MII", "MFkwEwYH", "MCowBQYDK2Vw", "ssh-", "ecdsa-sha2-"];

/// A key, and the one algorithm that it verifies.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) kid: Option<String>,
    pub(super) key: DecodingKey,
    pub(super) validation: Validation,
}

impl Key {
    fn new(key: DecodingKey, algorithm: Algorithm) -> Self {
        let mut validation = Validation::new(algorithm);
        // The crate would read the machine's clock. We check these claims by our own clock.
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = false;
        Self { kid: None, key, validation }
    }
}

/// The content of a key file.
pub(super) struct KeyFile {
    /// At least one. Several keys have an id each.
    pub(super) keys: Vec<Key>,
    pub(super) skipped: Vec<String>,
}

impl KeyFile {
    pub(super) fn read(path: &Path) -> Result<Self, StartError> {
        // The first caller wins, and nothing else in this program installs a provider.
        let _ = DEFAULT_PROVIDER.install_default();
        let refuse =
            |problem| StartError::new(format!("the key file {} {problem}", path.display()));
        Self::parse(&read_bytes(path)?).map_err(refuse)
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let alone = |key| Self { keys: vec![key], skipped: Vec::new() };
        if memmem::find(bytes, b"-----BEGIN ").is_some() {
            return from_pem(bytes).map(alone);
        }
        if bytes.trim_ascii_start().first() == Some(&b'{') {
            return from_jwks(bytes);
        }
        from_secret(bytes).map(alone)
    }
}

fn from_pem(pem: &[u8]) -> Result<Key, String> {
    let expected = "expected one PEM public key: RSA (2048 bits or more), EC P-256 or Ed25519";
    if memmem::find(pem, b"PRIVATE KEY-----").is_some() {
        return Err(format!("holds a private key, {expected}: to verify takes no secret"));
    }
    if memmem::find(pem, b"-----BEGIN CERTIFICATE-----").is_some() {
        let help = "`openssl x509 -pubkey -noout` prints that of a certificate";
        return Err(format!("holds a certificate, {expected}; {help}"));
    }
    if memmem::find_iter(pem, b"-----BEGIN ").count() != 1 {
        return Err(format!("holds several PEM sections, {expected}; for several keys use a JWKS"));
    }
    if let Ok(spki) = SubjectPublicKeyInfoDer::from_pem_slice(pem) {
        if let Some(point) = spki.strip_prefix(&P256_HEAD) {
            return Ok(Key::new(DecodingKey::from_ec_der(point), Algorithm::ES256));
        }
        if let Some(key) = spki.strip_prefix(&ED25519_HEAD) {
            return Ok(Key::new(DecodingKey::from_ed_der(key), Algorithm::EdDSA));
        }
    }
    let key = DecodingKey::from_rsa_pem(pem).map_err(|_| format!("cannot be used, {expected}"))?;
    let components = DEFAULT_PROVIDER.key_utils.rsa_pub_components_from_public_key;
    let components = key.try_get_as_bytes().and_then(components);
    match components {
        Ok((modulus, _)) if is_long_enough(&modulus) => Ok(Key::new(key, Algorithm::RS256)),
        _ => Err(format!("cannot be used, {expected}")),
    }
}

fn from_jwks(json: &[u8]) -> Result<KeyFile, String> {
    let expected = "expected a JWKS: `{\"keys\": [\u{2026}]}`";
    let document: Value = serde_json::from_slice(json)
        .map_err(|error| format!("is no JSON ({error}), {expected}"))?;
    let listed = document.get("keys").and_then(Value::as_array);
    let listed = listed.ok_or_else(|| format!("has no list of keys, {expected}"))?;
    if listed.len() > KEYS_MAX {
        return Err(format!("holds {} keys, expected at most {KEYS_MAX}", listed.len()));
    }
    let (mut keys, mut skipped) = (Vec::<Key>::new(), Vec::new());
    for (index, value) in listed.iter().enumerate() {
        if value.get("d").is_some() {
            return Err(format!(
                "holds the private part of key {}, expected only \
                                public keys: to verify takes no secret",
                index + 1
            ));
        }
        match from_jwk(value) {
            Ok(key) => keys.push(key),
            Err(why) => skipped.push(format!("key {}: {why}", index + 1)),
        }
    }
    check_ids(&keys)?;
    if keys.is_empty() {
        let why = skipped.join("; ");
        return Err(format!(
            "holds no key for RS256, ES256 or EdDSA ({})",
            if why.is_empty() { "it is empty" } else { &why }
        ));
    }
    Ok(KeyFile { keys, skipped })
}

/// Checks that a token's key id selects one key.
fn check_ids(keys: &[Key]) -> Result<(), String> {
    for (index, key) in keys.iter().enumerate() {
        match &key.kid {
            None if keys.len() > 1 => {
                return Err("holds a key without `kid`, expected one on each of several".to_owned());
            }
            Some(kid) if keys[..index].iter().any(|other| other.kid.as_ref() == Some(kid)) => {
                return Err(format!("holds two keys with the `kid` {kid:?}, expected one"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// A key of a set, or why it is not used.
fn from_jwk(value: &Value) -> Result<Key, String> {
    let jwk: Jwk =
        serde_json::from_value(value.clone()).map_err(|_| "is no JSON Web Key".to_owned())?;
    let common = &jwk.common;
    if common.public_key_use.as_ref().is_some_and(|used| *used != PublicKeyUse::Signature) {
        return Err("is not for signatures".to_owned());
    }
    let (algorithm, fits) = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => (Algorithm::RS256, KeyAlgorithm::RS256),
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
            (Algorithm::ES256, KeyAlgorithm::ES256)
        }
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            (Algorithm::EdDSA, KeyAlgorithm::EdDSA)
        }
        AlgorithmParameters::OctetKey(_) => {
            return Err("is a secret, which a file of its own should hold".to_owned());
        }
        _ => return Err("is of a kind or curve that is not supported".to_owned()),
    };
    if let Some(other) = common.key_algorithm.filter(|algorithm| *algorithm != fits) {
        return Err(format!("is for {other}"));
    }
    let key = DecodingKey::from_jwk(&jwk).map_err(|_| "is not well-formed".to_owned())?;
    let sound = match key.kind() {
        DecodingKeyKind::RsaModulusExponent { n, .. } => is_long_enough(n),
        DecodingKeyKind::SecretOrDer(bytes) => {
            bytes.len() == if algorithm == Algorithm::ES256 { 65 } else { 32 }
        }
    };
    if !sound {
        return Err("is too short or too long".to_owned());
    }
    Ok(Key { kid: common.key_id.clone(), ..Key::new(key, algorithm) })
}

fn from_secret(bytes: &[u8]) -> Result<Key, String> {
    // If a public key were the secret, everybody who knows it could sign tokens.
    let text_head = bytes.trim_ascii_start();
    if PUBLIC_KEY_HEADS.iter().any(|head| text_head.starts_with(head.as_bytes())) || is_der(bytes) {
        let expected = "expected PEM (`-----BEGIN PUBLIC KEY-----`) or a JWKS";
        return Err(format!("looks like a public key, {expected}"));
    }
    let secret = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let secret = secret.strip_suffix(b"\r").filter(|_| secret != bytes).unwrap_or(secret);
    if secret.len() < SECRET_BYTES_MIN {
        let expected = "expected a PEM public key, a JWKS, or a secret of at least 32 bytes";
        return Err(format!("holds {} bytes, {expected}", secret.len()));
    }
    Ok(Key::new(DecodingKey::from_secret(secret), Algorithm::HS256))
}

/// True for one DER sequence from end to end.
fn is_der(bytes: &[u8]) -> bool {
    let (head, length) = match *bytes {
        [0x30, length @ 0..=0x7f, ..] => (2, usize::from(length)),
        [0x30, 0x81, length, ..] => (3, usize::from(length)),
        [0x30, 0x82, high, low, ..] => (4, usize::from(u16::from_be_bytes([high, low]))),
        _ => return false,
    };
    bytes.len() == head + length
}

/// Leading zeros of a modulus do not count.
fn is_long_enough(modulus: &[u8]) -> bool {
    let zeros = modulus.iter().take_while(|byte| **byte == 0).count();
    modulus.len() - zeros >= RSA_MODULUS_BYTES_MIN
}
