//! Programs and raw clients at the gateway.

use serde_json::{Value, json};

use super::{POLICY, solved};
use crate::support::{Answer, Client, Daemon, Upstream};

const PATH: &str = "/.well-known/tidegate/challenge";

fn challenged(gateway: Client) -> Value {
    gateway.get("/");
    let refused = gateway.get("/");
    assert_eq!(refused.status, 403, "{}", refused.text());
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert_eq!(refused.header("cache-control"), Some("no-store"));
    refused.json()["challenge"].clone()
}

fn answer(gateway: Client, challenge: &Value, solution: &str) -> Answer {
    let said = json!({ "token": challenge["token"], "solution": solution });
    gateway.post(challenge["answer_to"].as_str().unwrap(), &said.to_string())
}

#[test]
fn a_program_solves_the_challenge_and_its_pass_never_reaches_the_upstream() {
    let upstream = Upstream::start();
    let daemon = Daemon::with_policy(POLICY, Some(&upstream));
    let gateway = daemon.gateway();
    let challenge = challenged(gateway);
    assert_eq!(challenge["answer_to"], PATH);
    let granted = answer(gateway, &challenge, &solved(&challenge));
    assert_eq!(granted.status, 200, "{}", granted.text());
    let cookie = granted.header("set-cookie").unwrap().to_owned();
    assert!(cookie.ends_with("; Path=/; Max-Age=3600; HttpOnly; SameSite=Lax"), "{cookie}");
    let pass = granted.json()["pass"].as_str().unwrap().to_owned();
    let with = |name: &str, value: &str| gateway.send("GET", "/", &[(name, value)], None);
    let passed = with("Tidegate-Pass", &pass);
    assert_eq!(passed.status, 200);
    assert_eq!(passed.header("x-ratelimit-warning"), Some("once"));
    assert_eq!(upstream.last().header("tidegate-pass"), None);
    let pair = cookie.split(';').next().unwrap();
    assert_eq!(with("Cookie", &format!("a=1; {pair}; b=2")).status, 200);
    assert_eq!(upstream.last().header("cookie"), Some("a=1; b=2"));
    assert_eq!(with("Cookie", pair).status, 200);
    assert_eq!(upstream.last().header("cookie"), None);
    assert_eq!(with("Tidegate-Pass", &format!("{pass}0")).status, 403);
    assert_eq!(with("Cookie", "Tidegate-Pass=p1.x").status, 403);
    assert_eq!(answer(gateway, &challenge, &solved(&challenge)).json()["reason"], "used");
    assert!(upstream.seen().iter().all(|seen| !seen.line.contains("tidegate")));
}

#[test]
fn posts_to_the_challenge_path_are_bounded_and_cannot_come_from_another_site() {
    let upstream = Upstream::start();
    let daemon = Daemon::with_policy(POLICY, Some(&upstream));
    let gateway = daemon.gateway();
    let post = |kind: &str, body: &str| {
        gateway.send("POST", PATH, &[("Content-Type", kind)], Some(body)).status
    };
    assert_eq!(post("application/json; charset=utf-8", "{}"), 200);
    assert_eq!(post("text/plain", "{}"), 415, "a form of another site can send this");
    assert_eq!(post("application/x-www-form-urlencoded", "token=1"), 415);
    for body in ["", "[]", "{", "{\"tokn\":1}", "{\"token\":1}", "null"] {
        assert_eq!(post("application/json", body), 400, "{body}");
    }
    assert_eq!(post("application/json", "{\"token\":\"c1\"}"), 403, "half a solution is none");
    let huge = format!("{{\"token\":\"{}\"}}", "x".repeat(1 << 20));
    assert_eq!(post("application/json", &huge), 413);
    let get = gateway.get(PATH);
    assert_eq!((get.status, get.header("allow")), (405, Some("POST")));
    for path in [format!("/{PATH}"), format!("/x/..{PATH}")] {
        assert_eq!(gateway.post(&path, "{}").status, 200, "{path} would be forwarded as {PATH}");
    }
    assert_eq!(upstream.count(), 0);
    let open = Daemon::with_policy("{ tidegate: 1, name: open }", Some(&upstream));
    assert_eq!(open.gateway().post(PATH, "{}").status, 404, "it is nobody else's path");
    assert_eq!(upstream.count(), 0);
}

#[test]
fn a_pass_is_of_the_client_that_earned_it_behind_proxies_too() {
    let upstream = Upstream::start();
    let policy = format!("{POLICY}identity: {{ trusted_proxies: [127.0.0.0/8] }}\n");
    let daemon = Daemon::with_policy(&policy, Some(&upstream));
    let gateway = daemon.gateway();
    let ask = |client: &str, pass: &str| {
        let headers = [("X-Forwarded-For", client), ("Tidegate-Pass", pass)];
        gateway.send("GET", "/", &headers, None).status
    };
    let post = |client: &str, body: &str| {
        let headers = [
            ("X-Forwarded-For", client),
            ("X-Forwarded-Proto", "https"),
            ("Content-Type", "application/json"),
        ];
        gateway.send("POST", PATH, &headers, Some(body))
    };
    let challenge = post("192.0.2.1", "{}").json()["challenge"].clone();
    let said = json!({ "token": challenge["token"], "solution": solved(&challenge) }).to_string();
    assert_eq!(post("192.0.2.2", &said).json()["reason"], "elsewhere");
    let granted = post("192.0.2.1", &said);
    assert!(granted.header("set-cookie").unwrap().ends_with("; Secure"), "it came over TLS");
    let pass = granted.json()["pass"].as_str().unwrap().to_owned();
    for client in ["192.0.2.1", "192.0.2.2"] {
        assert_eq!(ask(client, ""), 200);
    }
    assert_eq!(ask("192.0.2.1", &pass), 200);
    assert_eq!(ask("192.0.2.2", &pass), 403);
    assert_eq!(ask("192.0.2.1", ""), 403);
}

#[test]
fn a_browser_gets_a_page_that_is_not_cached() {
    let upstream = Upstream::start();
    let daemon = Daemon::with_policy(POLICY, Some(&upstream));
    let gateway = daemon.gateway();
    gateway.get("/");
    let accept = [("Accept", "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8")];
    let page = gateway.send("GET", "/", &accept, None);
    assert_eq!(page.status, 403);
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(page.header("cache-control"), Some("no-store"));
    assert!(page.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
    assert!(page.header("x-ratelimit-limit").is_some());
    assert!(page.text().starts_with("<!doctype html>"), "{}", page.text());
}
