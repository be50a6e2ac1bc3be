//! Daemons that borrow tokens of a leased limit from one Redis.

use std::path::Path;
use std::thread;

use serde_json::json;
use tidegate_testkit::servers::Server;

use crate::support::{Daemon, eventually};

/// The refill is negligible while a test runs: only the burst can be spent.
const POLICY: &str = "
tidegate: 1
name: api
limits:
  calls: { by: global, token_bucket: 1/h burst 200, consistency: leased }
";
const BURST: usize = 200;
/// The tolerated shortfall: answers that came too late on a busy machine.
const SPARE: usize = 10;

struct Nodes {
    daemons: Vec<Daemon>,
    _redis: Server,
    _folder: tempfile::TempDir,
}

fn two_nodes() -> Nodes {
    let (redis, folder) = (Server::start().unwrap(), tempfile::tempdir().unwrap());
    let path = folder.path().join("policy.yaml");
    std::fs::write(&path, POLICY).unwrap();
    let daemons = vec![node(&path, &redis), node(&path, &redis)];
    eventually("both nodes to be seen", || {
        daemons.iter().all(|daemon| daemon.status()["store"]["nodes"] == 2)
    });
    Nodes { daemons, _redis: redis, _folder: folder }
}

fn node(policy: &Path, redis: &Server) -> Daemon {
    let patient = ["--store-timeout", "5s", "--threads", "2"];
    Daemon::start(Daemon::command().arg(policy).args(["--store", &redis.url()]).args(patient))
}

fn admits(daemon: &Daemon) -> bool {
    let answer = daemon.check(&json!({})).json();
    assert_eq!(answer["degraded"], false, "{answer}");
    answer["allowed"] == true
}

/// How many of `count` calls are admitted, one after the other.
fn admitted(daemon: &Daemon, calls: usize) -> usize {
    (0..calls).filter(|_| admits(daemon)).count()
}

fn spent(daemon: &Daemon) -> u64 {
    daemon.status()["store"]["leases"]["spent"].as_u64().unwrap()
}

/// Asks one node until the whole burst has been admitted, and not one more.
fn rest_gets_in(daemon: &Daemon, mut so_far: usize) {
    eventually("what others had borrowed", || {
        so_far += admitted(daemon, 5);
        so_far >= BURST - SPARE
    });
    so_far += admitted(daemon, 50);
    assert!(so_far <= BURST, "{so_far} of {BURST}");
}

#[test]
fn daemons_share_a_leased_bucket_within_its_burst() {
    let nodes = two_nodes();
    let so_far: usize = thread::scope(|scope| {
        let clients = (0..6).map(|client| {
            let daemon = &nodes.daemons[client % 2];
            scope.spawn(move || admitted(daemon, 60))
        });
        let clients: Vec<_> = clients.collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert!(so_far <= BURST, "{so_far} of {BURST}");
    assert!(nodes.daemons.iter().any(|daemon| spent(daemon) > 0), "nobody borrowed anything");
    let metrics = nodes.daemons[0].admin().get("/metrics").text();
    for family in ["leases", "lease_tokens", "lease_charges", "lease_loans", "lease_unspent"] {
        assert!(metrics.contains(&format!("tidegate_store_{family}")), "{metrics}");
    }
    rest_gets_in(&nodes.daemons[0], so_far);
}

#[test]
fn a_daemon_that_stops_gives_back_what_it_had_borrowed() {
    let mut nodes = two_nodes();
    let mut so_far = 0;
    eventually("a lease", || {
        so_far += admitted(&nodes.daemons[0], 1);
        nodes.daemons[0].status()["store"]["leases"]["tokens"].as_u64().unwrap() > 0
    });
    nodes.daemons[0].stop();
    rest_gets_in(&nodes.daemons[1], so_far);
}
