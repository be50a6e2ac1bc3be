//! Several daemons on one Redis, and one whose Redis is not there.

use std::path::PathBuf;
use std::thread;

use serde_json::{Value, json};
use tidegate_testkit::servers::Server;

use crate::support::{Daemon, Upstream, eventually};

const POLICY: &str = "
tidegate: 1
name: api
limits:
  total:  { by: user, total: 200 }
  places: { by: user, concurrency: 20, lease: 5min }
";

/// Nodes on one server.
struct Nodes {
    redis: Server,
    daemons: Vec<Daemon>,
    /// Where the policy is.
    _folder: tempfile::TempDir,
}

impl Nodes {
    fn start(count: usize, policy: &str) -> Self {
        let (redis, folder) = (Server::start().unwrap(), tempfile::tempdir().unwrap());
        let path = folder.path().join("policy.yaml");
        std::fs::write(&path, policy).unwrap();
        let daemons = (0..count).map(|_| node(&path, &redis.url())).collect();
        Self { redis, daemons, _folder: folder }
    }
}

fn node(policy: &PathBuf, store: &str) -> Daemon {
    // A long timeout: a busy machine must not look like a lost store.
    let patient = ["--store-timeout", "2s", "--threads", "2"];
    Daemon::start(Daemon::command().arg(policy).args(["--store", store]).args(patient))
}

fn check(daemon: &Daemon, user: &str) -> Value {
    daemon.check(&json!({ "user": user })).json()
}

fn call(daemon: &Daemon, call: &str, body: &Value) -> Value {
    daemon.api().post(call, &body.to_string()).json()
}

/// How many of 400 calls two nodes admit, asked by eight clients at once.
fn admitted_of_400(nodes: &Nodes, user: &str) -> usize {
    thread::scope(|scope| {
        let clients = (0..8).map(|client| {
            let daemon = &nodes.daemons[client % 2];
            scope.spawn(move || {
                let answers = (0..50).map(|_| check(daemon, user));
                let told = answers.inspect(|answer| assert_eq!(answer["degraded"], false));
                told.filter(|answer| answer["allowed"] == true).count()
            })
        });
        let clients: Vec<_> = clients.collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    })
}

/// There is no refill while a test runs: only the limit can be spent.
fn share_exactly(limit: &str) {
    let policy = format!("tidegate: 1\nname: api\nlimits:\n  calls: {{ by: user, {limit} }}\n");
    let nodes = Nodes::start(2, &policy);
    assert_eq!(admitted_of_400(&nodes, "u1"), 200);
    assert_eq!(check(&nodes.daemons[0], "u2")["allowed"], true);
    let store = &nodes.daemons[0].status()["store"];
    assert_eq!((&store["kind"], &store["degraded"]), (&json!("redis"), &json!(false)), "{store}");
    eventually("both nodes to be seen", || nodes.daemons[0].status()["store"]["nodes"] == 2);
}

#[test]
fn daemons_on_one_redis_share_one_total_exactly() {
    share_exactly("total: 200");
}

#[test]
fn daemons_on_one_redis_share_one_token_bucket_exactly() {
    share_exactly("token_bucket: 1/h burst 200");
}

#[test]
fn daemons_on_one_redis_share_one_sliding_window_exactly() {
    share_exactly("sliding_window: 200/h");
}

#[test]
fn daemons_on_one_redis_share_one_quota_exactly() {
    // The longest window: a month seldom ends in the middle of a test.
    share_exactly("quota: 200/month");
}

#[test]
fn a_lease_is_renewed_settled_and_given_back_on_any_node_and_once() {
    let nodes = Nodes::start(2, &POLICY.replace("concurrency: 20", "concurrency: 1"));
    let [one, other] = &nodes.daemons[..] else { panic!("two nodes") };
    let held = call(one, "/v1/check", &json!({ "user": "u1", "cost": 50, "reserve": true }));
    let lease = json!({ "lease": held["lease"] });
    assert_eq!(check(other, "u1")["limit"], "places");
    assert_eq!(call(other, "/v1/renew", &lease), json!({ "renewed": true }));
    assert_eq!(call(other, "/v1/release", &lease), json!({ "released": true }));
    assert_eq!(call(one, "/v1/release", &lease), json!({ "released": false }));
    let settled = json!({ "lease": held["lease"], "cost": 10 });
    assert_eq!(call(other, "/v1/settle", &settled), json!({ "settled": true }));
    for node in [one, other] {
        assert_eq!(call(node, "/v1/settle", &settled)["status"], 404);
    }
    let seen = check(one, "u1");
    assert_eq!(seen["limits"][0]["remaining"], 200 - 10 - 1, "{seen}");
}

/// The outcomes of 300 requests of one user in one batch.
fn batch_of_300(policy: &str) -> Vec<String> {
    let nodes = Nodes::start(1, policy);
    let told =
        call(&nodes.daemons[0], "/v1/check/batch", &json!(vec![json!({ "user": "u" }); 300]));
    let outcome = |one: &Value| one["outcome"].as_str().unwrap_or_default().to_owned();
    told.as_array().unwrap().iter().map(outcome).collect()
}

