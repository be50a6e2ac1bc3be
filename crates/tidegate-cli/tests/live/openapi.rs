//! The document of the decision API, compared with all its answers.

use std::io::Write as _;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Contract, Daemon};

const POLICY: &str = "
tidegate: 1
name: contract
limits:
  places: { by: user, concurrency: 2 }
";

const FUZZED: &str = "
tidegate: 1
name: fuzzed
identity: { attributes: { room: given } }
operations: { login: POST /login, order: {} }
limits:
  places: { by: user, concurrency: 20, exceed: challenge }
  rate: { by: client, sliding_window: 1000/min }
events: { auth_failure: { when: login, status: 401 } }
challenge: { kind: proof_of_work, difficulty: 8 }
";

/// In a batch, a call that cannot be decided is told in its place, with status 200.
const FUZZING: &str = "
[[operations]]
include-path = \"/v1/check/batch\"
checks.negative_data_rejection.enabled = false
";

/// Of `secret`, as `printf %s secret | sha256sum` has it.
const SECRET: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

const CALLS: [&str; 8] = [
    "/v1/check",
    "/v1/check/batch",
    "/v1/acquire",
    "/v1/challenge",
    "/v1/report",
    "/v1/release",
    "/v1/renew",
    "/v1/settle",
];
const PAGES: [&str; 3] = ["/v1/limits", "/limits", "/openapi.json"];

#[test]
fn every_status_of_the_document_is_met_and_every_answer_fits_its_schema() {
    let daemon = Daemon::with_policy(POLICY, None);
    let contract = Contract::of(&daemon);
    what_passes(&contract);
    what_is_refused(&contract);
    let guarded = without_the_right_token();
    let slow = with_a_slow_body();
    let draining = while_it_drains();
    let challenges = with_challenges();
    let none: [&str; 0] = [];
    assert_eq!(contract.unseen([&guarded, &slow, &draining, &challenges]), none);
}

fn what_passes(contract: &Contract) {
    let answer = contract.post("/v1/check", &json!({ "user": "u" }));
    let lease = answer.json()["lease"].clone();
    assert!(lease.is_string(), "{}", answer.text());
    contract.post("/v1/check/batch", &json!([{}, { "user": "u" }, { "operation": "none" }]));
    contract.post("/v1/acquire", &json!({ "user": "v", "max_wait_ms": 1 }));
    for call in ["/v1/renew", "/v1/release"] {
        assert_eq!(contract.post(call, &json!({ "lease": lease })).status, 200);
    }
    let other = contract.post("/v1/check", &json!({ "user": "w" })).json()["lease"].clone();
    let settled = contract.post("/v1/settle", &json!({ "lease": other, "status": 200 }));
    assert_eq!(settled.status, 200);
    for said in [json!({ "event": "limited", "user": "u", "value": 2 }), json!({ "load": 0.5 })] {
        assert_eq!(contract.post("/v1/report", &said).status, 200);
    }
    for page in PAGES.into_iter().chain(["/health", "/ready"]) {
        assert_eq!(contract.get(page).status, 200);
    }
    for page in ["/v1/limits", "/limits"] {
        let tag = contract.get(page).header("etag").unwrap().to_owned();
        let again = contract.send("GET", page, &[("If-None-Match", &tag)], None);
        assert_eq!((again.status, again.header("etag")), (304, Some(tag.as_str())));
    }
    contract.send("GET", "/limits", &[("Accept", "application/json")], None);
}

fn what_is_refused(contract: &Contract) {
    let lease = "0".repeat(32);
    for call in CALLS {
        assert_eq!(contract.post(call, &json!({ "surprise": 1 })).status, 400, "{call}");
        let huge = [("Content-Length", "5000000")];
        assert_eq!(contract.send("POST", call, &huge, None).status, 413, "{call}");
    }
    for call in &CALLS[5..] {
        let said = if *call == "/v1/settle" {
            json!({ "lease": lease, "cost": 1 })
        } else {
            json!({ "lease": lease })
        };
        assert_eq!(contract.post(call, &said).status, 404, "{call}");
    }
    assert_eq!(contract.post("/v1/challenge", &json!({ "user": "u" })).status, 404);
    for page in ["/v1/limits", "/limits"] {
        assert_eq!(contract.get(&format!("{page}?policy=none")).status, 404);
        assert_eq!(contract.get(&format!("{page}?policy=")).status, 404);
        assert_eq!(contract.get(&format!("{page}?surprise=1")).status, 400);
    }
}

fn without_the_right_token() -> Contract {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, format!("client shop {SECRET}\n")).unwrap();
    let arguments = ["--tokens", tokens.to_str().unwrap()];
    let daemon = Daemon::with_policy_and(POLICY, None, &arguments);
    let contract = Contract::with_headers(&daemon, &[("Authorization", "Bearer secret")]);
    let elsewhere = [("Authorization", "Bearer secret"), ("Origin", "https://evil.example")];
    let calls = CALLS.iter().map(|call| ("POST", *call, Some("{}")));
    for (method, path, body) in calls.chain(PAGES.iter().map(|page| ("GET", *page, None))) {
        let unnamed = contract.send(method, path, &[], body);
        let expected = if path.ends_with("/limits") { (200, None) } else { (401, Some("Bearer")) };
        assert_eq!((unnamed.status, unnamed.header("www-authenticate")), expected, "{path}");
        assert_eq!(contract.send(method, path, &elsewhere, body).status, 403);
    }
    contract
}

