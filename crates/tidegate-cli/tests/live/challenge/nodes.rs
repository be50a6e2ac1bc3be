//! Several daemons on one Redis: each accepts the tokens of the other, once.

use std::thread;

use serde_json::{Value, json};
use tidegate_testkit::servers::Server;

use super::{POLICY, solved};
use crate::support::Daemon;

fn node(policy: &std::path::Path, store: &str) -> Daemon {
    // A long timeout: a busy machine must not look like a lost store.
    let patient = ["--store-timeout", "2s", "--threads", "2"];
    Daemon::start(Daemon::command().arg(policy).args(["--store", store]).args(patient))
}

fn post(daemon: &Daemon, call: &str, body: &Value) -> Value {
    daemon.api().post(call, &body.to_string()).json()
}

#[test]
fn a_challenge_is_answered_once_over_all_nodes_and_its_pass_holds_on_each() {
    let (redis, folder) = (Server::start().unwrap(), tempfile::tempdir().unwrap());
    let policy = folder.path().join("policy.yaml");
    std::fs::write(&policy, POLICY).unwrap();
    let nodes: Vec<Daemon> = (0..2).map(|_| node(&policy, &redis.url())).collect();
    for round in 0..5 {
        let user = format!("u{round}");
        let told = post(&nodes[0], "/v1/challenge", &json!({ "user": user }));
        let challenge = &told["challenge"];
        let said =
            json!({ "user": user, "token": challenge["token"], "solution": solved(challenge) });
        let passes: Vec<Value> = thread::scope(|scope| {
            let ask = |client: usize| post(&nodes[client % 2], "/v1/challenge", &said);
            let asking: Vec<_> = (0..8).map(|client| scope.spawn(move || ask(client))).collect();
            asking.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let granted: Vec<&Value> = passes.iter().filter(|told| told["pass"].is_string()).collect();
        assert_eq!(granted.len(), 1, "{passes:?}");
        assert_eq!(passes.iter().filter(|told| told["reason"] == "used").count(), 7);
        let with = json!({ "user": user, "headers": { "Tidegate-Pass": granted[0]["pass"] } });
        for (node, outcome) in [(0, "allowed"), (1, "warned"), (0, "warned")] {
            assert_eq!(post(&nodes[node], "/v1/check", &with)["outcome"], outcome);
        }
    }
}
