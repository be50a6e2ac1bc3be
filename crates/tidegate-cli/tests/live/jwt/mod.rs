//! Bearer tokens: a verified token identifies its client, any other is ignored.

mod examples;
mod reload;
mod tokens;
mod verified;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{Answer, Daemon, Upstream};

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
const POLICY: &str = "
tidegate: 1
name: live
tiers: [free, gold]
identity:
  user: { jwt: sub }
  tier: { jwt: plan }
  default_tier: free
  attributes: { org: { jwt: org } }
limits:
  each: { by: client, total: { gold: 3000, free: 2000, default: 1000 } }
  org:  { by: org, missing: skip, total: 10 }
";

/// A gateway and an API that read tokens verified by a key.
struct World {
    daemon: Daemon,
    upstream: Upstream,
    folder: tempfile::TempDir,
}

impl World {
    fn new(key: &[u8]) -> Self {
        Self::with(key, &[])
    }

    fn with(key: &[u8], arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = key_path(&folder);
        std::fs::write(&path, key).unwrap();
        let upstream = Upstream::start();
        let arguments = [&["--jwt-key", path.to_str().unwrap()], arguments].concat();
        let daemon = Daemon::with_policy_and(POLICY, Some(&upstream), &arguments);
        Self { daemon, upstream, folder }
    }

    fn key_path(&self) -> PathBuf {
        key_path(&self.folder)
    }

    fn get(&self, token: &str) -> Answer {
        let authorization = format!("Bearer {token}");
        self.daemon.gateway().send("GET", "/a", &[("Authorization", &authorization)], None)
    }

    /// The number of the limit that applied to a request with this token: 1000 is for anonymous clients.
    fn limit(&self, token: &str) -> u64 {
        limit(&self.get(token))
    }

    #[track_caller]
    fn assert_anonymous(&self, token: &str) {
        assert_eq!(self.limit(token), 1000, "{token}");
    }
}

fn key_path(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("key")
}

fn limit(answer: &Answer) -> u64 {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.header("x-ratelimit-limit").unwrap().parse().unwrap()
}

/// Puts another file in its place, as operators and Kubernetes do.
fn replace(path: &Path, bytes: &[u8]) {
    let next = path.with_extension("next");
    std::fs::write(&next, bytes).unwrap();
    std::fs::rename(&next, path).unwrap();
}

/// The usual claims, with these in place of some; null takes one away.
fn claims(others: Value) -> Value {
    let mut claims = json!({ "sub": "u1", "plan": "gold", "exp": unix_seconds() + 3600 });
    let Value::Object(others) = others else { panic!("{others} are no claims") };
    claims.as_object_mut().unwrap().extend(others);
    claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    claims
}

#[allow(clippy::disallowed_methods, reason = "tokens expire in real time")]
fn unix_seconds() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}
