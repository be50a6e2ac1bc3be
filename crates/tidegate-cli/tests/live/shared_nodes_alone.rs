//! Daemons on one Redis: known refusals, lost stores, and what they merge afterwards.

use std::fs;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};
use tidegate_testkit::proxy::{Fault, Proxy};
use tidegate_testkit::servers::{Server, free_port};

use crate::support::{Daemon, eventually};

/// A node with a long timeout: a busy machine must not look like a lost store.
fn node(store: &str, limits: &str, more: &[&str]) -> Daemon {
    let policy = format!("tidegate: 1\nname: api\nlimits:\n{limits}\n");
    let arguments = [&["--store", store, "--store-timeout", "2s", "--threads", "2"], more].concat();
    let daemon = Daemon::with_policy_and(&policy, None, &arguments);
    eventually("a store that is heard", || metric(&daemon, "tidegate_store_hears_changes") == 1);
    daemon
}

fn check(daemon: &Daemon, cost: u32) -> Value {
    daemon.check(&json!({ "user": "u1", "cost": cost })).json()
}

fn call(daemon: &Daemon, call: &str, body: &Value) -> Value {
    let answer = daemon.api().post(call, &body.to_string());
    assert!(answer.status < 500, "{}: {}", answer.status, answer.text());
    answer.json()
}

/// What is left of the first limit. The check costs nothing.
fn left(daemon: &Daemon) -> u64 {
    check(daemon, 0)["limits"][0]["remaining"].as_u64().unwrap()
}

fn metric(daemon: &Daemon, name: &str) -> u64 {
    let page = daemon.admin().get("/metrics").text();
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(0, |value| value.parse().unwrap())
}

/// All keys of limits.
fn keys(redis: &Server) -> Vec<String> {
    let found = redis.command(&["KEYS", "tg:*"]).unwrap();
    let keys = found.items().iter().map(|key| key.text().to_owned());
    keys.filter(|key| !key.starts_with("tg:@")).collect()
}

#[test]
fn a_refusal_is_remembered_until_its_key_is_reset() {
    let redis = Server::start().unwrap();
    let limits = "  calls: { by: user, token_bucket: 1/h burst 1 }";
    let nodes = [(); 2].map(|()| node(&redis.url(), limits, &[]));
    assert_eq!(check(&nodes[0], 1)["allowed"], true);
    let given = "tidegate_store_known_refusals_given_total";
    for daemon in &nodes {
        eventually("a refusal that is remembered", || {
            let refused = check(daemon, 1);
            assert_eq!((&refused["allowed"], &refused["degraded"]), (&json!(false), &json!(false)));
            assert_eq!(refused["retry_after_ms"].as_u64().unwrap().div_ceil(3_600_000), 1);
            metric(daemon, given) > 0
        });
    }
    for key in keys(&redis) {
        redis.command(&["DEL", &key]).unwrap();
    }
    // No message reached the nodes: they still ask again within a second.
    eventually("the key to be new", || check(&nodes[1], 1)["allowed"] == true);
    assert_eq!(check(&nodes[0], 1)["allowed"], false);
    let reset = nodes[1].admin().send("DELETE", "/admin/v1/keys?user=u1", &[], None);
    assert_eq!(reset.status, 200, "{}", reset.text());
    eventually("the key to be new on the other node", || check(&nodes[0], 1)["allowed"] == true);
}

/// One node next to the server, and one behind a bad network.
fn near_and_far(limits: &str) -> (Server, Proxy, Daemon, Daemon) {
    let redis = Server::start().unwrap();
    let proxy = Proxy::to(redis.addr()).unwrap();
    let (near, far) = (node(&redis.url(), limits, &[]), node(&proxy.url(), limits, &[]));
    for daemon in [&near, &far] {
        eventually("both nodes to be seen", || daemon.status()["store"]["nodes"] == 2);
    }
    (redis, proxy, near, far)
}

fn cut_off(proxy: &Proxy, far: &Daemon) {
    proxy.set(Fault::Refuse);
    proxy.cut();
    eventually("a lost store", || far.status()["store"]["state"] == "lost");
}

#[test]
fn a_node_that_is_cut_off_starts_from_the_last_answer_and_merges_its_admissions() {
    let (_redis, proxy, near, far) = near_and_far("  calls: { by: user, sliding_window: 100/h }");
    assert_eq!(check(&far, 60)["allowed"], true);
    cut_off(&proxy, &far);
    let alone = check(&far, 1);
    assert_eq!((&alone["allowed"], &alone["degraded"]), (&json!(true), &json!(true)));
    assert_eq!(alone["limits"][0]["remaining"], 19, "half of the forty that were left, less one");
    assert_eq!(check(&far, 9)["allowed"], true);
    assert_eq!(left(&near), 40);
    eventually("what is owed", || far.status()["store"]["owed_keys"] == 1);

    proxy.set(Fault::None);
    eventually("what the other admitted to be charged", || left(&near) == 30);
    eventually("the store to be well", || far.status()["store"]["state"] == "healthy");
    assert_eq!((left(&far), left(&near)), (30, 30), "once");
    assert_eq!(metric(&far, "tidegate_store_merged_total{result=\"sent\"}"), 1);
    far.wait_for_log("event=\"store_merged\"");
    for state in ["open", "half-open", "merging", "healthy"] {
        far.wait_for_log(&format!("state={state}"));
    }
}

