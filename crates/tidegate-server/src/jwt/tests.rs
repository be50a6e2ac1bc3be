//! Tokens that count, and every way in which one does not.

use std::path::PathBuf;
use std::sync::LazyLock;

use jsonwebtoken::crypto::sign;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PublicKeyData};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

const NOW_S: u64 = 1_767_603_600;
const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

/// Two keys that take a while to make.
static RSA: LazyLock<KeyPair> =
    LazyLock::new(|| KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap());
static EC: LazyLock<KeyPair> =
    LazyLock::new(|| KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap());

fn now() -> Now {
    Now { steady_us: 0, unix_us: NOW_S * 1_000_000 }
}

fn signing(pair: &KeyPair, algorithm: Algorithm) -> EncodingKey {
    let pem = pair.serialize_pem();
    match algorithm {
        Algorithm::RS256 | Algorithm::RS512 => EncodingKey::from_rsa_pem(pem.as_bytes()),
        Algorithm::ES256 => EncodingKey::from_ec_pem(pem.as_bytes()),
        _ => EncodingKey::from_ed_pem(pem.as_bytes()),
    }
    .unwrap()
}

fn base64url(bytes: &[u8]) -> String {
    data_encoding::BASE64URL_NOPAD.encode(bytes)
}

/// An `Authorization` header with a token whose parts are exactly these.
fn bearer(header: &str, payload: &str, key: &EncodingKey, algorithm: Algorithm) -> String {
    let message = format!("{}.{}", base64url(header.as_bytes()), base64url(payload.as_bytes()));
    let signature = sign(message.as_bytes(), key, algorithm).unwrap();
    format!("Bearer {message}.{signature}")
}

