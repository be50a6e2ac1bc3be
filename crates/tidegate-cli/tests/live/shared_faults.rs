//! Daemons that share a Redis, under load, while something befalls it: what callers see, what is
//! admitted meanwhile, and that it ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tidegate::algorithm::{Spec, sliding_window, token_bucket};
use tidegate::clock::SystemClock;
use tidegate::units::Amount;
use tidegate_testkit::checkers::trouble::{Trouble, promise_is_kept};
use tidegate_testkit::log::{Log, Recorded};
use tidegate_testkit::proxy::{Fault, Proxy};
use tidegate_testkit::servers::Server;

use crate::support::{Daemon, eventually};

const NODES: u32 = 2;
/// So long that a busy machine does not look like a lost store.
const PATIENT: &str = "400ms";
const LATE: Duration = Duration::from_millis(500);

/// Two nodes on one server: the first is next to it, the second behind a bad network.
struct Scene {
    redis: Server,
    proxy: Proxy,
    daemons: [Daemon; NODES as usize],
    log: Log,
    clock: SystemClock,
    over: AtomicBool,
    /// What is promised.
    spec: Spec,
    _folder: tempfile::TempDir,
}

/// Whom it befalls.
#[derive(Clone, Copy)]
enum Reach {
    /// Nobody need decide alone.
    Nobody,
    /// The node behind the proxy.
    OneNode,
    AllNodes,
}

impl Scene {
    /// Nodes with a token bucket.
    fn start(timeout: &str) -> Self {
        let spec = token_bucket::Spec { count: units(20), period_us: 1_000_000, burst: units(100) };
        Self::with("token_bucket: 20/s burst 100", Spec::TokenBucket(spec), timeout)
    }

    fn with(limit: &str, spec: Spec, timeout: &str) -> Self {
        let (redis, folder) = (Server::start().unwrap(), tempfile::tempdir().unwrap());
        let path = folder.path().join("policy.yaml");
        let policy = format!("tidegate: 1\nname: api\nlimits:\n  calls: {{ by: user, {limit} }}\n");
        std::fs::write(&path, policy).unwrap();
        let proxy = Proxy::to(redis.addr()).unwrap();
        let daemons = [redis.url(), proxy.url()].map(|store| {
            let arguments = ["--store", &store, "--store-timeout", timeout, "--threads", "2"];
            Daemon::start(Daemon::command().arg(&path).args(arguments))
        });
        let (log, clock, over) = (Log::new(), SystemClock::new(), AtomicBool::new(false));
        let scene = Self { redis, proxy, daemons, log, clock, over, spec, _folder: folder };
        scene.wait_until_all_are_well();
        scene
    }

