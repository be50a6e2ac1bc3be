//! Daemons that share a cluster or a server with sentinels, under load, while slots move and servers
//! are lost: no caller sees an error, and the bounds hold.

use std::{io, thread};

use serde_json::json;
use tidegate_testkit::checkers::trouble::Trouble;
use tidegate_testkit::servers::{Cluster, Sentinels};

use crate::fault_scene::{BUCKET, CALM, PATIENT, Reach, Scene, bucket, judge, survive};
use crate::support::{Daemon, eventually};

/// The judged limit, and others in slots of their own that are never reached.
const LIMITS: &str = "  calls: { by: user, token_bucket: 20/s burst 100 }
  all: { by: global, token_bucket: 100000/s burst 100000 }
  hours: { by: user, fixed_window: 1000000/h }
";
/// The allowance for nodes that decide alone for a while.
const ALL_CUT_OFF: Trouble = Trouble { cut_off: 2, turned: true, ..CALM };
/// The allowance for a failover, which loses at most the writes of the last second.
const FAILED_OVER: Trouble = Trouble { failovers: 1, lag_us: 1_000_000, ..ALL_CUT_OFF };

fn on_a_cluster() -> Scene<Cluster> {
    let cluster = Cluster::start().unwrap();
    let store = url_of(&cluster);
    Scene::start(cluster, [store.clone(), store], LIMITS, bucket(), PATIENT)
}

fn url_of(cluster: &Cluster) -> String {
    let seeds = cluster.nodes().iter().map(|node| node.addr().to_string());
    format!("redis+cluster://{}", seeds.collect::<Vec<_>>().join(","))
}

fn with_sentinels() -> Scene<Sentinels> {
    // One: several that were told to hurry undo what one of them began by hand.
    let sentinels = Sentinels::start(1).unwrap();
    let store = url_by(&sentinels);
    Scene::start(sentinels, [store.clone(), store], BUCKET, bucket(), PATIENT)
}

fn url_by(sentinels: &Sentinels) -> String {
    let seeds = sentinels.sentinels().iter().map(|sentinel| sentinel.addr().to_string());
    let seeds = seeds.collect::<Vec<_>>().join(",");
    format!("redis+sentinel://{seeds}/{}", Sentinels::NAME)
}

/// Two daemons admit as many as the limit says between them, not one more or less.
fn admit_exactly(store: &str, flags: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    let limits = LIMITS.replace("token_bucket: 20/s burst 100", "total: 200");
    std::fs::write(&path, format!("tidegate: 1\nname: api\nlimits:\n{limits}")).unwrap();
    let daemons = [(); 2].map(|()| {
        let arguments = ["--store", store, "--store-timeout", PATIENT];
        Daemon::start(Daemon::command().arg(&path).args(arguments).args(flags))
    });
    for daemon in &daemons {
        eventually("a healthy store", || daemon.status()["store"]["state"] == "healthy");
    }
    let asked = json!({ "user": "u1" });
    let admitted = thread::scope(|scope| {
        let clients = [0, 1, 0, 1].map(|node| {
            let (daemon, asked) = (&daemons[node], &asked);
            scope.spawn(move || {
                let answers = (0..100).map(|_| daemon.check(asked).json());
                answers.filter(|answer| answer["allowed"] == true).count()
            })
        });
        clients.map(|client| client.join().unwrap()).into_iter().sum::<usize>()
    });
    assert_eq!(admitted, 200);
    for daemon in &daemons {
        let store = &daemon.status()["store"];
        assert_eq!(store["degraded"], false, "{store}");
    }
}

#[test]
fn daemons_on_a_cluster_or_with_sentinels_share_one_total_exactly() {
    let cluster = Cluster::start().unwrap();
    admit_exactly(&url_of(&cluster), &[]);
    admit_exactly(&url_of(&cluster), &["--cluster-tag", "one"]);
    let tagged = cluster.slot_of("tg:{one}").unwrap();
    let owner = &cluster.nodes()[cluster.first_owner_of(tagged)];
    let kept = owner.command(&["KEYS", "tg:{one}*"]).unwrap();
    assert!(kept.items().len() >= 3, "all keys of a tag lie in one slot: {kept:?}");
    let sentinels = Sentinels::start(1).unwrap();
    admit_exactly(&url_by(&sentinels), &[]);
}