fn with_a_slow_body() -> Contract {
    let daemon = Daemon::with_policy_and(POLICY, None, &["--body-timeout", "100ms"]);
    let contract = Contract::of(&daemon);
    for call in CALLS {
        let mut connection = daemon.api().connect();
        let head =
            format!("POST {call} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{{");
        connection.socket.write_all(head.as_bytes()).unwrap();
        let answer = connection.answer();
        assert_eq!(answer.status, 408, "{call}");
        contract.hold("POST", call, &answer);
    }
    contract
}

/// With a CAPTCHA service that is not there.
fn with_challenges() -> Contract {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    let service = "verify_url: 'http://127.0.0.1:1/', secret_env: CAPTCHA";
    let policy = format!("{POLICY}challenge: {{ kind: captcha, {service} }}\n");
    std::fs::write(&path, policy).unwrap();
    let daemon = Daemon::start(Daemon::command().arg(&path).env("CAPTCHA", "hush"));
    let contract = Contract::of(&daemon);
    let told = contract.post("/v1/challenge", &json!({ "user": "u" })).json();
    let mut said = json!({ "user": "u", "token": told["challenge"]["token"], "solution": "x" });
    assert_eq!(contract.post("/v1/challenge", &said).status, 503);
    said["token"] = json!("forged");
    assert_eq!(contract.post("/v1/challenge", &said).status, 403);
    contract
}

fn while_it_drains() -> Contract {
    let daemon = Daemon::with_policy(POLICY, None);
    let contract = Contract::of(&daemon);
    let mut connection = daemon.api().connect();
    connection.request("GET", "/ready", &[], None);
    assert_eq!(connection.answer().status, 200);
    daemon.signal("TERM");
    daemon.wait_for_log("draining");
    connection.request("GET", "/ready", &[], None);
    let answer = connection.answer();
    assert_eq!((answer.status, answer.header("connection")), (503, Some("close")));
    contract.hold("GET", "/ready", &answer);
    contract
}

#[test]
fn every_example_of_the_document_fits_its_schema() {
    let daemon = Daemon::with_policy(POLICY, None);
    let contract = Contract::of(&daemon);
    let mut examples = 0;
    each_content(&contract.document["paths"], &mut |content| {
        if let Some(example) = content.get("example") {
            contract.fits(&content["schema"], example);
            examples += 1;
        }
    });
    assert!(examples >= 14, "{examples}");
}

#[test]
fn only_known_fields_are_documented_and_taken() {
    let daemon = Daemon::with_policy(POLICY, None);
    let contract = Contract::of(&daemon);
    for (call, schema) in [("/v1/check", "Check"), ("/v1/acquire", "Acquire")] {
        let schema = &contract.document["components"]["schemas"][schema];
        assert_eq!(schema["additionalProperties"], false);
        let fields = schema["properties"].as_object().unwrap().keys();
        let nothing: Value = fields.map(|field| (field.clone(), Value::Null)).collect();
        assert_eq!(contract.post(call, &nothing).status, 200);
    }
}

/// By calls that schemathesis makes up. `TIDEGATE_TEST_SCHEMATHESIS` names the folder that holds it.
#[test]
fn calls_that_fit_the_document_are_taken_and_others_are_refused() {
    let Some(packages) = std::env::var_os("TIDEGATE_TEST_SCHEMATHESIS") else {
        eprintln!("left out: TIDEGATE_TEST_SCHEMATHESIS names no folder of schemathesis");
        return;
    };
    let daemon = Daemon::with_policy(FUZZED, None);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("schemathesis.toml"), FUZZING).unwrap();
    let document = format!("http://{}/openapi.json", daemon.address("api"));
    let mut command = Command::new("python3");
    command.args(["-m", "schemathesis.cli", "run", &document, "--max-examples", "15"]);
    command.args(["--no-color", "--warnings", "off"]);
    let ended = command.env("PYTHONPATH", packages).current_dir(folder.path()).output().unwrap();
    let text = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{text}{}", String::from_utf8_lossy(&ended.stderr));
    assert!(text.contains("API Links:    6 covered"), "leases are settled and released: {text}");
}

/// Every object with a schema among calls.
fn each_content(value: &Value, act: &mut impl FnMut(&serde_json::Map<String, Value>)) {
    match value {
        Value::Object(map) if map.contains_key("schema") && !map.contains_key("in") => act(map),
        Value::Object(map) => map.values().for_each(|value| each_content(value, act)),
        Value::Array(list) => list.iter().for_each(|value| each_content(value, act)),
        _ => {}
    }
}