    fn wait_until_all_are_well(&self) {
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
            self.log.record(Recorded {
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

    fn wait_for(&self, what: &str, found: impl Fn(&Recorded) -> bool) {
        eventually(what, || self.log.errors() > 0 || self.log.recorded().iter().any(&found));
    }

    /// Answers of the store on every node, from now on.
    fn wait_for_the_store(&self) {
        let since_us = self.clock.steady_us();
        for node in 0..NODES {
            self.wait_for("an answer of the store", |seen| {
                seen.node == node && seen.at_us - seen.waited_us > since_us && !seen.degraded
            });
        }
    }

    /// A refusal by the store from now on: all that it had to give is spent.
    fn wait_until_all_is_spent(&self) {
        let since_us = self.clock.steady_us();
        self.wait_for("a refusal", |seen| {
            seen.at_us - seen.waited_us > since_us && !seen.degraded && !seen.admitted
        });
    }

    /// Whoever is cut off decides alone, and has given the store up for lost.
    fn wait_until_felt(&self, reach: Reach) {
        let cut_off = match reach {
            Reach::Nobody => 0..0,
            Reach::OneNode => 1..2,
            Reach::AllNodes => 0..2,
        };
        for node in cut_off {
            let alone = |seen: &Recorded| seen.node == node && seen.degraded;
            self.wait_for("a decision without the store", alone);
            let daemon = &self.daemons[node as usize];
            eventually("a lost store", || daemon.status()["store"]["state"] != "healthy");
        }
    }
}

/// Under load: all is well, something befalls the store, it ends, all is well again.
fn survive(
    scene: &Scene,
    reach: Reach,
    befall: impl FnOnce(&Scene),
    end: impl FnOnce(&Scene),
) -> [u64; 2] {
    thread::scope(|scope| {
        for client in 0..2 * NODES {
            scope.spawn(move || scene.load(client % NODES));
        }
        // Whatever fails below must not leave the clients at work for ever.
        let _over = Over(&scene.over);
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

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Nobody saw an error, nodes were alone only in trouble, and the bound was kept.
fn judge(scene: &Scene, [since_us, until_us]: [u64; 2], trouble: Trouble) {
    let in_trouble =
        |seen: &Recorded| seen.at_us >= since_us && seen.at_us - seen.waited_us <= until_us;
    scene.log.nobody_saw_an_error().unwrap();
    scene.log.nobody_degraded_unless(in_trouble).unwrap();
    keep_the_bound(scene, trouble);
}

fn keep_the_bound(scene: &Scene, trouble: Trouble) {
    let trouble = Trouble { nodes: NODES, off_by_us: scene.log.latest_us(), ..trouble };
    promise_is_kept(&scene.log.entries(), &scene.spec, &trouble).unwrap();
}

fn units(count: u64) -> Amount {
    Amount::from_units(count).unwrap()
}

fn sliding_window() -> Scene {
    let spec = sliding_window::Spec { limit: units(100), window_us: 3_600_000_000 };
    Scene::with("sliding_window: 100/h", Spec::SlidingWindow(spec), PATIENT)
}

/// What a fault of the network to the second node loosens.
const ONE_CUT_OFF: Trouble = Trouble { cut_off: 1, turned: true, ..CALM };
const CALM: Trouble = Trouble {
    nodes: NODES,
    cut_off: 0,
    turned: false,
    failovers: 0,
    lag_us: 0,
    set_back_us: 0,
    off_by_us: 0,
};

#[test]
fn a_redis_that_is_killed_and_comes_back_empty_costs_nobody_an_error() {
    let scene = Scene::start(PATIENT);
    let kill = |scene: &Scene| scene.redis.kill().unwrap();
    let when = survive(&scene, Reach::AllNodes, kill, |scene| scene.redis.restart().unwrap());
    // All that it knew is lost: one further burst.
    judge(&scene, when, Trouble { cut_off: 2, turned: true, failovers: 1, ..CALM });
}

#[test]
fn a_redis_that_stands_still_costs_nobody_an_error() {
    let scene = Scene::start(PATIENT);
    let pause = |scene: &Scene| scene.redis.pause().unwrap();
    let when = survive(&scene, Reach::AllNodes, pause, |scene| scene.redis.resume().unwrap());
    judge(&scene, when, Trouble { cut_off: 2, turned: true, ..CALM });
}

#[test]
fn a_redis_that_forgets_its_scripts_is_told_them_again() {
    let scene = Scene::start(PATIENT);
    let forget = |scene: &Scene| {
        for _ in 0..20 {
            scene.redis.command(&["SCRIPT", "FLUSH"]).unwrap();
            scene.wait_for_the_store();
        }
    };
    survive(&scene, Reach::Nobody, forget, |_| {});
    assert_eq!(scene.log.degraded(), 0);
    judge(&scene, [0, 0], CALM);
}

#[test]
fn a_redis_that_forgets_everything_gives_one_further_burst() {
    let scene = Scene::start(PATIENT);
    let forget = |scene: &Scene| drop(scene.redis.command(&["FLUSHALL"]).unwrap());
    survive(&scene, Reach::Nobody, forget, |_| {});
    assert_eq!(scene.log.degraded(), 0);
    judge(&scene, [0, 0], Trouble { failovers: 1, ..CALM });
}

#[test]
fn a_node_whose_network_is_late_decides_alone_until_it_is_not() {
    let scene = Scene::start(PATIENT);
    let late = |scene: &Scene| scene.proxy.set(Fault::Delay(LATE));
    let when = survive(&scene, Reach::OneNode, late, |scene| scene.proxy.set(Fault::None));
    judge(&scene, when, ONE_CUT_OFF);
}

#[test]
fn a_node_decides_alone_when_its_store_takes_longer_than_the_default_allows() {
    let scene = Scene::start("20ms");
    let late = |scene: &Scene| scene.proxy.set(Fault::Delay(Duration::from_millis(50)));
    survive(&scene, Reach::OneNode, late, |scene| scene.proxy.set(Fault::None));
    scene.log.nobody_saw_an_error().unwrap();
    // On a busy machine either node may lose the store for a moment, at any time.
    keep_the_bound(&scene, Trouble { cut_off: 2, turned: true, ..CALM });
}

#[test]
fn a_node_whose_answers_are_lost_decides_alone_until_they_arrive() {
    let scene = Scene::start(PATIENT);
    let lose = |scene: &Scene| scene.proxy.set(Fault::DropAnswers);
    let when = survive(&scene, Reach::OneNode, lose, |scene| scene.proxy.set(Fault::None));
    judge(&scene, when, ONE_CUT_OFF);
}

#[test]
fn a_node_whose_connections_are_half_open_decides_alone_until_they_are_not() {
    let scene = Scene::start(PATIENT);
    let stall = |scene: &Scene| scene.proxy.set(Fault::Stall);
    let when = survive(&scene, Reach::OneNode, stall, |scene| scene.proxy.set(Fault::None));
    judge(&scene, when, ONE_CUT_OFF);
}

#[test]
fn a_node_that_is_cut_off_decides_alone_until_it_is_let_in() {
    let scene = Scene::start(PATIENT);
    let cut = |scene: &Scene| {
        scene.proxy.set(Fault::Refuse);
        scene.proxy.cut();
    };
    let when = survive(&scene, Reach::OneNode, cut, |scene| scene.proxy.set(Fault::None));
    judge(&scene, when, ONE_CUT_OFF);
}

#[test]
fn connections_that_are_cut_again_and_again_cost_nobody_an_error() {
    let scene = Scene::start(PATIENT);
    let cut = |scene: &Scene| {
        for _ in 0..3 {
            let known = scene.proxy.accepted();
            scene.proxy.cut();
            eventually("a new connection", || scene.proxy.accepted() > known);
            scene.wait_for_the_store();
        }
    };
    let when = survive(&scene, Reach::Nobody, cut, |_| {});
    judge(&scene, when, ONE_CUT_OFF);
}

#[test]
fn a_window_of_a_redis_that_stands_still_is_kept_by_nodes_that_are_alone() {
    let scene = sliding_window();
    let pause = |scene: &Scene| scene.redis.pause().unwrap();
    let when = survive(&scene, Reach::AllNodes, pause, |scene| scene.redis.resume().unwrap());
    judge(&scene, when, Trouble { cut_off: 2, turned: true, ..CALM });
}

#[test]
fn a_window_is_kept_by_a_node_that_is_cut_off() {
    let scene = sliding_window();
    let cut = |scene: &Scene| {
        scene.proxy.set(Fault::Refuse);
        scene.proxy.cut();
    };
    let when = survive(&scene, Reach::OneNode, cut, |scene| scene.proxy.set(Fault::None));
    judge(&scene, when, ONE_CUT_OFF);
}
