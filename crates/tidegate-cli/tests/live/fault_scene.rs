//! Daemons that share a store, under load, during a fault: the answers to callers, the bound on
//! admissions, and the recovery.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::Value;
use tidegate::Amount;
use tidegate::clock::SystemClock;
use tidegate::engine::algorithm::{Spec, token_bucket};
use tidegate_testkit::checkers::trouble::{Trouble, check_bound};
use tidegate_testkit::log::{CallRecord, Log};

use crate::support::{Daemon, eventually};

const NODES: u32 = 2;
/// A long timeout: a busy machine must not look like a lost store.
pub(crate) const PATIENT: &str = "400ms";
/// A token bucket.
pub(crate) const BUCKET: &str = "  calls: { by: user, token_bucket: 20/s burst 100 }\n";
/// The setup of the checkers without faults.
pub(crate) const CALM: Trouble = Trouble {
    nodes: NODES,
    cut_off: 0,
    turned: false,
    failovers: 0,
    lag_us: 0,
    set_back_us: 0,
    off_by_us: 0,
};

/// Two nodes on a store.
pub(crate) struct Scene<W> {
    /// The store that they share.
    pub(crate) world: W,
    pub(crate) daemons: [Daemon; NODES as usize],
    pub(crate) log: Log,
    clock: SystemClock,
    over: AtomicBool,
    /// The promised bound.
    spec: Spec,
    _folder: tempfile::TempDir,
}

/// The nodes that a fault affects.
#[derive(Clone, Copy)]
pub(crate) enum Reach {
    /// No node has to decide alone.
    Nobody,
    /// The node behind the proxy.
    OneNode,
    AllNodes,
}

impl<W: Sync> Scene<W> {
    /// Nodes, each with its own connection to the store, and limits of which the first is judged.
    pub(crate) fn start(
        world: W,
        stores: [String; NODES as usize],
        limits: &str,
        spec: Spec,
        timeout: &str,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.yaml");
        std::fs::write(&path, format!("tidegate: 1\nname: api\nlimits:\n{limits}")).unwrap();
        let daemons = stores.map(|store| {
            let arguments = ["--store", &store, "--store-timeout", timeout, "--threads", "2"];
            Daemon::start(Daemon::command().arg(&path).args(arguments))
        });
        let (log, clock, over) = (Log::new(), SystemClock::new(), AtomicBool::new(false));
        let scene = Self { world, daemons, log, clock, over, spec, _folder: folder };
        scene.wait_until_all_are_well();
        scene
    }

    pub(crate) fn wait_until_all_are_well(&self) {
        for daemon in &self.daemons {
            eventually("a healthy store with both nodes", || {
                let store = &daemon.status()["store"];
                store["state"] == "healthy" && store["nodes"] == NODES
            });
        }
    }

    /// Asks one node again and again until it is over.
    fn load(&self, node: u32) {
        let mut connection = self.daemons[node as usize].api().connect();
        let headers = [("Content-Type", "application/json")];
        while !self.over.load(Ordering::Relaxed) {
            let asked_us = self.clock.steady_us();
            connection.request("POST", "/v1/check", &headers, Some(r#"{"user":"u1"}"#));
            let answer = connection.try_answer();
            let at_us = self.clock.steady_us();
            let status = answer.as_ref().map(|answer| answer.status);
            let error = match status {
                Some(200) => None,
                other => Some(format!("status {other:?}")),
            };
            let told = answer.filter(|_| error.is_none()).map_or(Value::Null, |told| told.json());
            self.log.record(CallRecord {
                at_us,
                node,
                key: "u1".to_owned(),
                cost: Amount::ONE,
                admitted: told["allowed"] == true,
                degraded: told["degraded"] == true,
                retry_after_us: None,
                waited_us: at_us - asked_us,
                error: error.clone(),
            });
            if error.is_some() {
                break;
            }
        }
    }

    pub(crate) fn wait_for(&self, what: &str, found: impl Fn(&CallRecord) -> bool) {
        eventually(what, || self.log.errors() > 0 || self.log.records().iter().any(&found));
    }

    /// Waits for answers of the store on every node.
    pub(crate) fn wait_for_the_store(&self) {
        let since_us = self.clock.steady_us();
        for node in 0..NODES {
            self.wait_for("an answer of the store", |seen| {
                seen.node == node && seen.at_us - seen.waited_us > since_us && !seen.degraded
            });
        }
    }

    /// Waits for a refusal by the store: its limit is used up.
    pub(crate) fn wait_until_all_is_spent(&self) {
        let since_us = self.clock.steady_us();
        self.wait_for("a refusal", |seen| {
            seen.at_us - seen.waited_us > since_us && !seen.degraded && !seen.admitted
        });
    }

    /// Waits until the nodes that are cut off decide alone, and their store is lost.
    pub(crate) fn wait_until_felt(&self, reach: Reach) {
        let cut_off = match reach {
            Reach::Nobody => 0..0,
            Reach::OneNode => 1..2,
            Reach::AllNodes => 0..2,
        };
        for node in cut_off {
            let alone = |seen: &CallRecord| seen.node == node && seen.degraded;
            self.wait_for("a decision without the store", alone);
            let daemon = &self.daemons[node as usize];
            eventually("a lost store", || daemon.status()["store"]["state"] != "healthy");
        }
    }
}

/// Under load: the store is healthy, a fault happens and ends, the store is healthy again.
pub(crate) fn survive<W: Sync>(
    scene: &Scene<W>,
    reach: Reach,
    befall: impl FnOnce(&Scene<W>),
    end: impl FnOnce(&Scene<W>),
) -> [u64; 2] {
    thread::scope(|scope| {
        for client in 0..2 * NODES {
            scope.spawn(move || scene.load(client % NODES));
        }
        // A failure below must end the clients.
        let _over = StopGuard(&scene.over);
        scene.wait_for_the_store();
        scene.wait_until_all_is_spent();
        let since_us = scene.clock.steady_us();
        befall(scene);
        scene.wait_until_felt(reach);
        end(scene);
        scene.wait_until_all_are_well();
        scene.wait_for_the_store();
        let until_us = scene.clock.steady_us();
        scene.wait_for_the_store();
        scene.wait_until_all_is_spent();
        [since_us, until_us]
    })
}

struct StopGuard<'a>(&'a AtomicBool);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Asserts that no caller saw an error, that nodes were alone only during the fault, and that the bound
/// was kept.
pub(crate) fn judge<W: Sync>(scene: &Scene<W>, [since_us, until_us]: [u64; 2], trouble: Trouble) {
    let in_trouble =
        |seen: &CallRecord| seen.at_us >= since_us && seen.at_us - seen.waited_us <= until_us;
    scene.log.check_no_errors().unwrap();
    scene.log.check_degraded_only_if(in_trouble).unwrap();
    keep_the_bound(scene, trouble);
}

pub(crate) fn keep_the_bound<W: Sync>(scene: &Scene<W>, trouble: Trouble) {
    let trouble = Trouble { nodes: NODES, off_by_us: scene.log.latest_us(), ..trouble };
    check_bound(&scene.log.entries(), &scene.spec, &trouble).unwrap();
}

pub(crate) fn units(count: u64) -> Amount {
    Amount::from_units(count).unwrap()
}

/// What `BUCKET` promises.
pub(crate) fn bucket() -> Spec {
    let (count, burst) = (units(20), units(100));
    Spec::TokenBucket(token_bucket::Spec { count, period_us: 1_000_000, burst })
}
