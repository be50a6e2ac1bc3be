//! The example policies that read tokens in a profile of their own.

use std::path::PathBuf;

use serde_json::json;

use super::tokens::hs256;
use super::{SECRET, claims, limit};
use crate::support::{Daemon, Upstream};

fn start(name: &str, key: &tempfile::NamedTempFile, upstream: &Upstream) -> Daemon {
    let policies = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/policies");
    let mut command = Daemon::command();
    command.arg(policies.join(name)).args(["--profile", "tokens", "--jwt-key"]).arg(key.path());
    command.args(["--gateway", "127.0.0.1:0", "--upstream", &upstream.url()]);
    Daemon::start(&mut command)
}

#[test]
fn the_learning_platform_takes_user_and_role_from_the_token() {
    let (key, upstream) = (tempfile::NamedTempFile::new().unwrap(), Upstream::start());
    std::fs::write(key.path(), SECRET).unwrap();
    let daemon = start("learning-platform.yaml", &key, &upstream);
    let get = |headers: &[(&str, &str)]| {
        limit(&daemon.gateway().send("GET", "/api/courses", headers, None))
    };
    for (role, expected) in [("learner", 100), ("premium", 300), ("instructor", 500)] {
        let token = hs256(&claims(json!({ "sub": role, "role": role })));
        assert_eq!(get(&[("Authorization", &format!("Bearer {token}"))]), expected, "{role}");
    }
    assert_eq!(get(&[("X-User-Id", "u1"), ("X-User-Role", "admin")]), 30, "headers do not count");
}

#[test]
fn the_user_service_takes_the_user_from_the_token() {
    let (key, upstream) = (tempfile::NamedTempFile::new().unwrap(), Upstream::start());
    std::fs::write(key.path(), SECRET).unwrap();
    let daemon = start("user-service.yaml", &key, &upstream);
    let upload = |authorization: &str| {
        let headers = [("Authorization", authorization)];
        daemon.gateway().send("POST", "/upload", &headers, None).status
    };
    let bearer = |user: &str| format!("Bearer {}", hs256(&claims(json!({ "sub": user }))));
    for _ in 0..5 {
        assert_eq!(upload(&bearer("u1")), 200);
    }
    assert_eq!(upload(&bearer("u1")), 429);
    assert_eq!(upload(&bearer("u2")), 200);
    assert_eq!(upload("Bearer junk"), 200, "the address alone has a count of its own");
}
