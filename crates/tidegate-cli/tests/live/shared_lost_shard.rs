//! A daemon that starts while one server of a cluster is lost, with its replica.

use serde_json::json;
use tidegate_testkit::servers::Cluster;

use crate::support::{Daemon, eventually};

/// Keys with a known slot. The refill is negligible while the test runs.
const POLICY: &str = "
tidegate: 1
name: api
limits:
  calls: { by: user, key: 'calls:{user:raw}', token_bucket: 10/h }
";
const LIMIT: usize = 10;

/// The first primary that has this key.
fn owner(cluster: &Cluster, key: &str) -> usize {
    cluster.first_owner_of(cluster.slot_of(key).unwrap())
}

/// Users whose key lies on one of these primaries.
fn users(cluster: &Cluster, is_theirs: impl Fn(usize) -> bool) -> impl Iterator<Item = String> {
    let all = (0..).map(|number| format!("u{number}"));
    all.filter(move |user| is_theirs(owner(cluster, &format!("tg:calls:{user}"))))
}

/// Whether the request was admitted, and whether without the store.
fn asked(daemon: &Daemon, user: &str) -> (bool, bool) {
    let answer = daemon.check(&json!({ "user": user }));
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = answer.json();
    (answer["allowed"] == true, answer["degraded"] == true)
}

fn daemon(cluster: &Cluster, policy: &std::path::Path) -> Daemon {
    let seeds = cluster.nodes().iter().map(|node| node.addr().to_string());
    let store = format!("redis+cluster://{}", seeds.collect::<Vec<_>>().join(","));
    // A long timeout: the speed of this machine is not tested.
    let flags = ["--store", &store, "--store-timeout", "2s", "--nodes", "2"];
    Daemon::start(Daemon::command().arg(policy).args(flags))
}

#[test]
fn limits_of_the_other_servers_are_exact_at_once_and_those_of_the_lost_one_recover() {
    let cluster = Cluster::start().unwrap();
    for node in cluster.nodes() {
        node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).unwrap();
    }
    let lost = (owner(&cluster, "tg:@{all}secret") + 1) % 3;
    let shard = [lost, lost + 3].map(|node| &cluster.nodes()[node]);
    shard.iter().for_each(|node| node.kill().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.yaml");
    std::fs::write(&policy, POLICY).unwrap();
    let daemons = [daemon(&cluster, &policy), daemon(&cluster, &policy)];

    for user in users(&cluster, |owner| owner != lost).take(5) {
        let answers: Vec<_> = (0..2 * LIMIT).map(|turn| asked(&daemons[turn % 2], &user)).collect();
        assert!(answers.iter().all(|(_, degraded)| !degraded), "{user}: {answers:?}");
        let admitted = answers.iter().filter(|(allowed, _)| *allowed).count();
        assert_eq!(admitted, LIMIT, "{user}");
    }
    let mut others = users(&cluster, |owner| owner == lost);
    let mut share = String::new();
    // Each has the whole limit until it has seen the other, which takes it a second.
    eventually("half of the limit on each node", || {
        let user = others.next().unwrap();
        let answers: Vec<_> = (0..2 * LIMIT).map(|_| asked(&daemons[0], &user)).collect();
        assert!(answers.iter().all(|(_, degraded)| *degraded), "{user}: {answers:?}");
        share = user;
        answers.iter().filter(|(allowed, _)| *allowed).count() == LIMIT / 2
    });
    assert_eq!(daemons[0].status()["store"]["degraded"], true);

    shard.iter().for_each(|node| node.restart().unwrap());
    for daemon in &daemons {
        eventually("a healthy store", || daemon.status()["store"]["state"] == "healthy");
    }
    eventually("nothing owed", || daemons[0].status()["store"]["owed_keys"] == 0);
    // The store was charged with the admissions without it.
    let answers: Vec<_> = (0..LIMIT).map(|turn| asked(&daemons[turn % 2], &share)).collect();
    assert!(answers.iter().all(|(_, degraded)| !degraded), "{answers:?}");
    let admitted = answers.iter().filter(|(allowed, _)| *allowed).count();
    assert_eq!(admitted, LIMIT - LIMIT / 2, "{answers:?}");
}
