//! Bans, flags and events: over the API, the gateway and the admin listener, over restarts, and on
//! several daemons that share a Redis.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use serde_json::{Value, json};
use tidegate_testkit::servers::Server;

use crate::support::{Daemon, Reply, Upstream, eventually};

const POLICY: &str = "
tidegate: 1
name: shop
identity:
  trusted_proxies: [127.0.0.0/8]
  user: { header: X-User-Id }
  attributes: { email: { body: /email, fold: true } }
operations: { login: POST /login }
limits:
  calls: { by: user, total: 1000 }
events:
  auth_failure: { when: login, status: [401] }
  auth_success: { when: login, status: 2xx }
penalties:
  brute-force:
    event: auth_failure
    by: email
    within: 15min
    forgive: auth_success
    ladder:
      4:  { delay: 20ms }
      6:  { delay: 30ms, warn: captcha }
      11: { ban: 15min }
  offender:
    event: auth_failure
    by: user
    within: 1h
    ladder:
      5: { ban: 1h }
      7: { flag: review }
";

fn report(daemon: &Daemon, body: &Value) -> Value {
    let answer = daemon.api().post("/v1/report", &body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn outcome(daemon: &Daemon, user: &str) -> Value {
    daemon.check(&json!({ "user": user })).json()["outcome"].clone()
}

fn bans(daemon: &Daemon, query: &str) -> Vec<Value> {
    let answer = daemon.admin().get(&format!("/admin/v1/bans?{query}"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["bans"].as_array().unwrap().clone()
}

fn ban(daemon: &Daemon, user: &str) -> Value {
    let order = json!({ "key": { "user": user }, "for": "1h", "reason": "for this test" });
    let answer = daemon.admin().post("/admin/v1/bans", &order.to_string());
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn metric(daemon: &Daemon, series: &str) -> u64 {
    let page = daemon.admin().get("/metrics").text();
    let line = page.lines().find_map(|line| line.strip_prefix(series));
    line.map_or(0, |value| value.trim().parse().unwrap())
}

fn cli(daemon: &Daemon, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("admin")
        .args(arguments)
        .env("TIDEGATE_ADMIN_URL", format!("http://{}", daemon.address("admin")))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    format!("{stdout}{stderr}exit {}", output.status.code().unwrap())
}

#[test]
fn reports_climb_a_ladder_and_one_forgives_it() {
    let daemon = Daemon::with_policy(POLICY, None);
    let failure = json!({ "event": "auth_failure", "attributes": { "email": "a@b.c" } });
    let told: Vec<Value> = (1..=7).map(|_| report(&daemon, &failure)).collect();
    let delays: Vec<&Value> = told.iter().map(|told| &told["delay_ms"]).collect();
    assert_eq!(json!(delays), json!([0, 0, 0, 20, 20, 30, 30]));
    assert_eq!(told[6]["warnings"], json!(["captcha"]));
    report(&daemon, &json!({ "event": "auth_success", "attributes": { "email": "A@B.C " } }));
    assert_eq!(report(&daemon, &failure)["delay_ms"], 0);
    for (body, field) in [
        (json!({}), "event"),
        (json!({ "event": "no_such" }), "event"),
        (json!({ "event": "auth_failure", "cost": 1 }), "cost"),
        (json!({ "load": 2 }), "load"),
    ] {
        let answer = daemon.api().post("/v1/report", &body.to_string());
        assert_eq!((answer.status, answer.json()["field"].as_str()), (400, Some(field)), "{body}");
    }
    assert_eq!(report(&daemon, &json!({ "load": 0.5 }))["banned"], false);
    assert_eq!(metric(&daemon, "tidegate_events_total{event=\"auth_failure\"}"), 8);
}

#[test]
fn the_gateway_sees_failures_by_the_email_in_the_body_and_bans() {
    let upstream = Upstream::replying(|_| Reply::Answer(401, "no".to_owned()));
    let daemon = Daemon::with_policy(POLICY, Some(&upstream));
    let login = |email: &str| {
        let body = json!({ "email": email }).to_string();
        daemon.gateway().post("/login", &body)
    };
    for _ in 0..10 {
        assert_eq!(login("a@b.c").status, 401);
    }
    let last = login("a@b.c");
    assert_eq!(last.status, 401, "{}", last.text());
    assert_eq!(login("a@b.c").status, 403, "the eleventh failure has banned");
    assert_eq!(login("x@y.z").status, 401, "others are not");
    assert_eq!(metric(&daemon, "tidegate_bans_total{penalty=\"brute-force\"}"), 1);
    daemon.wait_for_log("ban_set");
    assert!(!daemon.log().contains("a@b.c"), "{}", daemon.log());
    let found = bans(&daemon, "email=a@b.c");
    assert_eq!((found.len(), &found[0]["source"]), (1, &json!("brute-force")), "{found:?}");
}

#[test]
fn an_operator_bans_lists_and_lets_in_again() {
    let daemon = Daemon::with_policy(POLICY, None);
    let made = ban(&daemon, "u1");
    assert_eq!((&made["key"], &made["source"]), (&json!({ "user": "u1" }), &json!("operator")));
    assert_eq!(outcome(&daemon, "u1"), "banned");
    assert_eq!(outcome(&daemon, "u2"), "allowed");
    assert_eq!(bans(&daemon, "user=u1")[0]["id"], made["id"]);
    assert!(bans(&daemon, "user=u2").is_empty());
    for user in ["u2", "u3"] {
        ban(&daemon, user);
    }
    let first = daemon.admin().get("/admin/v1/bans?count=2").json();
    let cursor = first["cursor"].as_str().unwrap();
    let second = daemon.admin().get(&format!("/admin/v1/bans?count=2&cursor={cursor}")).json();
    assert_eq!((&second["bans"].as_array().unwrap().len(), &second["cursor"]), (&1, &Value::Null));
    let id = made["id"].as_str().unwrap();
    let gone = daemon.admin().send("DELETE", &format!("/admin/v1/bans?id={id}"), &[], None);
    assert_eq!(gone.json(), json!({ "removed": 1 }));
    assert_eq!(outcome(&daemon, "u1"), "allowed");
    for (body, field) in [
        (json!({ "key": { "user": "u1" } }), "for"),
        (json!({ "key": {}, "for": "1h" }), "key"),
        (json!({ "key": { "shoe": "42" }, "for": "1h" }), "key"),
        (json!({ "key": { "user": "u1" }, "for": "1h", "policy": "none" }), "policy"),
    ] {
        let answer = daemon.admin().post("/admin/v1/bans", &body.to_string());
        assert_eq!((answer.status, answer.json()["field"].as_str()), (400, Some(field)), "{body}");
    }
    let refused = daemon.admin().send("DELETE", "/admin/v1/bans", &[], None);
    assert_eq!(refused.status, 400);
    assert_eq!(daemon.admin().send("PUT", "/admin/v1/bans", &[], None).status, 405);
    daemon.wait_for_log("ban_removed");
}

#[test]
fn the_log_names_the_operator_of_each_ban_and_unban() {
    let folder = tempfile::tempdir().unwrap();
    // `printf %s tok-op | sha256sum`
    let tokens =
        "operator alice 556244562ad8ad608aefe624eb5eb8f5779322956c11e8675900aa400bbe530d\n";
    let path = folder.path().join("tokens");
    std::fs::write(&path, tokens).unwrap();
    let flags = ["--tokens", path.to_str().unwrap(), "--log", "json"];
    let daemon = Daemon::with_policy_and(POLICY, None, &flags);
    let auth = [("Authorization", "Bearer tok-op")];
    let order = json!({ "key": { "user": "u1" }, "for": "1h", "reason": "scraping" }).to_string();
    let made = daemon.admin().send("POST", "/admin/v1/bans", &auth, Some(&order));
    assert_eq!(made.status, 200, "{}", made.text());
    let gone = daemon.admin().send("DELETE", "/admin/v1/bans?user=u1", &auth, None);
    assert_eq!(gone.json(), json!({ "removed": 1 }));
    daemon.wait_for_log("\"unban\"");
    let lines = daemon.log();
    let audited = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let audited: Vec<Value> = audited.filter(|line| line["event"] == "audit").collect();
    let told = |line: &Value| {
        let fields = ["action", "caller", "role", "peer", "reason"];
        fields.map(|field| line[field].as_str().unwrap_or_default().to_owned())
    };
    let expected = |action| [action, "alice", "operator", "127.0.0.1", "scraping"];
    assert_eq!(audited.len(), 2, "{lines}");
    assert_eq!(told(&audited[0]), expected("ban"), "{lines}");
    assert_eq!(told(&audited[1]), expected("unban"), "{lines}");
    assert!(audited.iter().all(|line| line["subject"] != "user u1"), "hashed as elsewhere");
}

#[test]
fn the_command_line_bans_and_flags() {
    let daemon = Daemon::with_policy(POLICY, None);
    let added = cli(&daemon, &["bans", "add", "--user", "u1", "--for", "1h", "--reason", "a test"]);
    assert_eq!(added, "user u1  for another 3600s  by operator  a test\nexit 0");
    assert_eq!(outcome(&daemon, "u1"), "banned");
    let listed = cli(&daemon, &["bans", "list"]);
    assert!(listed.starts_with("user u1  for another 3"), "{listed}");
    assert!(listed.ends_with("by operator  a test\n1 ban\nexit 0"), "{listed}");
    let json = cli(&daemon, &["bans", "list", "--user", "u1", "--json"]);
    assert!(json.contains("\"more\": false"), "{json}");
    assert_eq!(cli(&daemon, &["bans", "remove", "--user", "u1"]), "removed 1 ban\nexit 0");
    let again = cli(&daemon, &["bans", "remove", "--user", "u1"]);
    assert_eq!(again, "There is no such ban.\nexit 1");
    assert_eq!(outcome(&daemon, "u1"), "allowed");

    let added = cli(&daemon, &["flags", "add", "review", "--user", "u1"]);
    assert_eq!(added, "user u1  review  until it is removed  by operator\nexit 0");
    assert!(cli(&daemon, &["flags", "list"]).ends_with("1 flag\nexit 0"));
    let one = ["flags", "list", "--count", "1"];
    assert!(cli(&daemon, &one).ends_with("\n1 flag\nexit 0"), "there are no more");
    cli(&daemon, &["flags", "add", "review", "--user", "u2"]);
    assert!(cli(&daemon, &one).ends_with("\n1 flag, and there are more\nexit 0"));
    assert_eq!(outcome(&daemon, "u1"), "allowed", "a flag refuses nothing");
    let gone = cli(&daemon, &["flags", "remove", "--user", "u1", "--flag", "review"]);
    assert_eq!(gone, "removed 1 flag\nexit 0");
    let wrong = cli(&daemon, &["bans", "add", "--for", "1h"]);
    assert!(wrong.contains("say whom") && wrong.ends_with("exit 1"), "{wrong}");
    let wrong = cli(&daemon, &["bans", "add", "--user", "u1", "--for", "soon"]);
    assert!(wrong.contains("for") && !wrong.ends_with("exit 0"), "{wrong}");
}

#[test]
fn bans_outlive_a_restart_with_a_state_directory() {
    let state = tempfile::tempdir().unwrap();
    let start = || {
        let state = state.path().to_str().unwrap();
        Daemon::with_policy_and(POLICY, None, &["--state-dir", state])
    };
    let mut daemon = start();
    ban(&daemon, "u1");
    let failure = json!({ "event": "auth_failure", "user": "u2" });
    for _ in 0..5 {
        report(&daemon, &failure);
    }
    assert_eq!(outcome(&daemon, "u2"), "banned");
    daemon.stop();
    let daemon = start();
    assert_eq!(
        (outcome(&daemon, "u1"), outcome(&daemon, "u2")),
        (json!("banned"), json!("banned"))
    );
    assert_eq!(outcome(&daemon, "u3"), "allowed");
    daemon.wait_for_log("state_loaded");
}

#[test]
fn bans_that_a_lost_store_was_not_told_outlive_a_restart_with_a_state_directory() {
    let (state, redis) = (tempfile::tempdir().unwrap(), Server::start().unwrap());
    redis.kill().unwrap();
    let url = redis.url();
    let start = || {
        let state = state.path().to_str().unwrap();
        Daemon::with_policy_and(POLICY, None, &["--state-dir", state, "--store", &url])
    };
    let mut daemon = start();
    ban(&daemon, "u1");
    daemon.stop();
    let daemon = start();
    assert_eq!(outcome(&daemon, "u1"), "banned");
}

fn node(policy: &Path, redis: &Server) -> Daemon {
    let mut command = Daemon::command();
    command.arg(policy).args(["--store", &redis.url(), "--store-timeout", "2s", "--threads", "2"]);
    command.args(["--notify-allow-private", "127.0.0.0/8"]);
    Daemon::start(&mut command)
}

fn nodes(count: usize, redis: &Server) -> (tempfile::TempDir, Vec<Daemon>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    std::fs::write(&path, POLICY).unwrap();
    let daemons = (0..count).map(|_| node(&path, redis)).collect();
    (folder, daemons)
}

#[test]
fn a_ban_on_one_node_holds_on_all_and_outlives_them() {
    let redis = Server::start().unwrap();
    let (folder, daemons) = nodes(2, &redis);
    ban(&daemons[0], "u1");
    eventually("the other node to know", || outcome(&daemons[1], "u1") == "banned");
    drop(daemons);
    let daemon = node(&folder.path().join("policy.yaml"), &redis);
    assert_eq!(outcome(&daemon, "u1"), "banned", "it was told at its start");
    let other = node(&folder.path().join("policy.yaml"), &redis);
    assert_eq!(cli(&other, &["bans", "remove", "--user", "u1"]), "removed 1 ban\nexit 0");
    eventually("the first node to know", || outcome(&daemon, "u1") == "allowed");
}

#[test]
fn a_ban_made_while_the_store_is_lost_is_shared_when_it_is_back() {
    let redis = Server::start().unwrap();
    let (_folder, daemons) = nodes(2, &redis);
    ban(&daemons[0], "before");
    eventually("the other node to know", || outcome(&daemons[1], "before") == "banned");
    redis.kill().unwrap();
    ban(&daemons[0], "meanwhile");
    assert_eq!(outcome(&daemons[1], "before"), "banned", "known bans stay");
    redis.restart().unwrap();
    eventually("the other node to know", || outcome(&daemons[1], "meanwhile") == "banned");
    assert_eq!(outcome(&daemons[1], "before"), "banned");
}

#[test]
fn a_ban_of_a_node_that_started_without_the_store_reaches_all_nodes_later() {
    let redis = Server::start().unwrap();
    redis.kill().unwrap();
    let (folder, daemons) = nodes(1, &redis);
    ban(&daemons[0], "u1");
    assert_eq!(outcome(&daemons[0], "u1"), "banned");
    redis.restart().unwrap();
    let other = node(&folder.path().join("policy.yaml"), &redis);
    eventually("the other node to know", || outcome(&other, "u1") == "banned");
    ban(&daemons[0], "u2");
    eventually("the other node to know", || outcome(&other, "u2") == "banned");
    assert_eq!(outcome(&daemons[0], "u1"), "banned");
}

#[test]
fn a_status_that_a_lease_is_settled_with_is_an_event_on_any_node() {
    let redis = Server::start().unwrap();
    let (_folder, daemons) = nodes(2, &redis);
    let alone = Daemon::with_policy(POLICY, None);
    for (checks, settles) in [(&daemons[0], &daemons[1]), (&alone, &alone)] {
        let settle = || {
            let check = json!({ "operation": "login", "user": "u1", "reserve": true });
            let lease = checks.check(&check).json()["lease"].clone();
            let body = json!({ "lease": lease, "status": 401 }).to_string();
            let settled = settles.api().post("/v1/settle", &body).json();
            assert_eq!(settled["settled"], true, "{settled}");
            settled
        };
        for _ in 0..4 {
            let settled = settle();
            // What a report says, a settlement says too.
            for (member, expected) in
                [("banned", json!(false)), ("challenged", json!(false)), ("flags", json!([]))]
            {
                assert_eq!(settled[member], expected, "{settled}");
            }
        }
        assert_eq!(settle()["banned"], true);
        assert_eq!(outcome(settles, "u1"), "banned");
    }
}

#[test]
fn many_reports_on_several_nodes_at_once_make_one_ban_one_flag_and_one_notice() {
    let (redis, webhook) = (Server::start().unwrap(), Upstream::start());
    let policy = POLICY.replace("5: { ban: 1h }", "5: { ban: 1h, notify: security }")
        + &format!("notify: {{ security: {{ webhook: '{}/hook' }} }}\n", webhook.url());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    std::fs::write(&path, policy).unwrap();
    let daemons: Vec<Daemon> = (0..3).map(|_| node(&path, &redis)).collect();
    let failure = json!({ "event": "auth_failure", "user": "u1" });
    thread::scope(|scope| {
        for client in 0..6 {
            let (daemon, failure) = (&daemons[client % 3], &failure);
            scope.spawn(move || (0..5).for_each(|_| drop(report(daemon, failure))));
        }
    });
    for daemon in &daemons {
        eventually("every node to know", || outcome(daemon, "u1") == "banned");
        assert_eq!(bans(daemon, "").len(), 1);
    }
    let sum = |count: &dyn Fn(&Daemon) -> u64| daemons.iter().map(count).sum::<u64>();
    assert_eq!(sum(&|daemon| metric(daemon, "tidegate_bans_total{penalty=\"offender\"}")), 1);
    let lines = |text: &'static str| sum(&move |daemon| daemon.log().matches(text).count() as u64);
    eventually("the flag to be logged", || lines("flag_set") > 0);
    assert_eq!((lines("\"ban_set\""), lines("\"flag_set\"")), (1, 1));
    eventually("the notice to be delivered", || lines("\"notified\"") > 0);
    assert_eq!((webhook.count(), lines("\"notified\"")), (1, 1));
}

#[test]
fn a_step_that_a_reload_puts_below_the_count_is_taken_late_and_once_on_all_nodes() {
    let (redis, webhook) = (Server::start().unwrap(), Upstream::start());
    let notify = format!("notify: {{ security: {{ webhook: '{}/hook' }} }}\n", webhook.url());
    let policy = |step: &str| POLICY.replace("5: { ban: 1h }", step) + &notify;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    std::fs::write(&path, policy("50: { ban: 1h, notify: security }")).unwrap();
    let daemons = [node(&path, &redis), node(&path, &redis)];
    let failure = json!({ "event": "auth_failure", "user": "u1" });
    let fail = |daemon: &Daemon| report(daemon, &failure)["banned"] == true;
    for daemon in daemons.iter().cycle().take(6) {
        assert!(!fail(daemon));
    }
    std::fs::write(&path, policy("3: { ban: 1h, notify: security }")).unwrap();
    for daemon in &daemons {
        eventually("the reload", || daemon.log().contains("\"reloaded\""));
    }
    eventually("the step to be taken", || daemons.iter().any(fail));
    for daemon in &daemons {
        eventually("every node to know", || fail(daemon));
    }
    let sum = |count: &dyn Fn(&Daemon) -> u64| daemons.iter().map(count).sum::<u64>();
    assert_eq!(sum(&|daemon| metric(daemon, "tidegate_bans_total{penalty=\"offender\"}")), 1);
    eventually("the notice to be delivered", || webhook.count() > 0);
    assert_eq!(webhook.count(), 1);
}
