//! Daemons that share a Redis, under load, during a fault: the answers to callers, the bound on
//! admissions, and the recovery.

use std::time::Duration;

use tidegate::engine::algorithm::{Spec, sliding_window};
use tidegate_testkit::checkers::trouble::Trouble;
use tidegate_testkit::proxy::{Fault, Proxy};
use tidegate_testkit::servers::Server;

use crate::fault_scene::{
    BUCKET, CALM, PATIENT, Reach, Scene, bucket, judge, keep_the_bound, survive, units,
};
use crate::support::eventually;

/// The allowance for a fault of the network to the second node.
const ONE_CUT_OFF: Trouble = Trouble { cut_off: 1, turned: true, ..CALM };
const LATE: Duration = Duration::from_millis(500);

/// One server: the first node is next to it, the second behind a bad network.
struct World {
    redis: Server,
    proxy: Proxy,
}

fn scene(limits: &str, spec: Spec, timeout: &str) -> Scene<World> {
    let redis = Server::start().unwrap();
    let proxy = Proxy::to(redis.addr()).unwrap();
    let stores = [redis.url(), proxy.url()];
    Scene::start(World { redis, proxy }, stores, limits, spec, timeout)
}

/// Nodes with a token bucket.
fn token_bucket(timeout: &str) -> Scene<World> {
    scene(BUCKET, bucket(), timeout)
}

fn sliding_window() -> Scene<World> {
    let spec = sliding_window::Spec { limit: units(100), window_us: 3_600_000_000 };
    let limit = "  calls: { by: user, sliding_window: 100/h }\n";
    scene(limit, Spec::SlidingWindow(spec), PATIENT)
}

#[test]
fn a_redis_that_is_killed_and_comes_back_empty_causes_no_error() {
    let scene = token_bucket(PATIENT);
    let kill = |scene: &Scene<World>| scene.world.redis.kill().unwrap();
    let when = survive(&scene, Reach::AllNodes, kill, |scene| scene.world.redis.restart().unwrap());
    // The server has lost all counts: one further burst.
    judge(&scene, when, Trouble { cut_off: 2, turned: true, failovers: 1, ..CALM });
}

#[test]
fn a_paused_redis_causes_no_error() {
    let scene = token_bucket(PATIENT);
    let pause = |scene: &Scene<World>| scene.world.redis.pause().unwrap();
    let when = survive(&scene, Reach::AllNodes, pause, |scene| scene.world.redis.resume().unwrap());
    judge(&scene, when, Trouble { cut_off: 2, turned: true, ..CALM });
}

#[test]
fn a_redis_that_forgets_its_scripts_is_told_them_again() {
    let scene = token_bucket(PATIENT);
    let forget = |scene: &Scene<World>| {
        for _ in 0..20 {
            scene.world.redis.command(&["SCRIPT", "FLUSH"]).unwrap();
            scene.wait_for_the_store();
        }
    };
    survive(&scene, Reach::Nobody, forget, |_| {});
    assert_eq!(scene.log.degraded(), 0);
    judge(&scene, [0, 0], CALM);
}

#[test]
fn a_redis_that_forgets_everything_gives_one_further_burst() {
    let scene = token_bucket(PATIENT);
    let forget = |scene: &Scene<World>| drop(scene.world.redis.command(&["FLUSHALL"]).unwrap());
    survive(&scene, Reach::Nobody, forget, |_| {});
    assert_eq!(scene.log.degraded(), 0);
    judge(&scene, [0, 0], Trouble { failovers: 1, ..CALM });
}

#[test]
fn a_node_whose_network_is_late_decides_alone_until_it_is_not() {
    let scene = token_bucket(PATIENT);
    let late = |scene: &Scene<World>| scene.world.proxy.set(Fault::Delay(LATE));
    let when = survive(&scene, Reach::OneNode, late, |scene| scene.world.proxy.set(Fault::None));
    judge(&scene, when, ONE_CUT_OFF);
}

#[test]
fn a_node_decides_alone_when_its_store_takes_longer_than_the_default_allows() {
    let scene = token_bucket("20ms");
    let late =
        |scene: &Scene<World>| scene.world.proxy.set(Fault::Delay(Duration::from_millis(50)));
    survive(&scene, Reach::OneNode, late, |scene| scene.world.proxy.set(Fault::None));
    scene.log.check_no_errors().unwrap();
    // On a busy machine either node may lose the store for a moment, at any time.
    keep_the_bound(&scene, Trouble { cut_off: 2, turned: true, ..CALM });
}

#[test]
fn a_node_whose_answers_are_lost_decides_alone_until_they_arrive() {
    let scene = token_bucket(PATIENT);
    let lose = |scene: &Scene<World>| scene.world.proxy.set(Fault::DropAnswers);
    let when = survive(&scene, Reach::OneNode, lose, |scene| scene.world.proxy.set(Fault::None));
    judge(&scene, when, ONE_CUT_OFF);
}

#[test]
fn a_node_whose_connections_are_half_open_decides_alone_until_they_are_not() {
    let scene = token_bucket(PATIENT);
    let stall = |scene: &Scene<World>| scene.world.proxy.set(Fault::Stall);
    let when = survive(&scene, Reach::OneNode, stall, |scene| scene.world.proxy.set(Fault::None));
    judge(&scene, when, ONE_CUT_OFF);
}

#[test]
fn a_node_that_is_cut_off_decides_alone_until_it_is_let_in() {
    let scene = token_bucket(PATIENT);
    let cut = |scene: &Scene<World>| {
        scene.world.proxy.set(Fault::Refuse);
        scene.world.proxy.cut();
    };
    let when = survive(&scene, Reach::OneNode, cut, |scene| scene.world.proxy.set(Fault::None));
    judge(&scene, when, ONE_CUT_OFF);
}

#[test]
fn connections_that_are_cut_again_and_again_cause_no_error() {
    let scene = token_bucket(PATIENT);
    let cut = |scene: &Scene<World>| {
        for _ in 0..3 {
            let known = scene.world.proxy.accepted();
            scene.world.proxy.cut();
            eventually("a new connection", || scene.world.proxy.accepted() > known);
            scene.wait_for_the_store();
        }
    };
    let when = survive(&scene, Reach::Nobody, cut, |_| {});
    judge(&scene, when, ONE_CUT_OFF);
}

#[test]
fn a_window_of_a_redis_that_stands_still_is_kept_by_nodes_that_are_alone() {
    let scene = sliding_window();
    let pause = |scene: &Scene<World>| scene.world.redis.pause().unwrap();
    let when = survive(&scene, Reach::AllNodes, pause, |scene| scene.world.redis.resume().unwrap());
    judge(&scene, when, Trouble { cut_off: 2, turned: true, ..CALM });
}

#[test]
fn a_window_is_kept_by_a_node_that_is_cut_off() {
    let scene = sliding_window();
    let cut = |scene: &Scene<World>| {
        scene.world.proxy.set(Fault::Refuse);
        scene.world.proxy.cut();
    };
    let when = survive(&scene, Reach::OneNode, cut, |scene| scene.world.proxy.set(Fault::None));
    judge(&scene, when, ONE_CUT_OFF);
}
