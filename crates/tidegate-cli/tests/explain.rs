//! `tidegate explain`, for people and for scripts.

mod binary;

use binary::{BROKEN, CommandOutput, Folder, SHOP};
use insta::assert_snapshot;
use serde_json::json;

fn explain(arguments: &[&str]) -> CommandOutput {
    let folder = Folder::with(&[("shop.yaml", SHOP), ("broken.yaml", BROKEN)]);
    folder.run(&[&["explain"], arguments].concat())
}

const ORDER: [&str; 9] = [
    "shop.yaml",
    "--method",
    "POST",
    "--path",
    "/orders/s1",
    "--ip",
    "192.0.2.1",
    "--attr",
    "amount=12.50",
];

#[test]
fn limits_that_apply_come_with_spec_and_key_the_others_with_the_reason() {
    let ran = explain(&ORDER);
    ran.assert_plain();
    assert_snapshot!(ran.transcript());
}

#[test]
fn json_has_every_field() {
    let ran = explain(&[&ORDER[..], &["--user", "u1", "--tier", "vip", "--json"]].concat());
    assert_eq!(ran.code, 0);
    let json = ran.json();
    let mut head = json.clone();
    let limits = head.as_object_mut().unwrap().remove("limits").unwrap();
    let expected = json!({
        "policy": "shop",
        "enabled": true,
        "operation": "order",
        "method": "POST",
        "path": "/orders/s1",
        "user": "u1",
        "address": "192.0.2.1",
        "tier": "vip",
        "unknown_tier": null,
        "internal": false,
        "ignored_headers": [],
        "standing": "ordinary",
        "factors": [],
        "unreadable": [],
        "penalties": [],
    });
    assert_eq!(head, expected);
    let names: Vec<_> = limits.as_array().unwrap().iter().map(|limit| &limit["name"]).collect();
    assert_eq!(names, ["order-ip", "order-shop", "spent", "vip", "keyed"]);
    let mut spent = limits[2].clone();
    let key = spent.as_object_mut().unwrap().remove("key").unwrap();
    assert!(key.as_str().unwrap().starts_with("spent:"), "{key}");
    let expected = json!({
        "name": "spent",
        "algorithm": "total",
        "applies": true,
        "spec": "1000",
        "by": ["client"],
        "cost": "12.5",
        "exceed": "reject",
    });
    assert_eq!(spent, expected);
    assert_eq!((&limits[1]["exceed"], &limits[3]["exceed"]), (&json!("warn"), &json!("shadow")));
    let why = "it counts by `key`, and there is none";
    let expected =
        json!({ "name": "keyed", "algorithm": "fixed_window", "applies": false, "why": why });
    assert_eq!(limits[4], expected);
}

#[test]
fn exempt_and_blocked_requests_are_said_to_be() {
    let exempt = explain(&["shop.yaml", "--path", "/health", "--json"]).json();
    assert_eq!(exempt["standing"], "exempt");
    let blocked = explain(&["shop.yaml", "--path", "/a", "--ip", "203.0.113.9", "--json"]).json();
    assert_eq!(blocked["standing"], "blocked");
}

#[test]
fn headers_are_believed_only_from_a_trusted_peer() {
    let user = |peer: &str| {
        let headers = ["--header", "X-User: u1", "--header", "X-Forwarded-For: 192.0.2.7"];
        let arguments = [&["shop.yaml", "--path", "/a", "--json", "--peer", peer], &headers[..]];
        let json = explain(&arguments.concat()).json();
        (json["user"].clone(), json["address"].clone())
    };
    assert_eq!(user("127.0.0.1"), (json!("u1"), json!("192.0.2.7")));
    assert_eq!(user("192.0.2.1"), (json!(null), json!("192.0.2.1")));
}

#[test]
fn a_header_of_an_untrusted_peer_is_said_to_be_ignored() {
    let headers = ["--header", "x-user: u1", "--header", "X-Forwarded-For: 192.0.2.7"];
    let from =
        |peer| explain(&[&["shop.yaml", "--path", "/a", "--peer", peer], &headers[..]].concat());
    let untrusted = from("192.0.2.1");
    untrusted.assert_plain();
    assert_snapshot!(untrusted.transcript());
    assert!(!from("127.0.0.1").out.contains("ignored"));
    let stated = explain(&[&["shop.yaml", "--ip", "192.0.2.1"], &headers[..]].concat());
    assert!(!stated.out.contains("ignored"), "without a socket, all is believed");
}

#[test]
fn claims_identify_the_client() {
    let policy = "tidegate: 1
name: tokens
identity: { user: { jwt: sub }, tier: { jwt: /plan/name }, default_tier: free }
limits: { a: { by: client, total: { free: 1, pro: 5, anonymous: 1 } } }
";
    let folder = Folder::with(&[("tokens.yaml", policy)]);
    let claims = ["--claim", "sub=u1", "--claim", "/plan/name=pro", "--peer", "192.0.2.1"];
    let json = folder
        .run(&[&["explain", "tokens.yaml", "--path", "/", "--json"], &claims[..]].concat())
        .json();
    assert_eq!((&json["user"], &json["tier"]), (&json!("u1"), &json!("pro")));
    assert_eq!(json["limits"][0]["spec"], "5");
}

