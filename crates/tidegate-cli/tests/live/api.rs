//! The decision API: its fields, its errors, and its exact counts.

use std::io::Write as _;

use serde_json::{Value, json};

use crate::support::{Contract, Daemon};

const POLICY: &str = r#"
tidegate: 1
name: api
identity:
  default_tier: free
  attributes:
    usd: given
    note: { body: /note }
    key: { header: X-Key }
operations:
  pay: POST /pay
  tenth: POST /tenth
  keyed: GET /keyed
  noted: POST /noted
  slow: GET /slow
  once: GET /once
exempt:
  - path: /health
block: { ips: [203.0.113.0/24] }
limits:
  spend: { when: pay, by: user, cost: usd, total: 1000 }
  tenths: { when: tenth, by: user, total: 3 }
  keys: { when: keyed, by: key, total: 1 }
  notes: { when: noted, by: note, total: 1 }
  paced: { when: slow, by: user, sliding_window: 1/200ms }
  hourly: { when: once, by: user, sliding_window: 1/h }
"#;

#[test]
fn decimals_add_up_to_exactly_what_they_are() {
    let daemon = Daemon::with_policy(POLICY, None);
    let contract = Contract::of(&daemon);
    // As floats, the first three are more than three.
    for (cost, allowed) in [("0.1", true), ("\"2.7\"", true), ("2e-1", true), ("0.000001", false)] {
        let said = format!(r#"{{"method":"POST","path":"/tenth","user":"u","cost":{cost}}}"#);
        let answer = contract.post_text("/v1/check", &said).json();
        assert_eq!(answer["allowed"], allowed, "{cost}: {answer}");
    }
}

#[test]
fn amounts_in_attributes_stay_exact() {
    let daemon = Daemon::with_policy(POLICY, None);
    let contract = Contract::of(&daemon);
    let pay = |usd: &str| {
        let said =
            format!(r#"{{"method":"POST","path":"/pay","user":"u","attributes":{{"usd":{usd}}}}}"#);
        contract.post_text("/v1/check", &said)
    };
    assert_eq!(pay("734.500001").json()["allowed"], true);
    assert_eq!(pay("265.500000").json()["allowed"], false, "a millionth too much");
    assert_eq!(pay("\"265.499999\"").json()["allowed"], true);
    let full = pay("0.000001").json();
    assert_eq!((&full["allowed"], &full["retry_after_ms"]), (&json!(false), &Value::Null));
    for wrong in ["734.5000001", "-1", "\"many\"", "1e400", "true"] {
        let answer = pay(wrong);
        assert_eq!(answer.status, 400, "{wrong}: {}", answer.text());
        assert!(answer.json()["field"].as_str().unwrap().contains("usd"), "{}", answer.text());
    }
}

#[test]
fn wrong_types_and_unknown_fields_are_named() {
    let daemon = Daemon::with_policy(POLICY, None);
    let contract = Contract::of(&daemon);
    for (said, field) in [
        (r#"{"usr":1}"#, "usr"),
        (r#"{"method":1}"#, "method"),
        (r#"{"path":["/"]}"#, "path"),
        (r#"{"path":"/a%2Fb"}"#, "path"),
        (r#"{"ip":"localhost"}"#, "ip"),
        (r#"{"user":{}}"#, "user"),
        (r#"{"internal":"yes"}"#, "internal"),
        (r#"{"operation":"pya"}"#, "operation"),
        (r#"{"attributes":{"usd":[1]}}"#, "attributes.usd"),
        (r#"{"headers":{"x-key":{}}}"#, "headers.x-key"),
        (r#"{"cost":0.0000001}"#, "cost"),
        (r#"{"cost":-0.1}"#, "cost"),
        (r#"{"reserve":1}"#, "reserve"),
        (r#"{"max_wait_ms":1}"#, "max_wait_ms"),
        (r#"{"user":"a","user":"b"}"#, ""),
        ("{", ""),
        ("", ""),
        ("[]", ""),
        ("null", ""),
    ] {
        let answer = contract.post_text("/v1/check", said);
        assert_eq!(answer.status, 400, "{said}: {}", answer.text());
        assert_eq!(answer.json()["field"], field, "{said}: {}", answer.text());
    }
}

#[test]
fn deep_nesting_is_refused_safely() {
    let daemon = Daemon::with_policy(POLICY, None);
    let contract = Contract::of(&daemon);
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let said = format!(r#"{{"method":"POST","path":"/noted","body":{{"note":{deep}}}}}"#);
    contract.post_text("/v1/check", &said);
    assert_eq!(contract.post_text("/v1/check", &deep).status, 400);
    assert_eq!(contract.post_text("/v1/check/batch", &deep).status, 400);
    assert_eq!(contract.get("/health").status, 200);
}

#[test]
fn a_body_that_does_not_say_how_large_it_is_may_not_be_too_large_either() {
    let daemon = Daemon::with_policy(POLICY, None);
    let contract = Contract::of(&daemon);
    for (call, max) in [("/v1/check", 256 << 10), ("/v1/check/batch", 4 << 20)] {
        let head = format!(
            "POST {call} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
        let mut connection = daemon.api().connect();
        connection.socket.write_all(head.as_bytes()).unwrap();
        let chunk = format!("{:x}\r\n{}", max + 1, " ".repeat(max + 1));
        connection.socket.write_all(chunk.as_bytes()).unwrap();
        let answer = connection.answer();
        assert_eq!(answer.status, 413, "{call}");
        contract.hold("POST", call, &answer);
    }
}

#[test]
fn headers_and_bodies_feed_attributes() {
    let daemon = Daemon::with_policy(POLICY, None);
    let contract = Contract::of(&daemon);
    let allowed = |said: Value| contract.post("/v1/check", &said).json()["allowed"].clone();
    let keyed =
        |key: &str| json!({ "method": "GET", "path": "/keyed", "headers": { "x-key": key } });
    assert_eq!(
        [allowed(keyed("a")), allowed(keyed("b")), allowed(keyed("a"))],
        [true, true, false]
    );
    let noted = |body: Value| json!({ "method": "POST", "path": "/noted", "body": body });
    assert_eq!(allowed(noted(json!({ "note": 7 }))), true);
    assert_eq!(allowed(noted(json!("{\"note\":7}"))), false, "a string is the body's text");
}

#[test]
fn exempt_and_blocked_requests_are_told_as_such() {
    let daemon = Daemon::with_policy(POLICY, None);
    let contract = Contract::of(&daemon);
    let exempt = contract.post("/v1/check", &json!({ "method": "GET", "path": "/health" })).json();
    assert_eq!((&exempt["outcome"], &exempt["limits"]), (&json!("exempt"), &json!([])));
    let blocked = contract.post("/v1/check", &json!({ "ip": "203.0.113.9" })).json();
    assert_eq!((&blocked["outcome"], &blocked["status"]), (&json!("blocked"), &json!(403)));
}

#[test]
fn a_batch_is_decided_in_order_up_to_a_thousand() {
    let daemon = Daemon::with_policy(POLICY, None);
    let contract = Contract::of(&daemon);
    let one = json!({ "method": "GET", "path": "/keyed", "headers": { "x-key": "k" } });
    let lost = json!({ "operation": "none" });
    let answers = contract.post("/v1/check/batch", &json!([one, lost, one])).json();
    assert_eq!((&answers[0]["allowed"], &answers[2]["allowed"]), (&json!(true), &json!(false)));
    assert_eq!(
        (&answers[1]["status"], &answers[1]["field"]),
        (&json!(400), &json!("[1].operation"))
    );
    assert_eq!(contract.post("/v1/check/batch", &json!([])).json(), json!([]));
    let many = |count: usize| contract.post("/v1/check/batch", &json!(vec![json!({}); count]));
    assert_eq!(many(1_000).json().as_array().unwrap().len(), 1_000);
    assert_eq!(many(1_001).status, 400);
    let wrong = contract.post("/v1/check/batch", &json!([{}, { "usr": 1 }]));
    assert_eq!((wrong.status, &wrong.json()["field"]), (400, &json!("[1].usr")));
}

#[test]
fn acquire_waits_its_turn_or_says_at_once_that_it_would_take_too_long() {
    let daemon = Daemon::with_policy(POLICY, None);
    let contract = Contract::of(&daemon);
    let acquire = |path: &str, wait: u64| {
        let said = json!({ "method": "GET", "path": path, "user": "u", "max_wait_ms": wait });
        contract.post("/v1/acquire", &said).json()
    };
    for _ in 0..3 {
        assert_eq!(acquire("/slow", 30_000)["allowed"], true);
    }
    assert_eq!(acquire("/once", 30_000)["allowed"], true);
    let refused = acquire("/once", 30_000);
    let told = (&refused["allowed"], &refused["outcome"], &refused["waited_ms"]);
    assert_eq!(told, (&json!(false), &json!("limited"), &json!(0)));
    assert!(refused["retry_after_ms"].as_u64().unwrap() > 30_000, "{refused}");
}

#[test]
fn wrong_methods_are_told_which_and_unknown_paths_where_to_look() {
    let daemon = Daemon::with_policy(POLICY, None);
    let contract = Contract::of(&daemon);
    let paths = contract.document["paths"].as_object().unwrap();
    for (path, calls) in paths {
        let takes_post = calls.get("post").is_some();
        let (wrong, allow) = if takes_post { ("GET", "POST") } else { ("POST", "GET, HEAD") };
        for method in [wrong, "DELETE", "OPTIONS"] {
            let answer = contract.send(method, path, &[], None);
            assert_eq!(
                (answer.status, answer.header("allow")),
                (405, Some(allow)),
                "{method} {path}"
            );
        }
    }
    for path in ["/", "/v1", "/v1/check/", "/V1/check", "/v1/limits/x", "//v1/check"] {
        let answer = contract.get(path);
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.text().contains("/openapi.json"));
    }
}

#[test]
fn a_head_has_the_headers_of_a_get_and_no_body() {
    let daemon = Daemon::with_policy(POLICY, None);
    for path in ["/v1/limits", "/limits", "/openapi.json", "/health", "/ready"] {
        let length = daemon.api().get(path).body.len();
        let head = format!("HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let answer = daemon.api().raw(head.as_bytes()).to_ascii_lowercase();
        assert!(answer.starts_with("http/1.1 200 "), "{answer}");
        assert!(answer.contains(&format!("content-length: {length}\r\n")), "{answer}");
        assert!(answer.ends_with("\r\n\r\n"), "{answer}");
    }
}

#[test]
fn tokens_open_each_listener_to_the_roles_that_it_serves() {
    // Of `one`, `two`, `three` and `four`, as `sha256sum` has them.
    let tokens = "\
        client shop 7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed\n\
        viewer eve 3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3\n\
        operator alice 8b5b9db0c13db24256c829aa364aa90c6d2eba318b9232a4ab9313b954d3555f\n\
        superadmin root 04efaf080f5a3e74e1c29d1ca6a48569382cbbcd324e8d59d2b83ef21c039f00\n";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    std::fs::write(&path, tokens).unwrap();
    let daemon = Daemon::with_policy_and(POLICY, None, &["--tokens", path.to_str().unwrap()]);
    let contract = Contract::with_headers(&daemon, &[("Authorization", "Bearer one")]);
    for (token, api, admin) in [
        ("one", 200, 403),
        ("two", 403, 200),
        ("three", 200, 200),
        ("four", 200, 200),
        ("five", 401, 401),
    ] {
        let header = [("Authorization", &*format!("Bearer {token}"))];
        assert_eq!(contract.send("POST", "/v1/check", &header, Some("{}")).status, api, "{token}");
        let status = daemon.admin().send("GET", "/admin/v1/status", &header, None);
        assert_eq!(status.status, admin, "{token}");
    }
    assert_eq!(contract.post("/v1/check", &json!({})).status, 401);
    assert_eq!(
        contract.send("GET", "/v1/none", &[("Authorization", "Bearer one")], None).status,
        404
    );
    for open in ["/health", "/ready"] {
        assert_eq!(contract.get(open).status, 200);
        assert_eq!(daemon.admin().get(open).status, 200);
    }
    for open in ["/limits", "/v1/limits"] {
        assert_eq!(contract.get(open).status, 200);
        assert_eq!(daemon.admin().get(open).status, 401);
    }
    assert_eq!(daemon.admin().send("GET", "/none", &[], None).status, 401);
}

#[test]
fn on_loopback_no_foreign_name_or_page_is_served() {
    let daemon = Daemon::with_policy(POLICY, None);
    let contract = Contract::of(&daemon);
    for (header, value, status) in [
        ("Host", "evil.example", 403),
        ("Host", "localhost.evil.example", 403),
        ("Host", "localhost", 200),
        ("Host", "[::1]:7070", 200),
        ("Origin", "https://evil.example", 403),
        ("Origin", "null", 403),
        ("Origin", "http://localhost:3000", 200),
        ("Sec-Fetch-Site", "cross-site", 403),
        ("Sec-Fetch-Site", "same-origin", 200),
    ] {
        let answer = contract.send("POST", "/v1/check", &[(header, value)], Some("{}"));
        assert_eq!(answer.status, status, "{header}: {value}");
        let page = contract.send("GET", "/limits", &[(header, value)], None);
        assert_eq!(page.status, status, "{header}: {value}");
    }
    let health = contract.send("GET", "/health", &[("Host", "evil.example")], None);
    assert_eq!(health.status, 200, "health is everybody's to ask");
}
