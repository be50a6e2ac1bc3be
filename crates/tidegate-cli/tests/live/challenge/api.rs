//! Programs that ask the decision API for their clients.

use serde_json::{Value, json};

use super::{POLICY, solved};
use crate::support::{Contract, Daemon};

fn check(api: &Contract, user: &str, pass: Option<&str>) -> Value {
    let headers = pass.map(|pass| json!({ "Tidegate-Pass": pass }));
    api.post("/v1/check", &json!({ "user": user, "headers": headers })).json()
}

#[test]
fn a_challenged_check_carries_a_challenge_whose_solution_earns_a_pass() {
    let daemon = Daemon::with_policy(POLICY, None);
    let api = Contract::of(&daemon);
    assert_eq!(check(&api, "u1", None)["outcome"], "allowed");
    let refused = check(&api, "u1", None);
    assert_eq!(refused["outcome"], "challenged", "{refused}");
    assert_eq!((&refused["allowed"], &refused["status"]), (&json!(false), &json!(403)));
    let challenge = &refused["body"]["challenge"];
    assert_eq!(
        (&challenge["kind"], &challenge["difficulty"]),
        (&json!("proof_of_work"), &json!(10))
    );
    let solution =
        json!({ "user": "u1", "token": challenge["token"], "solution": solved(challenge) });
    let granted = api.post("/v1/challenge", &solution).json();
    let pass = granted["pass"].as_str().unwrap_or_else(|| panic!("{granted}"));
    assert_eq!(granted["expires_in_ms"], 3_600_000);
    assert_eq!(check(&api, "u1", Some(pass))["outcome"], "warned");
    assert_eq!(check(&api, "u1", None)["outcome"], "challenged", "the pass must be shown");
    let cookie =
        json!({ "user": "u1", "headers": { "Cookie": format!("a=1; Tidegate-Pass={pass}") } });
    assert_eq!(api.post("/v1/check", &cookie).json()["outcome"], "warned");
    let replayed = api.post("/v1/challenge", &solution);
    assert_eq!((replayed.status, &replayed.json()["reason"]), (403, &json!("used")));
    check(&api, "u2", None);
    assert_eq!(check(&api, "u2", Some(pass))["outcome"], "challenged", "it is u1's");
}

#[test]
fn a_client_may_ask_for_a_challenge_and_a_wrong_solution_earns_no_pass() {
    let daemon = Daemon::with_policy(POLICY, None);
    let api = Contract::of(&daemon);
    let ask = |body: Value| {
        let answer = api.post("/v1/challenge", &body);
        (answer.status, answer.json())
    };
    let (status, told) = ask(json!({ "ip": "192.0.2.1" }));
    assert_eq!(status, 200, "{told}");
    let token = &told["challenge"]["token"];
    let moved =
        json!({ "ip": "192.0.2.2", "token": token, "solution": solved(&told["challenge"]) });
    assert_eq!(ask(moved).1["reason"], "elsewhere");
    let (status, told) = ask(json!({ "ip": "192.0.2.1", "token": token, "solution": "x" }));
    assert_eq!((status, &told["reason"]), (403, &json!("wrong")));
    assert_eq!(ask(json!({})).0, 400, "whose would it be?");
    for (body, field) in [
        (json!({ "user": "u1", "token": token }), "solution"),
        (json!({ "user": "u1", "solution": "1" }), "token"),
        (json!({ "user": "u1", "token": 7, "solution": "1" }), "token"),
        (json!({ "user": "u1", "policy": "bank" }), "policy"),
        (json!({ "usr": "u1" }), "usr"),
    ] {
        let (status, told) = ask(body);
        assert_eq!((status, &told["field"]), (400, &json!(field)), "{told}");
    }
    let open = Daemon::with_policy("{ tidegate: 1, name: open }", None);
    let open = Contract::of(&open);
    let answer = open.post("/v1/challenge", &json!({ "user": "u1" }));
    assert_eq!((answer.status, &answer.json()["reason"]), (404, &json!("no_challenges")));
}

#[test]
fn failed_challenges_are_events_that_a_ladder_counts() {
    let policy = format!(
        "{POLICY}penalties:\n  guessing:\n    event: challenge_failed\n    by: user\n    within: 1h\n    ladder: {{ 3: {{ ban: 1h }} }}\n"
    );
    let daemon = Daemon::with_policy(&policy, None);
    let api = Contract::of(&daemon);
    check(&api, "u1", None);
    let guess = json!({ "user": "u1", "token": "c1.guess", "solution": "1" });
    for _ in 0..2 {
        assert_eq!(api.post("/v1/challenge", &guess).json()["reason"], "forged");
        assert_eq!(check(&api, "u1", None)["outcome"], "challenged");
    }
    api.post("/v1/challenge", &guess);
    assert_eq!(check(&api, "u1", None)["outcome"], "banned");
    assert_eq!(api.post("/v1/challenge", &guess).json()["reason"], "shut_out");
    assert_eq!(check(&api, "u2", None)["outcome"], "allowed");
}

#[test]
fn the_policys_own_answer_to_the_challenged_gets_the_challenge_too() {
    let policy = format!(
        "{POLICY}response: {{ challenged: {{ status: 401, body: {{ error: SOLVE }} }} }}\n"
    );
    let daemon = Daemon::with_policy(&policy, None);
    let api = Contract::of(&daemon);
    check(&api, "u1", None);
    let refused = check(&api, "u1", None);
    assert_eq!((&refused["status"], &refused["body"]["error"]), (&json!(401), &json!("SOLVE")));
    assert!(refused["body"]["challenge"]["token"].is_string(), "{refused}");
}
