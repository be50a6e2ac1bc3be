//! Which tokens count, and which do not.

use jsonwebtoken::{Algorithm, EncodingKey};
use rcgen::PublicKeyData as _;
use serde_json::{Value, json};

use super::tokens::{EC, ED, RSA, base64url, hs256, hs256_by, token, unsigned};
use super::{SECRET, World, claims, limit, unix_seconds};

#[test]
fn user_and_tier_come_from_the_token() {
    let world = World::new(SECRET);
    let gold = hs256(&claims(json!({})));
    assert_eq!(world.limit(&gold), 3000);
    assert_eq!(world.get(&gold).header("x-ratelimit-remaining"), Some("2998"));
    assert_eq!(world.limit(&hs256(&claims(json!({ "sub": "u2", "plan": null })))), 2000);
    assert_eq!(world.limit(&hs256(&claims(json!({ "sub": "u3", "plan": "silver" })))), 2000);
    assert_eq!(world.limit(&hs256(&claims(json!({ "sub": null, "plan": null })))), 1000);
    assert_eq!(world.limit(&hs256(&claims(json!({ "org": "acme" })))), 10);
    // Another token of the same user draws on the same count.
    let another = world.get(&hs256(&claims(json!({ "jti": "2" }))));
    assert_eq!(another.header("x-ratelimit-remaining"), Some("2996"));
    let seen = world.upstream.last();
    assert!(seen.header("authorization").unwrap().starts_with("Bearer "), "it passes the token on");
}

#[test]
fn tokens_that_do_not_verify_are_counted_by_reason_and_logged_once_a_second() {
    let world = World::new(SECRET);
    let expired = hs256(&claims(json!({ "exp": unix_seconds() - 3_600 })));
    for _ in 0..3 {
        world.assert_anonymous(&expired);
    }
    world.assert_anonymous("nonsense");
    let page = world.daemon.admin().get("/metrics").text();
    for (reason, count) in [("time", 3), ("malformed", 1), ("signature", 0)] {
        let line = format!("tidegate_token_failures_total{{reason=\"{reason}\"}} {count}\n");
        assert!(page.contains(&line), "{line}: {page}");
    }
    world.daemon.wait_for_log("token_refused");
}

#[test]
fn the_api_reads_the_token_that_its_caller_passes_on() {
    let world = World::new(SECRET);
    let check = |request: Value| world.daemon.check(&request).json()["limits"][0]["limit"].clone();
    let authorization = format!("Bearer {}", hs256(&claims(json!({}))));
    assert_eq!(check(json!({ "headers": { "authorization": authorization } })), 3000);
    let headers = json!({ "Authorization": authorization });
    assert_eq!(check(json!({ "headers": headers, "user": "u9", "tier": "free" })), 2000);
    let forged = format!("Bearer {}", hs256_by(&[b'x'; 32], &claims(json!({}))));
    let request = json!({ "headers": { "authorization": forged }, "ip": "192.0.2.1" });
    assert_eq!(check(request), 1000);
}

#[test]
fn each_kind_of_public_key_verifies_its_own_tokens() {
    for signer in [&*RSA, &*EC, &*ED] {
        let world = World::new(signer.pair.public_key_pem().as_bytes());
        let good = signer.token(&claims(json!({})));
        assert_eq!(world.limit(&good), 3000, "{}", signer.name);
        // The payload, exchanged.
        let mut parts: Vec<&str> = good.split('.').collect();
        let forged = base64url(claims(json!({ "sub": "root" })).to_string().as_bytes());
        parts[1] = &forged;
        world.assert_anonymous(&parts.join("."));
        for other in [&*RSA, &*EC, &*ED].into_iter().filter(|other| other.name != signer.name) {
            world.assert_anonymous(&other.token(&claims(json!({}))));
        }
    }
}

#[test]
fn a_key_set_verifies_by_the_key_that_a_token_names() {
    let keys = json!({ "keys": [RSA.jwk("r"), EC.jwk("e"), ED.jwk("d")] });
    let world = World::new(keys.to_string().as_bytes());
    let claims = claims(json!({}));
    for (signer, kid) in [(&*RSA, "r"), (&*EC, "e"), (&*ED, "d")] {
        assert_eq!(world.limit(&signer.token_of(Some(kid), &claims)), 3000, "{kid}");
    }
    world.assert_anonymous(&RSA.token_of(Some("e"), &claims));
    world.assert_anonymous(&RSA.token_of(Some("x"), &claims));
    world.assert_anonymous(&RSA.token(&claims));
}

#[test]
fn an_unsigned_token_is_anonymous() {
    for key in [SECRET, EC.pair.public_key_pem().as_bytes()] {
        let world = World::new(key);
        for algorithm in ["none", "None", "nOnE", "HS256", "ES256", ""] {
            let message = unsigned(&json!({ "alg": algorithm }), &claims(json!({})));
            for signature in [".", ".AAAA", ""] {
                world.assert_anonymous(&format!("{message}{signature}"));
            }
        }
    }
}

