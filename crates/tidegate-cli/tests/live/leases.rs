//! Leases over the decision API: places, true costs, and statuses that count.

use serde_json::{Value, json};

use crate::support::{Contract, Daemon, eventually};

const POLICY: &str = "
tidegate: 1
name: leases
identity: { attributes: { usd: given } }
operations: { stream: GET /stream, brief: GET /brief, login: POST /login, write: POST /write, short: GET /short, fixed: POST /fixed }
limits:
  streams: { when: stream, by: user, concurrency: 1 }
  briefs: { when: brief, by: user, concurrency: 1, lease: 200ms }
  failures: { when: login, by: user, total: 2, counts: failures }
  tokens: { when: write, by: user, total: 1000 }
  window: { when: short, by: user, sliding_window: 5/200ms }
  fixed: { when: fixed, by: user, cost: 2, total: 10 }
";

fn check(contract: &Contract, method: &str, path: &str, more: &Value) -> Value {
    let mut said = json!({ "method": method, "path": path, "user": "u" });
    for (name, value) in more.as_object().into_iter().flatten() {
        said[name] = value.clone();
    }
    contract.post("/v1/check", &said).json()
}

fn lease_of(answer: &Value) -> String {
    answer["lease"].as_str().unwrap_or_else(|| panic!("no lease in {answer}")).to_owned()
}

/// What is left for a cost of one.
fn left(contract: &Contract, method: &str, path: &str) -> u64 {
    let peek = check(contract, method, path, &json!({ "cost": 0 }));
    let remaining = &peek["limits"][0]["remaining"];
    remaining.as_u64().unwrap_or_else(|| panic!("{peek}"))
}

fn call(contract: &Contract, what: &str, lease: &str) -> (u16, Value) {
    let answer = contract.post(&format!("/v1/{what}"), &json!({ "lease": lease }));
    (answer.status, answer.json())
}

fn settle(contract: &Contract, lease: &str, settlement: &Value) -> u16 {
    let mut said = settlement.clone();
    said["lease"] = json!(lease);
    contract.post("/v1/settle", &said).status
}

#[test]
fn a_place_is_held_until_it_is_given_back_once() {
    let daemon = Daemon::with_policy(POLICY, None);
    let contract = Contract::of(&daemon);
    let lease = lease_of(&check(&contract, "GET", "/stream", &json!({})));
    assert_eq!(check(&contract, "GET", "/stream", &json!({}))["allowed"], false);
    assert_eq!(call(&contract, "renew", &lease), (200, json!({ "renewed": true })));
    assert_eq!(call(&contract, "release", &lease), (200, json!({ "released": true })));
    let next = lease_of(&check(&contract, "GET", "/stream", &json!({})));
    for what in ["release", "renew"] {
        assert_eq!(call(&contract, what, &lease).0, 404, "nothing of it may change any more");
    }
    assert_eq!(check(&contract, "GET", "/stream", &json!({}))["allowed"], false);
    assert_eq!(call(&contract, "release", &next), (200, json!({ "released": true })));
}

#[test]
fn a_place_that_is_not_renewed_is_lost_and_its_lease_void() {
    let daemon = Daemon::with_policy(POLICY, None);
    let contract = Contract::of(&daemon);
    let lease = lease_of(&check(&contract, "GET", "/brief", &json!({})));
    eventually("the place", || check(&contract, "GET", "/brief", &json!({}))["allowed"] == true);
    assert_eq!(call(&contract, "renew", &lease).0, 404);
    assert_eq!(call(&contract, "release", &lease).0, 404);
    assert_eq!(settle(&contract, &lease, &json!({ "cost": 0 })), 404);
}

#[test]
fn only_answers_that_count_stay_charged() {
    let daemon = Daemon::with_policy(POLICY, None);
    let contract = Contract::of(&daemon);
    let login = |status: u16| {
        let lease = lease_of(&check(&contract, "POST", "/login", &json!({})));
        assert_eq!(settle(&contract, &lease, &json!({ "status": status })), 200);
        lease
    };
    login(200);
    login(204);
    assert_eq!(left(&contract, "POST", "/login"), 2);
    let failed = login(401);
    assert_eq!(left(&contract, "POST", "/login"), 1);
    assert_eq!(settle(&contract, &failed, &json!({ "status": 200 })), 200);
    assert_eq!(left(&contract, "POST", "/login"), 1, "what is settled once is settled");
    check(&contract, "POST", "/login", &json!({}));
    assert_eq!(left(&contract, "POST", "/login"), 0, "never told: stays charged");
}