#[test]
fn a_batch_on_redis_is_decided_in_order() {
    let outcomes = batch_of_300(POLICY.replace("concurrency: 20", "concurrency: 1000").as_str());
    let (first, rest) = outcomes.split_at(200);
    assert!(first.iter().all(|outcome| outcome == "allowed"), "{outcomes:?}");
    assert!(rest.iter().all(|outcome| outcome == "limited"), "{outcomes:?}");
}

#[test]
fn a_refusal_in_a_batch_on_redis_bans_later_requests_of_the_batch() {
    let ladder =
        "penalties:\n  p: { event: limited, by: user, within: 1h, ladder: { 3: { ban: 1h } } }\n";
    let limit = "tidegate: 1\nname: api\nlimits:\n  total: { by: user, total: 100 }\n";
    let outcomes = batch_of_300(&format!("{limit}{ladder}"));
    let behind = |outcome: &str| outcomes.iter().position(|one| one == outcome);
    assert_eq!((behind("limited"), behind("banned")), (Some(100), Some(102)), "{outcomes:?}");
    assert!(outcomes[102..].iter().all(|outcome| outcome == "banned"), "{outcomes:?}");
}

#[test]
fn a_waiting_request_gets_a_place_that_another_node_releases() {
    let nodes = Nodes::start(2, &POLICY.replace("concurrency: 20", "concurrency: 1"));
    let [one, other] = &nodes.daemons[..] else { panic!("two nodes") };
    let lease = json!({ "lease": check(one, "u1")["lease"] });
    thread::scope(|scope| {
        let asked = json!({ "user": "u1", "max_wait_ms": 60_000 });
        let waits = scope.spawn(move || call(other, "/v1/acquire", &asked));
        eventually("somebody to wait", || other.status()["waiting"] == 1);
        assert_eq!(call(one, "/v1/release", &lease), json!({ "released": true }));
        assert_eq!(waits.join().unwrap()["allowed"], true);
    });
}

#[test]
fn a_daemon_starts_without_its_store_says_so_and_finds_it() {
    let nodes = Nodes::start(0, POLICY);
    let path = nodes._folder.path().join("policy.yaml");
    nodes.redis.kill().unwrap();
    let daemon = Daemon::start(Daemon::command().arg(&path).args([
        "--store",
        &nodes.redis.url(),
        "--nodes",
        "4",
        "--store-timeout",
        "2s",
    ]));
    assert_eq!(daemon.api().get("/ready").status, 200);
    let degraded = check(&daemon, "u1");
    assert_eq!((&degraded["allowed"], &degraded["degraded"]), (&json!(true), &json!(true)));
    assert_eq!(degraded["limits"][0]["remaining"], 49, "a quarter of the limit: {degraded}");
    let store = &daemon.status()["store"];
    assert_eq!((&store["state"], &store["degraded"]), (&json!("lost"), &json!(true)), "{store}");
    eventually("what is wrong", || daemon.status()["store"]["last_error"].is_string());
    let metrics = daemon.admin().get("/metrics").text();
    assert!(metrics.contains("state=\"healthy\"} 0\n"), "{metrics}");
    assert!(metrics.contains("tidegate_store_fallback_total{reason=\"unavailable\"} 1\n"));
    daemon.wait_for_log("event=\"store_state\"");

    nodes.redis.restart().unwrap();
    eventually("the store to be found", || check(&daemon, "u2")["degraded"] == false);
    eventually("a healthy store", || daemon.status()["store"]["state"] == "healthy");
    nodes.redis.kill().unwrap();
    eventually("the store to be lost", || check(&daemon, "u3")["degraded"] == true);
    assert_eq!(daemon.api().get("/ready").status, 200);
}

#[test]
fn gateways_on_one_redis_share_places_and_give_them_back() {
    let upstream = Upstream::start();
    let redis = Server::start().unwrap();
    let policy = "{tidegate: 1, name: g, limits: {one: {by: global, concurrency: 1, lease: 5min}}}";
    let arguments = ["--store", &redis.url(), "--store-timeout", "2s"];
    let start = || Daemon::with_policy_and(policy, Some(&upstream), &arguments);
    let gateways = [start(), start()];
    for turn in 0..10 {
        let gateway = gateways[turn % 2].gateway();
        eventually("the place to be free again", || gateway.get("/").status == 200);
    }
    let refused = gateways.iter().any(|one| one.log().contains("store_failed"));
    assert!(!refused, "{}", gateways[0].log());
}

#[test]
fn nodes_that_start_apart_agree_on_the_secret() {
    let nodes = Nodes::start(1, POLICY);
    for _ in 0..2 {
        assert_eq!(check(&nodes.daemons[0], "u1")["allowed"], true);
    }
    let path = nodes._folder.path().join("policy.yaml");
    let late = node(&path, &nodes.redis.url());
    assert_eq!(check(&late, "u1")["limits"][0]["remaining"], 197);
}