/// The key of the judged limit, and the index of its node.
fn judged_key(cluster: &Cluster) -> (String, usize) {
    for (place, node) in cluster.nodes().iter().enumerate() {
        // A killed node has no keys.
        let Ok(keys) = node.command(&["KEYS", "tg:*calls*"]) else { continue };
        if let Some(key) = keys.items().first()
            && cluster.is_primary(place).unwrap()
        {
            return (key.text().to_owned(), place);
        }
    }
    panic!("nobody has the key");
}

/// The other of the two that share slots.
fn replica_of(node: usize) -> usize {
    (node + 3) % 6
}

#[test]
fn moving_slots_cause_no_error() {
    let scene = on_a_cluster();
    let move_there_and_back = |scene: &Scene<Cluster>| {
        let cluster = &scene.world;
        let (key, from) = judged_key(cluster);
        let (slot, to) = (cluster.slot_of(&key).unwrap(), (from + 1) % 3);
        for (from, to) in [(from, to), (to, from)] {
            eventually("a move that begins", || cluster.begin_move(slot, from, to).is_ok());
            scene.wait_for_the_store();
            // A busy key may be gone, or there again, when its turn comes.
            let moved: io::Result<()> = cluster.move_key(&key, from, to);
            drop(moved);
            scene.wait_for_the_store();
            eventually("a move that ends", || cluster.finish_move(slot, from, to).is_ok());
            scene.wait_for_the_store();
        }
    };
    let when = survive(&scene, Reach::Nobody, move_there_and_back, |_| {});
    judge(&scene, when, ALL_CUT_OFF);
}

#[test]
fn a_failover_of_a_master_causes_no_error() {
    let scene = on_a_cluster();
    let befall = |scene: &Scene<Cluster>| {
        let cluster = &scene.world;
        let (_, owner) = judged_key(cluster);
        cluster.fail_over_to(replica_of(owner)).unwrap();
        scene.wait_until_all_are_well();
        scene.wait_for_the_store();
        cluster.lose(replica_of(owner)).unwrap();
    };
    let when = survive(&scene, Reach::Nobody, befall, |_| {});
    judge(&scene, when, Trouble { failovers: 2, ..FAILED_OVER });
}

#[test]
fn a_master_that_stands_still_is_replaced() {
    let scene = on_a_cluster();
    let stopped = std::sync::Mutex::new(0);
    let stop = |scene: &Scene<Cluster>| {
        let cluster = &scene.world;
        let (_, owner) = judged_key(cluster);
        *stopped.lock().unwrap() = owner;
        cluster.nodes()[owner].pause().unwrap();
        eventually("the replica has taken over", || {
            cluster.is_primary(replica_of(owner)).unwrap_or(false)
        });
    };
    let go_on = |scene: &Scene<Cluster>| {
        scene.wait_for_the_store();
        scene.world.nodes()[*stopped.lock().unwrap()].resume().unwrap();
    };
    let when = survive(&scene, Reach::Nobody, stop, go_on);
    judge(&scene, when, FAILED_OVER);
}

#[test]
fn a_failover_by_sentinels_causes_no_error() {
    let scene = with_sentinels();
    let befall = |scene: &Scene<Sentinels>| {
        let sentinels = &scene.world;
        let before = sentinels.primary().unwrap().port();
        let command = ["SENTINEL", "FAILOVER", Sentinels::NAME];
        eventually("a failover that begins", || sentinels.sentinels()[0].command(&command).is_ok());
        eventually("another server", || {
            sentinels.primary().is_ok_and(|primary| primary.port() != before)
        });
        scene.wait_until_all_are_well();
        scene.wait_for_the_store();
        // The old one must follow the new one before it can take its place again.
        eventually("a replica that follows", || {
            let mut servers = sentinels.servers().iter();
            servers.any(|server| server.info("master_link_status").is_ok_and(|link| link == "up"))
        });
        sentinels.fail_over().unwrap();
    };
    let when = survive(&scene, Reach::Nobody, befall, |_| {});
    judge(&scene, when, Trouble { failovers: 2, ..FAILED_OVER });
}