/// The same, by the secret, with the usual header.
fn hs256(payload: &str) -> String {
    bearer(r#"{"alg":"HS256"}"#, payload, &EncodingKey::from_secret(SECRET), Algorithm::HS256)
}

fn usual() -> String {
    json!({ "sub": "u1", "exp": NOW_S + 10 }).to_string()
}

struct Keys {
    _folder: TempDir,
    path: PathBuf,
}

fn file(bytes: impl AsRef<[u8]>) -> Keys {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    std::fs::write(&path, bytes).unwrap();
    Keys { _folder: folder, path }
}

fn verifier(bytes: impl AsRef<[u8]>) -> Verifier {
    Verifier::load(&file(bytes).path, None, None).unwrap()
}

fn refusal(bytes: impl AsRef<[u8]>) -> String {
    Verifier::load(&file(bytes).path, None, None).unwrap_err().to_string()
}

fn user(verifier: &Verifier, authorization: &str) -> Option<String> {
    verifier.claims(authorization, now()).ok()??.text("sub").map(str::to_owned)
}

fn jwk(pair: &KeyPair, algorithm: Algorithm, kid: &str) -> Value {
    let _ = jsonwebtoken::crypto::aws_lc::DEFAULT_PROVIDER.install_default();
    let jwk = Jwk::from_encoding_key(&signing(pair, algorithm), algorithm).unwrap();
    let mut jwk = serde_json::to_value(jwk).unwrap();
    jwk["kid"] = json!(kid);
    jwk
}

#[test]
fn each_kind_of_key_verifies_its_own_algorithm() {
    let ed = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    for (pair, algorithm, name) in [
        (&*RSA, Algorithm::RS256, "RS256"),
        (&*EC, Algorithm::ES256, "ES256"),
        (&ed, Algorithm::EdDSA, "EdDSA"),
    ] {
        let verifier = verifier(pair.public_key_pem());
        let header = json!({ "alg": name, "kid": "whatever" }).to_string();
        let token = bearer(&header, &usual(), &signing(pair, algorithm), algorithm);
        assert_eq!(user(&verifier, &token).as_deref(), Some("u1"), "{name}");
        let other = json!({ "sub": "u2", "exp": NOW_S + 10 }).to_string();
        let mut parts: Vec<&str> = token.split('.').collect();
        let forged = base64url(other.as_bytes());
        parts[1] = &forged;
        assert_eq!(user(&verifier, &parts.join(".")), None, "{name}, changed");
    }
}

#[test]
fn a_secret_is_the_bytes_of_its_file_but_for_one_newline() {
    for end in ["", "\n", "\r\n"] {
        let verifier = verifier([SECRET, end.as_bytes()].concat());
        assert_eq!(user(&verifier, &hs256(&usual())).as_deref(), Some("u1"), "{end:?}");
    }
    assert_eq!(user(&verifier([SECRET, b"\n\n"].concat()), &hs256(&usual())), None);
    assert_eq!(user(&verifier([SECRET, b"\r"].concat()), &hs256(&usual())), None);
}

#[test]
fn the_scheme_is_bearer_in_any_case() {
    let (verifier, header) = (verifier(SECRET), hs256(&usual()));
    let token = header.strip_prefix("Bearer ").unwrap();
    for header in [format!("bearer {token}"), format!(" BEARER  {token} ")] {
        assert_eq!(user(&verifier, &header).as_deref(), Some("u1"), "{header}");
    }
    for header in [token.to_owned(), format!("Basic {token}"), format!("Bearer{token}"), "".into()]
    {
        assert_eq!(user(&verifier, &header), None, "{header}");
    }
}

#[test]
fn an_unsigned_token_is_nobody() {
    for verifier in [verifier(SECRET), verifier(EC.public_key_pem())] {
        for algorithm in ["none", "None", "NONE", ""] {
            let header = base64url(json!({ "alg": algorithm }).to_string().as_bytes());
            for signature in ["", "AAAA"] {
                let payload = base64url(usual().as_bytes());
                let token = format!("Bearer {header}.{payload}.{signature}");
                assert_eq!(user(&verifier, &token), None, "{algorithm}");
            }
        }
        let unsigned = hs256(&usual());
        let (unsigned, _) = unsigned.rsplit_once('.').unwrap();
        assert_eq!(user(&verifier, &format!("{unsigned}.")), None);
        assert_eq!(user(&verifier, unsigned), None);
    }
}

#[test]
fn a_public_key_is_no_secret() {
    for (pair, name) in [(&*RSA, "RS256"), (&*EC, "ES256")] {
        let verifier = verifier(pair.public_key_pem());
        let (pem, der) = (pair.public_key_pem(), pair.subject_public_key_info());
        for bytes in [pem.as_bytes(), pem.trim_end().as_bytes(), &der, pair.public_key_raw()] {
            let secret = EncodingKey::from_secret(bytes);
            for alg in ["HS256", name] {
                let header = json!({ "alg": alg }).to_string();
                let token = bearer(&header, &usual(), &secret, Algorithm::HS256);
                assert_eq!(user(&verifier, &token), None, "{alg}");
            }
        }
    }
}

#[test]
fn another_algorithm_of_the_same_key_does_not_count() {
    let key = signing(&RSA, Algorithm::RS512);
    let token = bearer(r#"{"alg":"RS512"}"#, &usual(), &key, Algorithm::RS512);
    assert_eq!(user(&verifier(RSA.public_key_pem()), &token), None);
    let key = EncodingKey::from_secret(SECRET);
    let token = bearer(r#"{"alg":"HS512"}"#, &usual(), &key, Algorithm::HS512);
    assert_eq!(user(&verifier(SECRET), &token), None);
}

#[test]
fn a_token_counts_from_nbf_to_exp_with_a_minute_of_leeway() {
    let verifier = verifier(SECRET);
    let counts = |times: Value| {
        let mut payload = json!({ "sub": "u1", "exp": NOW_S + 10 });
        payload.as_object_mut().unwrap().extend(times.as_object().unwrap().clone());
        user(&verifier, &hs256(&payload.to_string())).is_some()
    };
    assert!(counts(json!({ "exp": NOW_S + 1 })));
    assert!(counts(json!({ "exp": NOW_S - LEEWAY_S + 1 })));
    assert!(!counts(json!({ "exp": NOW_S - LEEWAY_S })));
    assert!(counts(json!({ "nbf": NOW_S + LEEWAY_S })));
    assert!(!counts(json!({ "nbf": NOW_S + LEEWAY_S + 1 })));
    assert!(counts(json!({ "nbf": null })));
    for no_date in [json!(null), json!("1999999999"), json!(-1), json!([1]), json!(true)] {
        assert!(!counts(json!({ "exp": no_date })), "{no_date}");
    }
    for no_date in [json!("1"), json!([1]), json!({})] {
        assert!(!counts(json!({ "nbf": no_date })), "{no_date}");
    }
    assert_eq!(user(&verifier, &hs256(r#"{"sub":"u1"}"#)), None, "without exp");
    let written = |exp: &str| hs256(&format!(r#"{{"sub":"u1","exp":{exp}}}"#));
    assert!(user(&verifier, &written("1.7676036e9")).is_some(), "NOW_S, written another way");
    assert!(user(&verifier, &written("1767603600.75")).is_some());
    assert!(user(&verifier, &written("1e400")).is_none());
}

#[test]
fn issuer_and_audience_must_be_those_that_are_given() {
    let key = file(SECRET);
    let load = |issuer: Option<&str>, audience: Option<&str>| {
        Verifier::load(&key.path, issuer.map(Into::into), audience.map(Into::into)).unwrap()
    };
    let token = |more: Value| {
        let mut payload = json!({ "sub": "u1", "exp": NOW_S + 10 });
        payload.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        hs256(&payload.to_string())
    };
    let (anyone, issuer, audience) =
        (load(None, None), load(Some("a"), None), load(None, Some("b")));
    assert!(user(&anyone, &token(json!({ "iss": 5, "aud": 5 }))).is_some());
    assert!(user(&issuer, &token(json!({ "iss": "a" }))).is_some());
    for wrong in [json!({}), json!({ "iss": "A" }), json!({ "iss": ["a"] }), json!({ "iss": null })]
    {
        assert!(user(&issuer, &token(wrong.clone())).is_none(), "{wrong}");
    }
    assert!(user(&audience, &token(json!({ "aud": "b" }))).is_some());
    assert!(user(&audience, &token(json!({ "aud": ["a", "b"] }))).is_some());
    for wrong in
        [json!({}), json!({ "aud": "ab" }), json!({ "aud": [] }), json!({ "aud": { "b": 1 } })]
    {
        assert!(user(&audience, &token(wrong.clone())).is_none(), "{wrong}");
    }
}

#[test]
fn what_is_no_token_is_nobody() {
    let verifier = verifier(SECRET);
    let good = hs256(&usual());
    assert!(user(&verifier, &good).is_some());
    let critical = r#"{"alg":"HS256","crit":["b64"],"b64":false}"#;
    let twice = r#"{"alg":"HS256","alg":"HS256"}"#;
    let key = EncodingKey::from_secret(SECRET);
    for token in [
        bearer(critical, &usual(), &key, Algorithm::HS256),
        bearer(twice, &usual(), &key, Algorithm::HS256),
        bearer("[]", &usual(), &key, Algorithm::HS256),
        format!("{good}="),
        format!("{good}.x"),
        good.replace('.', "!"),
        good.replacen("ey", "e+", 1),
        "Bearer ..".to_owned(),
        "Bearer ".to_owned(),
        "Bearer é".to_owned(),
    ] {
        assert_eq!(user(&verifier, &token), None, "{token}");
    }
}

#[test]
fn claims_are_one_object_without_repetitions() {
    let verifier = verifier(SECRET);
    let exp = NOW_S + 10;
    for payload in [
        "[]".to_owned(),
        "null".to_owned(),
        "\"sub\"".to_owned(),
        String::new(),
        format!(r#"{{"sub":"u1","exp":{exp}"#),
        format!(r#"{{"sub":"u1","sub":"u2","exp":{exp}}}"#),
        format!(r#"{{"sub":"u1","s\u0075b":"u2","exp":{exp}}}"#),
        format!(r#"{{"sub":"u1","exp":1,"exp":{exp}}}"#),
        format!(r#"{{"sub":"u1","exp":{exp},"plan":[{{"a":1,"a":2}}]}}"#),
        format!(r#"{{"sub":"u1","exp":{exp},"deep":{}{}}}"#, "[".repeat(100), "]".repeat(100)),
    ] {
        assert!(verifier.claims(&hs256(&payload), now()).is_err(), "{payload}");
    }
}

#[test]
fn a_token_of_more_than_16_kib_is_not_looked_at() {
    let verifier = verifier(SECRET);
    let padded = |bytes: usize| {
        hs256(&json!({ "sub": "u1", "exp": NOW_S + 10, "pad": "x".repeat(bytes) }).to_string())
    };
    assert!(user(&verifier, &padded(12_000)).is_some());
    assert!(user(&verifier, &padded(12_300)).is_none());
}

#[test]
fn a_set_is_asked_for_the_key_that_the_token_names() {
    let ed = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let set = json!({ "keys": [
        jwk(&RSA, Algorithm::RS256, "rsa"),
        jwk(&EC, Algorithm::ES256, "ec"),
        { "kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": base64url(ed.public_key_raw()) },
        { "kty": "RSA", "kid": "rsa", "use": "enc", "n": "AQAB", "e": "AQAB" },
        { "kty": "oct", "kid": "secret", "k": base64url(SECRET) },
        { "kty": "new", "kid": "new" },
    ]});
    let verifier = verifier(set.to_string());
    assert_eq!(verifier.skipped().len(), 3, "{:?}", verifier.skipped());
    let token = |pair: &KeyPair, algorithm, name: &str, kid: Value| {
        let header = json!({ "alg": name, "kid": kid }).to_string();
        bearer(&header, &usual(), &signing(pair, algorithm), algorithm)
    };
    let counts = |token: String| user(&verifier, &token).is_some();
    assert!(counts(token(&RSA, Algorithm::RS256, "RS256", json!("rsa"))));
    assert!(counts(token(&EC, Algorithm::ES256, "ES256", json!("ec"))));
    assert!(counts(token(&ed, Algorithm::EdDSA, "EdDSA", json!("ed"))));
    assert!(!counts(token(&EC, Algorithm::ES256, "ES256", json!("rsa"))), "of another key");
    assert!(!counts(token(&EC, Algorithm::ES256, "ES256", json!("other"))), "unknown");
    assert!(!counts(token(&EC, Algorithm::ES256, "ES256", json!(null))), "not named");
    let secret = EncodingKey::from_secret(SECRET);
    let header = r#"{"alg":"HS256","kid":"secret"}"#;
    assert!(!counts(bearer(header, &usual(), &secret, Algorithm::HS256)), "a skipped secret");
}

#[test]
fn a_set_of_one_key_also_serves_tokens_that_name_none() {
    let named = verifier(json!({ "keys": [jwk(&EC, Algorithm::ES256, "ec")] }).to_string());
    let mut nameless = jwk(&EC, Algorithm::ES256, "");
    nameless.as_object_mut().unwrap().remove("kid");
    let nameless = verifier(json!({ "keys": [nameless] }).to_string());
    let token =
        |header: &str| bearer(header, &usual(), &signing(&EC, Algorithm::ES256), Algorithm::ES256);
    let (unnamed, other) = (token(r#"{"alg":"ES256"}"#), token(r#"{"alg":"ES256","kid":"x"}"#));
    assert!(user(&named, &unnamed).is_some() && user(&nameless, &unnamed).is_some());
    assert!(user(&named, &other).is_none() && user(&nameless, &other).is_some());
}

#[test]
fn key_files_that_cannot_be_used_say_what_was_expected() {
    let p384 = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
    let ec = |kid: &str| jwk(&EC, Algorithm::ES256, kid);
    let set = |keys: Value| json!({ "keys": keys }).to_string().into_bytes();
    let mut nameless = ec("");
    nameless.as_object_mut().unwrap().remove("kid");
    let mut private = ec("a");
    private["d"] = json!("AQAB");
    let der = EC.subject_public_key_info();
    let body: String = EC.public_key_pem().lines().filter(|line| !line.contains('-')).collect();
    let many: Vec<Value> = (0..101).map(|kid| ec(&kid.to_string())).collect();
    for (bytes, expected) in [
        (b"short".to_vec(), "at least 32 bytes"),
        (vec![], "at least 32 bytes"),
        (EC.serialize_pem().into_bytes(), "a private key"),
        (p384.public_key_pem().into_bytes(), "EC P-256"),
        (EC.public_key_pem().repeat(2).into_bytes(), "several PEM sections"),
        (b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----".to_vec(), "a certificate"),
        (b"-----BEGIN PUBLIC KEY-----\n!\n-----END PUBLIC KEY-----".to_vec(), "cannot be used"),
        (der, "looks like a public key"),
        (RSA.subject_public_key_info(), "looks like a public key"),
        (body.into_bytes(), "looks like a public key"),
        (b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE user@host".to_vec(), "looks like a public key"),
        (b"{".to_vec(), "is no JSON"),
        (b"{\"keys\":{}}".to_vec(), "has no list of keys"),
        (set(json!([])), "it is empty"),
        (set(json!([{ "kty": "oct", "k": base64url(SECRET) }])), "a secret"),
        (set(json!([{ "kty": "RSA", "n": "AQAB", "e": "AQAB" }])), "too short"),
        (set(json!([{ "kty": "RSA", "alg": "RS512", "n": "AQAB", "e": "AQAB" }])), "for RS512"),
        (set(json!([private])), "private part"),
        (set(json!([ec("a"), ec("a")])), "two keys with the `kid` \"a\""),
        (set(json!([ec("a"), nameless])), "without `kid`"),
        (set(json!(many)), "at most 100"),
    ] {
        let said = refusal(&bytes);
        assert!(said.contains(expected) && said.contains("key file"), "{expected}: {said}");
    }
    let missing = Verifier::load(Path::new("/nonexistent/key"), None, None).unwrap_err();
    assert!(missing.to_string().starts_with("cannot read /nonexistent/key: "), "{missing}");
    let endless = Verifier::load(Path::new("/dev/zero"), None, None).unwrap_err();
    assert!(endless.to_string().contains("it is a device, expected a file"), "{endless}");
}

#[test]
fn nothing_of_a_secret_is_shown() {
    let shown = format!("{:?}", verifier(SECRET));
    assert!(!shown.contains("0123") && !shown.contains("48, 49"), "{shown}");
}

#[test]
fn a_token_that_does_not_verify_says_why_and_no_token_is_no_failure() {
    let mut verifier = verifier(SECRET);
    verifier.issuer = Some("us".to_owned());
    verifier.audience = Some("api".to_owned());
    let signed = |changes: Value| {
        let mut payload = json!({ "exp": NOW_S + 10, "iss": "us", "aud": "api" });
        let changes = changes.as_object().unwrap().clone();
        payload.as_object_mut().unwrap().extend(changes);
        hs256(&payload.to_string())
    };
    let forged = signed(json!({})).replace("eyJhbGciOiJIUzI1NiJ9", "eyJhbGciOiJIUzM4NCJ9");
    for (authorization, reason) in [
        (signed(json!({})), "none"),
        ("Basic dTpw".to_owned(), "none"),
        ("Bearer x".to_owned(), "malformed"),
        (format!("Bearer {}", "x".repeat(TOKEN_BYTES_MAX + 1)), "malformed"),
        (format!("{}x", signed(json!({}))), "signature"),
        (forged, "signature"),
        (signed(json!({ "exp": NOW_S - LEEWAY_S })), "time"),
        (signed(json!({ "nbf": NOW_S + 2 * LEEWAY_S })), "time"),
        (signed(json!({ "iss": "them" })), "issuer"),
        (signed(json!({ "aud": ["app"] })), "audience"),
    ] {
        let failure = verifier.claims(&authorization, now()).err();
        assert_eq!(failure.map_or("none", TokenFailure::name), reason, "{authorization:.60}");
    }
}
