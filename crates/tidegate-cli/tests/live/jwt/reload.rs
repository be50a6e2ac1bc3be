//! Another key, while the daemon runs.

use serde_json::json;

use super::tokens::{EC, hs256, hs256_by};
use super::{POLICY, SECRET, World, claims, replace};
use crate::support::{Daemon, eventually};

#[test]
fn a_replaced_key_is_read_and_the_old_one_counts_no_more() {
    let world = World::new(SECRET);
    let old = hs256(&claims(json!({})));
    assert_eq!(world.limit(&old), 3000);
    let secret = b"another secret, of forty bytes all in all";
    replace(&world.key_path(), secret);
    let new = hs256_by(secret, &claims(json!({})));
    eventually("the new key", || world.limit(&new) == 3000);
    world.assert_anonymous(&old);
    // Also one of another kind.
    replace(&world.key_path(), EC.pair.public_key_pem().as_bytes());
    let newest = EC.token(&claims(json!({})));
    eventually("the newest key", || world.limit(&newest) == 3000);
    world.assert_anonymous(&new);
}

#[test]
fn a_broken_key_is_refused_and_the_old_one_stays() {
    let world = World::new(SECRET);
    replace(&world.key_path(), b"short");
    world.daemon.wait_for_log("a reload was refused");
    let log = world.daemon.log();
    assert!(log.contains("holds 5 bytes"), "{log}");
    assert_eq!(world.limit(&hs256(&claims(json!({})))), 3000);
    let status = world.daemon.status().to_string();
    assert!(status.contains("holds 5 bytes"), "{status}");
    let secret = b"another secret, of forty bytes all in all";
    std::fs::write(world.key_path(), secret).unwrap();
    world.daemon.signal("HUP");
    let new = hs256_by(secret, &claims(json!({})));
    eventually("the mended key", || world.limit(&new) == 3000);
}

#[test]
fn a_policy_that_begins_to_read_tokens_without_a_key_is_refused() {
    let policy = "tidegate: 1\nname: live\nlimits: { each: { by: client, total: 7 } }\n";
    let daemon = Daemon::with_policy(policy, None);
    replace(&daemon.policy_path(), POLICY.as_bytes());
    daemon.wait_for_log("a reload was refused");
    assert!(daemon.log().contains("--jwt-key"), "{}", daemon.log());
    assert_eq!(daemon.check(&json!({ "user": "u1" })).json()["limits"][0]["limit"], 7);
}