#[test]
fn a_lease_is_released_renewed_and_settled_while_the_store_is_lost() {
    let limits = "  tokens: { by: user, total: 1000 }
  places: { by: user, concurrency: 1, lease: 5min, on_store_failure: allow }";
    let (_redis, proxy, near, far) = near_and_far(limits);
    let asked = json!({ "user": "u1", "cost": 500, "reserve": true });
    let held = call(&near, "/v1/check", &asked);
    cut_off(&proxy, &far);
    let lease = json!({ "lease": held["lease"] });
    let settled = json!({ "lease": held["lease"], "cost": 120, "status": 200 });
    let told = |what: &str| json!({ (what): true, "degraded": true });
    assert_eq!(call(&far, "/v1/renew", &lease), told("renewed"));
    assert_eq!(call(&far, "/v1/release", &lease), told("released"));
    assert_eq!(call(&far, "/v1/settle", &settled), told("settled"));
    assert_eq!(far.status()["store"]["corrections_waiting"], 2);
    assert_eq!((left(&near), check(&near, 1)["limit"].clone()), (500, json!("places")));

    proxy.set(Fault::None);
    eventually("the true cost to be known", || left(&near) == 880);
    assert_eq!(check(&near, 1)["allowed"], true, "the place is free");
    assert_eq!(call(&far, "/v1/settle", &settled)["status"], 404, "it is settled once");
    assert_eq!(metric(&far, "tidegate_store_corrections_lost_total"), 0);
}

#[test]
fn the_status_shows_every_server_with_its_state_and_what_is_wrong() {
    let (_redis, proxy, _near, far) = near_and_far("  calls: { by: user, total: 9 }");
    let shard = |daemon: &Daemon| daemon.status()["store"]["shards"][0].clone();
    assert_eq!((&shard(&far)["state"], &shard(&far)["queued"]), (&json!("healthy"), &json!(0)));
    cut_off(&proxy, &far);
    let lost = shard(&far);
    assert!(lost["last_error"].is_string() && lost["since"].is_string(), "{lost}");
    assert_eq!(lost["address"], proxy.addr().to_string());
    proxy.set(Fault::None);
    eventually("it to be asked again", || {
        let store = &far.status()["store"];
        // The store decides again before it is trusted.
        assert!(store["state"] != "recovering" || store["degraded"] == false, "{store}");
        store["state"] == "healthy"
    });
}

#[test]
fn nodes_that_hash_keys_with_different_secrets_are_noticed() {
    let (redis, folder) = (Server::start().unwrap(), tempfile::tempdir().unwrap());
    let secret = |digit: &str| {
        let path = folder.path().join(digit);
        fs::write(&path, digit.repeat(32)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let start = |digit: &str| {
        node(&redis.url(), "  calls: { by: user, total: 9 }", &["--hash-key", &secret(digit)])
    };
    let [one, same] = ["a", "a"].map(start);
    eventually("both nodes to be seen", || one.status()["store"]["nodes"] == 2);
    let warned = |daemon: &Daemon| daemon.status()["warnings"].to_string().contains("--hash-key");
    assert!(!warned(&same));
    let other = start("b");
    for daemon in [&one, &same, &other] {
        daemon.wait_for_log("event=\"secret_differs\"");
        eventually("a warning", || warned(daemon));
    }
    drop(other);
    eventually("the warning to be over", || !warned(&one));
}

#[test]
fn a_store_with_a_certificate_of_the_companys_own_is_trusted_when_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (ca, key) = (write("ca.pem", cert.pem()), write("key.pem", signing_key.serialize_pem()));
    let port = free_port().unwrap().to_string();
    let _redis = Server::start_with(&[
        "--tls-port",
        &port,
        "--tls-auth-clients",
        "no",
        "--tls-cert-file",
        &ca,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &ca,
    ])
    .unwrap();
    let (store, limits) = (format!("rediss://localhost:{port}"), "  a: { by: user, total: 9 }");
    let trusting = node(&store, limits, &["--store-ca", &ca]);
    assert_eq!(check(&trusting, 1)["degraded"], false);
    let policy = format!("tidegate: 1\nname: api\nlimits:\n{limits}\n");
    let doubting = Daemon::with_policy_and(&policy, None, &["--store", &store]);
    eventually("a certificate that is not trusted", || {
        doubting.status()["store"]["last_error"].to_string().contains("certificate")
    });
    assert_eq!(check(&doubting, 1)["degraded"], true);
}
