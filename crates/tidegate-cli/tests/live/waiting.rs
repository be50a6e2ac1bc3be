//! Requests that wait their turn: `exceed: wait` on the gateway, and acquire on the API.

use std::sync::mpsc;
use std::thread;

use serde_json::json;

use crate::support::{Answer, Daemon, Upstream, eventually};

const WAITING: &str = "
tidegate: 1
name: waiting
limits: { one: { by: ip, sliding_window: 1/s, exceed: wait 30s } }
";
const PLACE: &str = "
tidegate: 1
name: place
limits: { one: { by: user, concurrency: 1, lease: 30s } }
";

#[test]
fn the_gateway_holds_a_request_until_it_fits_and_then_serves_it() {
    let upstream = Upstream::start();
    let daemon = Daemon::with_policy(WAITING, Some(&upstream));
    assert_eq!(daemon.gateway().get("/first").status, 200);
    assert_eq!(daemon.gateway().get("/second").status, 200);
    assert_eq!(upstream.count(), 2);
}

#[test]
fn a_client_that_goes_away_loses_its_turn() {
    let upstream = Upstream::start();
    let slow = WAITING.replace("1/s", "1/min").replace("30s", "1h");
    let daemon = Daemon::with_policy(&slow, Some(&upstream));
    assert_eq!(daemon.gateway().get("/first").status, 200);
    let mut waiting: Vec<_> = (0..5).map(|_| daemon.gateway().connect()).collect();
    for connection in &mut waiting {
        connection.request("GET", "/waiting", &[], None);
    }
    let waiters = || waiters(&daemon);
    eventually("five who wait", || waiters() == 5);
    drop(waiting);
    eventually("nobody who waits", || waiters() == 0);
    assert_eq!(upstream.count(), 1);
}

/// How many requests wait, by the metrics.
fn waiters(daemon: &Daemon) -> u64 {
    let text = daemon.admin().get("/metrics").text();
    let line = text.lines().find(|line| line.starts_with("tidegate_waiting_requests "));
    let line = line.unwrap_or_else(|| panic!("no such metric in {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn acquire(daemon: &Daemon, max_wait_ms: u64) -> Answer {
    let call = json!({ "user": "u", "max_wait_ms": max_wait_ms });
    daemon.api().post("/v1/acquire", &call.to_string())
}

#[test]
fn acquire_waits_for_its_place_in_the_order_of_arrival() {
    let daemon = Daemon::with_policy(PLACE, None);
    let mut lease = acquire(&daemon, 0).json()["lease"].clone();
    let (sender, served) = mpsc::channel();
    thread::scope(|scope| {
        for turn in 0..4_u64 {
            let (daemon, sender) = (&daemon, sender.clone());
            scope.spawn(move || {
                let answer = acquire(daemon, 25_000).json();
                assert_eq!(answer["allowed"], true, "{answer}");
                sender.send((turn, answer["lease"].clone())).unwrap();
            });
            eventually("its turn", || waiters(daemon) == turn + 1);
        }
        for expected in 0..4 {
            let freed = daemon.api().post("/v1/release", &json!({ "lease": lease }).to_string());
            assert_eq!(freed.status, 200);
            let (turn, next) = served.recv().unwrap();
            assert_eq!(turn, expected);
            lease = next;
        }
    });
}

#[test]
fn no_request_waits_in_vain_or_beyond_the_bound() {
    let daemon = Daemon::with_policy_and(PLACE, None, &["--max-waiters", "3"]);
    assert_eq!(acquire(&daemon, 0).json()["allowed"], true);
    assert_eq!(acquire(&daemon, 0).json()["allowed"], false, "it would have to wait");
    let call = json!({ "user": "u", "max_wait_ms": 600_000 }).to_string();
    let mut waiting: Vec<_> = (0..3).map(|_| daemon.api().connect()).collect();
    for connection in &mut waiting {
        connection.request("POST", "/v1/acquire", &[], Some(&call));
    }
    eventually("three who wait", || waiters(&daemon) == 3);
    let refused = daemon.api().post("/v1/acquire", &call).json();
    assert_eq!(refused["allowed"], false, "{refused}");
    drop(waiting);
    eventually("nobody who waits", || waiters(&daemon) == 0);
}

#[test]
fn a_drain_refuses_waiting_requests_and_says_when_to_come_back() {
    let upstream = Upstream::start();
    let slow = WAITING.replace("1/s", "1/min").replace("30s", "1h");
    let mut daemon = Daemon::with_policy(&slow, Some(&upstream));
    assert_eq!(daemon.gateway().get("/first").status, 200);
    let mut held = daemon.gateway().connect();
    held.request("GET", "/waiting", &[], None);
    let call = json!({ "ip": "127.0.0.1", "max_wait_ms": 600_000 }).to_string();
    let mut acquiring = daemon.api().connect();
    acquiring.request("POST", "/v1/acquire", &[], Some(&call));
    eventually("two who wait", || waiters(&daemon) == 2);
    daemon.signal("TERM");
    let refused = held.answer();
    let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert_eq!((refused.status, (1..=120).contains(&seconds)), (429, true), "{refused:?}");
    let acquired = acquiring.answer().json();
    assert_eq!(acquired["allowed"], false, "{acquired}");
    assert!(daemon.wait().success(), "{}", daemon.log());
    assert_eq!(upstream.count(), 1);
}