#[test]
fn a_reservation_is_settled_by_its_true_cost_once() {
    let daemon = Daemon::with_policy(POLICY, None);
    let contract = Contract::of(&daemon);
    let reserve = |cost: u64| {
        lease_of(&check(&contract, "POST", "/write", &json!({ "cost": cost, "reserve": true })))
    };
    let smaller = reserve(500);
    assert_eq!(left(&contract, "POST", "/write"), 500);
    assert_eq!(settle(&contract, &smaller, &json!({ "cost": "120.5" })), 200);
    assert_eq!(left(&contract, "POST", "/write"), 879);
    assert_eq!(settle(&contract, &smaller, &json!({ "cost": 0 })), 404);
    assert_eq!(left(&contract, "POST", "/write"), 879, "what is settled once is settled");
    let larger = reserve(100);
    assert_eq!(settle(&contract, &larger, &json!({ "cost": 734 })), 200);
    assert_eq!(left(&contract, "POST", "/write"), 145);
    reserve(100);
    assert_eq!(left(&contract, "POST", "/write"), 45, "an unsettled reservation stays charged");
}

#[test]
fn a_lease_is_void_after_its_window() {
    let daemon = Daemon::with_policy(POLICY, None);
    let contract = Contract::of(&daemon);
    let lease = lease_of(&check(&contract, "GET", "/short", &json!({ "reserve": true })));
    eventually("the end of the window", || left(&contract, "GET", "/short") == 5);
    assert_eq!(settle(&contract, &lease, &json!({ "cost": 3 })), 404);
    assert_eq!(left(&contract, "GET", "/short"), 5);
}

#[test]
fn there_is_no_lease_where_nothing_may_change() {
    let daemon = Daemon::with_policy(POLICY, None);
    let contract = Contract::of(&daemon);
    assert_eq!(check(&contract, "POST", "/write", &json!({}))["lease"], Value::Null);
    assert_eq!(check(&contract, "GET", "/", &json!({ "reserve": true }))["lease"], Value::Null);
    let fixed = lease_of(&check(&contract, "POST", "/fixed", &json!({ "reserve": true })));
    assert_eq!(settle(&contract, &fixed, &json!({ "cost": 0 })), 200);
    assert_eq!(left(&contract, "POST", "/fixed"), 6, "a limit that names its cost keeps it");
}

#[test]
fn a_malformed_lease_and_an_unknown_one_have_different_errors() {
    let daemon = Daemon::with_policy(POLICY, None);
    let contract = Contract::of(&daemon);
    let unknown = "0123456789abcdef".repeat(2);
    for what in ["release", "renew", "settle"] {
        let said = |lease: &Value| {
            let mut said = json!({ "lease": lease });
            if what == "settle" {
                said["status"] = json!(200);
            }
            contract.post(&format!("/v1/{what}"), &said)
        };
        assert_eq!(said(&json!(unknown)).status, 404);
        for wrong in [json!("x"), json!(7), json!(null), json!(["a"]), json!("")] {
            let answer = said(&wrong);
            assert_eq!((answer.status, &answer.json()["field"]), (400, &json!("lease")), "{wrong}");
        }
    }
    for (settlement, field) in [
        (json!({}), "cost"),
        (json!({ "cost": null }), "cost"),
        (json!({ "cost": "x" }), "cost"),
        (json!({ "status": 99 }), "status"),
        (json!({ "status": 600 }), "status"),
        (json!({ "status": "200" }), "status"),
        (json!({ "stats": 200 }), "stats"),
    ] {
        let mut said = settlement.clone();
        said["lease"] = json!(unknown);
        let answer = contract.post("/v1/settle", &said);
        assert_eq!((answer.status, &answer.json()["field"]), (400, &json!(field)), "{settlement}");
    }
}