#[test]
fn profile_operation_and_cost_are_taken_from_the_command_line() {
    let json = explain(&[&ORDER[..], &["--profile", "loose", "--cost", "3", "--json"]].concat());
    let json = json.json();
    assert_eq!(
        (&json["limits"][0]["spec"], &json["limits"][0]["cost"]),
        (&json!("100/min"), &json!("3"))
    );
    let named = explain(&["shop.yaml", "--operation", "order", "--attr", "amount=1", "--json"]);
    assert_eq!(named.json()["operation"], "order");
}

#[test]
fn a_request_that_cannot_be_explained_ends_with_1_and_a_reason() {
    let told = [
        explain(&["shop.yaml", "--path", "/a%2Fb"]),
        explain(&["shop.yaml", "--operation", "ordr"]),
        explain(&["shop.yaml", "--path", "/a", "--profile", "lose"]),
        explain(&["missing.yaml"]),
        explain(&["broken.yaml"]),
    ];
    let told: Vec<String> = told.iter().map(CommandOutput::transcript).collect();
    assert_snapshot!(told.join("\n\n"));
}

#[test]
fn an_attribute_that_cannot_be_read_is_told_with_its_reason() {
    let policy = "{ tidegate: 1, name: n, identity: { attributes: { email: { body: /email } } },
        limits: { one: { by: email, total: 1 } } }";
    let folder = Folder::with(&[("bodies.yaml", policy)]);
    let explain = |further: &[&str]| {
        let body = ["explain", "bodies.yaml", "--path", "/", "--body", "{\"email\":\"a\"}"];
        folder.run(&[&body[..], further].concat())
    };
    let typed = ["--header", "Content-Type: text/plain"];
    let told = explain(&typed);
    let line = "unreadable email: the body is of a type that is not read";
    assert!(told.out.contains(line), "{}", told.out);
    let json = explain(&[&typed[..], &["--json"]].concat()).json();
    assert_eq!(json["unreadable"], json!([{ "attribute": "email", "reason": "type" }]));
    let readable = explain(&[]);
    assert!(!readable.out.contains("unreadable"), "{}", readable.out);
}

#[test]
fn a_limit_that_would_answer_400_says_so_beside_the_others() {
    let json = explain(&[&ORDER[..7], &["--json"]].concat()).json();
    let limits = json["limits"].as_array().unwrap();
    let spent = limits.iter().find(|limit| limit["name"] == "spent").unwrap();
    assert!(spent["why"].as_str().unwrap().contains("answer 400: attributes.amount"));
    assert!(limits.iter().any(|limit| limit["applies"] == true));
}

#[test]
fn an_unknown_argument_ends_with_2() {
    for wrong in [
        &["shop.yaml", "--ip", "localhost"][..],
        &["shop.yaml", "--cost", "many"],
        &["shop.yaml", "--attr", "amount"],
        &["shop.yaml", "--header", "X-User"],
        &[],
    ] {
        let ran = explain(wrong);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{wrong:?}");
        assert!(ran.err.starts_with("error: "), "{}", ran.err);
    }
}

const GUARDED: &str = r#"
tidegate: 1
name: guarded
identity: { attributes: { email: { body: /email } } }
operations: { login: POST /login }
limits:
  login: { when: login, by: ip, sliding_window: 10/min }
events:
  failure: { when: login, status: [401, 403] }
  over: { outcome: limited, limit: login }
penalties:
  brute-force:
    event: failure
    by: email
    within: 15min
    ladder: { 4: { delay: 2s, warn: captcha }, 11: { ban: { for: 15min, by: network }, notify: ops } }
  repeated: { event: over, by: client, within: 1h, ladder: { 1: { allow: true }, 2: {}, 10: { ban: 1h } } }
factors:
  partners: { when: { ip: 192.0.2.0/24 }, times: 3 }
  overload: { load_above: 80%, times: 0.5 }
notify: { ops: { webhook: "https://example.org/hook" } }
"#;

#[test]
fn penalties_come_with_their_steps_and_specs_as_factors_make_them() {
    let folder = Folder::with(&[("guarded.yaml", GUARDED)]);
    let login = ["explain", "guarded.yaml", "--method", "POST", "--path", "/login"];
    let from = ["--ip", "192.0.2.1", "--load", "0.9"];
    let ran = folder.run(&[&login[..], &from, &["--body", r#"{"email":"a@b.c"}"#]].concat());
    ran.assert_plain();
    assert_snapshot!(ran.transcript());
    let json = folder.run(&[&login[..], &from, &["--json"]].concat()).json();
    assert_eq!(json["factors"][1], json!({ "name": "overload", "times": "0.5" }));
    assert_eq!(json["limits"][0]["spec"], "15/min");
    let why = "it counts by `email`, and there is none";
    let missing = json!({ "name": "brute-force", "applies": false, "why": why });
    assert_eq!(json["penalties"][0], missing);
    assert_eq!(json["penalties"][1]["ladder"][2], json!({ "from": 10, "step": "ban 1h" }));
    let wrong = folder.run(&[&login[..], &["--load", "2"]].concat());
    assert_eq!(wrong.code, 2);
}