#[test]
fn a_public_key_is_no_secret() {
    for signer in [&*RSA, &*EC] {
        let pem = signer.pair.public_key_pem();
        let world = World::new(pem.as_bytes());
        let der = signer.pair.subject_public_key_info();
        for bytes in [pem.as_bytes(), pem.trim_end().as_bytes(), &der] {
            for algorithm in ["HS256", signer.name] {
                let secret = EncodingKey::from_secret(bytes);
                let header = json!({ "alg": algorithm });
                world.assert_anonymous(&token(
                    &header,
                    &claims(json!({})),
                    &secret,
                    Algorithm::HS256,
                ));
            }
        }
    }
}

#[test]
fn a_token_of_another_key_is_anonymous() {
    let world = World::new(SECRET);
    world.assert_anonymous(&hs256_by(b"another secret of thirty-two byte", &claims(json!({}))));
    world.assert_anonymous(&hs256_by(b"", &claims(json!({}))));
    let own_key = json!({ "alg": "HS256", "jwk": { "kty": "oct", "k": "eA" }, "jku": "http://x" });
    let secret = EncodingKey::from_secret(b"x");
    world.assert_anonymous(&token(&own_key, &claims(json!({})), &secret, Algorithm::HS256));
    let header = json!({ "alg": "HS512" });
    let secret = EncodingKey::from_secret(SECRET);
    world.assert_anonymous(&token(&header, &claims(json!({})), &secret, Algorithm::HS512));
    let critical = json!({ "alg": "HS256", "crit": ["b64"], "b64": false });
    world.assert_anonymous(&token(&critical, &claims(json!({})), &secret, Algorithm::HS256));
}

#[test]
fn a_token_counts_only_in_its_time() {
    let (world, now) = (World::new(SECRET), unix_seconds());
    for wrong in [
        json!({ "exp": now - 3600 }),
        json!({ "exp": 0 }),
        json!({ "exp": null }),
        json!({ "exp": "tomorrow" }),
        json!({ "exp": -1 }),
        json!({ "nbf": now + 3600 }),
        json!({ "nbf": "now" }),
    ] {
        world.assert_anonymous(&hs256(&claims(wrong)));
    }
    assert_eq!(world.limit(&hs256(&claims(json!({ "nbf": now - 5 })))), 3000);
    // The issuer's clock may be off by less than a minute.
    assert_eq!(world.limit(&hs256(&claims(json!({ "exp": now - 10 })))), 3000);
}

#[test]
fn issuer_and_audience_must_be_those_that_were_asked_for() {
    let arguments = ["--jwt-issuer", "https://id.example", "--jwt-audience", "shop"];
    let world = World::with(SECRET, &arguments);
    let good = json!({ "iss": "https://id.example", "aud": ["bank", "shop"] });
    assert_eq!(world.limit(&hs256(&claims(good))), 3000);
    for wrong in [
        json!({}),
        json!({ "iss": "https://id.example" }),
        json!({ "aud": "shop" }),
        json!({ "iss": "https://id.example/", "aud": "shop" }),
        json!({ "iss": ["https://id.example"], "aud": "shop" }),
        json!({ "iss": "https://id.example", "aud": "shop2" }),
        json!({ "iss": "https://id.example", "aud": [] }),
    ] {
        world.assert_anonymous(&hs256(&claims(wrong)));
    }
}

#[test]
fn a_request_without_a_bearer_token_is_anonymous() {
    let world = World::new(SECRET);
    let good = hs256(&claims(json!({})));
    for authorization in [
        good.clone(),
        format!("Basic {good}"),
        "Bearer".into(),
        "Bearer a.b.c".into(),
        String::new(),
    ] {
        let headers = [("Authorization", authorization.as_str())];
        let answer = world.daemon.gateway().send("GET", "/a", &headers, None);
        assert_eq!(limit(&answer), 1000, "{authorization}");
    }
    let headers = [("X-User-Id", "u1"), ("Cookie", good.as_str())];
    let answer = world.daemon.gateway().send("GET", "/a", &headers, None);
    assert_eq!(limit(&answer), 1000);
}

#[test]
fn two_tokens_are_malformed_because_the_service_could_read_either() {
    let world = World::new(SECRET);
    let bearer = |user: &str| format!("Bearer {}", hs256(&claims(json!({ "sub": user }))));
    let (first, second) = (bearer("u1"), bearer("u2"));
    let headers = [("Authorization", first.as_str()), ("Authorization", second.as_str())];
    let answer = world.daemon.gateway().send("GET", "/a", &headers, None);
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert_eq!(world.upstream.count(), 0);
}
