//! The keys of the store, for operators: on the memory of one node, and on a Redis that two share.

use std::process::Command;

use insta::assert_snapshot;
use serde_json::{Value, json};
use tidegate_testkit::servers::{Cluster, Reply, Server};

use crate::support::{Answer, Daemon, eventually};

const POLICY: &str = "
tidegate: 1
name: shop
identity: { default_tier: free }
operations: { buy: POST /orders }
limits:
  per-user:    { by: user, total: { free: 10, pro: 100 } }
  per-address: { by: ip, sliding_window: 5/h }
  buying:      { when: buy, by: user, quota: 1000/month, key: 'buy:{user:raw}' }
  everybody:   { by: global, token_bucket: 1000/s }
";

/// A daemon whose keys are called the same in every run.
fn daemon(arguments: &[&str]) -> Daemon {
    daemon_with(POLICY, arguments)
}

fn daemon_with(policy: &str, arguments: &[&str]) -> Daemon {
    let folder = tempfile::tempdir().unwrap();
    let (path, secret) = (folder.path().join("policy.yaml"), folder.path().join("secret"));
    std::fs::write(&path, policy).unwrap();
    std::fs::write(&secret, "000102030405060708090a0b0c0d0e0f").unwrap();
    let mut command = Daemon::command();
    command.arg(&path).arg("--hash-key").arg(&secret).args(["--store-timeout", "2s"]);
    let mut daemon = Daemon::start(command.args(arguments));
    daemon.folder = Some(folder);
    daemon
}

fn buy(daemon: &Daemon, user: &str, ip: &str) -> Value {
    let answer =
        daemon.check(&json!({ "method": "POST", "path": "/orders", "user": user, "ip": ip }));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn keys(daemon: &Daemon, query: &str) -> Value {
    let answer = daemon.admin().get(&format!("/admin/v1/keys?{query}"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn delete(daemon: &Daemon, query: &str) -> Answer {
    daemon.admin().send("DELETE", &format!("/admin/v1/keys?{query}"), &[], None)
}

/// The limits of all keys, over all pages.
fn limits(daemon: &Daemon, query: &str) -> Vec<String> {
    let (mut names, mut cursor) = (std::collections::BTreeMap::new(), String::new());
    loop {
        let page = keys(daemon, &format!("{query}{cursor}"));
        for key in page["keys"].as_array().unwrap() {
            let limit = key["limit"].as_str().unwrap_or("none").to_owned();
            names.insert(key["key"].as_str().unwrap().to_owned(), limit);
        }
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return names.into_values().collect(),
        }
    }
}

fn cli(daemon: &Daemon, arguments: &[&str]) -> String {
    let url = format!("http://{}", daemon.address("admin"));
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["admin", "keys"])
        .args(arguments)
        .env("TIDEGATE_ADMIN_URL", url)
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let stderr = text(output.stderr);
    let stderr = if stderr.is_empty() { stderr } else { format!("stderr:\n{stderr}") };
    format!("{}{stderr}exit {}", text(output.stdout), output.status.code().unwrap())
}

/// Asserts what holds on any store.
fn an_operator_finds_and_deletes(daemon: &Daemon) {
    for (user, ip) in [("somebody", "192.0.2.1"), ("somebody", "192.0.2.2"), ("u2", "192.0.2.2")] {
        buy(daemon, user, ip);
    }
    assert_eq!(limits(daemon, "limit=per-user"), ["per-user", "per-user"]);
    assert_eq!(limits(daemon, "limit=per-user&count=1"), ["per-user", "per-user"]);
    let one = keys(daemon, "user=somebody");
    assert_eq!(one["cursor"], Value::Null);
    let mut found: Vec<&str> =
        one["keys"].as_array().unwrap().iter().map(|key| key["limit"].as_str().unwrap()).collect();
    found.sort_unstable();
    assert_eq!(found, ["buying", "per-user"], "{one}");
    let spent = keys(daemon, "user=somebody&limit=per-user")["keys"][0].clone();
    assert_eq!((&spent["used"], &spent["capacity"]), (&json!(2), &json!(10)), "{spent}");
    assert_eq!((&spent["algorithm"], &spent["expires_ms"]), (&json!("total"), &Value::Null));
    assert_eq!(spent["meaning"], "2 of 10 used, until it is given back or deleted");
    let name = spent["key"].as_str().unwrap();
    assert_eq!(keys(daemon, &format!("key={name}"))["keys"][0], spent);

    let dry = delete(daemon, "user=somebody&dry_run=true").json();
    assert_eq!((&dry["deleted"], &dry["dry_run"]), (&json!(0), &json!(true)), "{dry}");
    assert_eq!(dry["keys"].as_array().unwrap().len(), 2);
    assert_eq!(delete(daemon, &format!("key={name}")).json()["deleted"], 1);
    assert_eq!(keys(daemon, &format!("key={name}"))["keys"], json!([]));
    assert_eq!(delete(daemon, &format!("key={name}")).json()["deleted"], 0);
    assert_eq!(
        buy(daemon, "somebody", "192.0.2.3")["limits"][0]["remaining"],
        9,
        "it starts afresh"
    );
    daemon.wait_for_log("keys_deleted");
    assert!(!daemon.log().contains("somebody"), "{}", daemon.log());

    assert_eq!(delete(daemon, "limit=per-address").json()["deleted"], 3);
    assert_eq!(limits(daemon, "limit=per-address"), Vec::<String>::new());
    assert_eq!(delete(daemon, "ip=192.0.2.2").json()["deleted"], 0);
}

#[test]
fn keys_of_the_memory_are_found_and_deleted() {
    an_operator_finds_and_deletes(&daemon(&[]));
}

#[test]
fn keys_of_a_shared_store_are_found_and_deleted() {
    let redis = Server::start().unwrap();
    let daemon = daemon(&["--store", &redis.url()]);
    an_operator_finds_and_deletes(&daemon);
    assert_eq!(keys(&daemon, "key=buy:u2")["keys"][0]["limit"], "buying", "by its template");
}

#[test]
fn a_key_deleted_on_one_node_is_deleted_for_all() {
    let redis = Server::start().unwrap();
    let nodes = [(); 2].map(|()| daemon(&["--store", &redis.url()]));
    for address in 0..10 {
        buy(&nodes[0], "u1", &format!("192.0.2.{address}"));
    }
    assert_eq!(buy(&nodes[1], "u1", "192.0.2.77")["allowed"], false);
    let deleted = delete(&nodes[0], "user=u1").json();
    assert_eq!(deleted["deleted"], 2, "{deleted}");
    eventually("the other node to hear of it", || {
        buy(&nodes[1], "u1", "192.0.2.78")["allowed"] == true
    });
}

#[test]
fn a_refusal_that_another_node_remembers_ends_with_its_key() {
    let redis = Server::start().unwrap();
    let nodes = [(); 2].map(|()| daemon(&["--store", &redis.url()]));
    for user in 0..5 {
        buy(&nodes[0], &format!("u{user}"), "192.0.2.1");
    }
    for user in 5..9 {
        let refused = buy(&nodes[1], &format!("u{user}"), "192.0.2.1");
        assert_eq!(refused["limit"], "per-address", "{refused}");
    }
    assert_eq!(delete(&nodes[0], "limit=per-address").json()["deleted"], 1);
    eventually("the other node to hear of it", || {
        buy(&nodes[1], "u9", "192.0.2.1")["allowed"] == true
    });
}

#[test]
fn a_thousand_keys_come_and_go_page_by_page() {
    let redis = Server::start().unwrap();
    for store in ["memory", &redis.url()] {
        let policy = "{tidegate: 1, name: p, limits: {l: {by: user, total: 5}}}";
        let daemon = daemon_with(policy, &["--store", store]);
        let checks: Vec<Value> =
            (0..1_000).map(|user| json!({ "user": format!("u{user}") })).collect();
        let batch = daemon.api().post("/v1/check/batch", &Value::Array(checks).to_string());
        assert_eq!(batch.status, 200);
        assert_eq!(limits(&daemon, "limit=l&count=70").len(), 1_000, "{store}");
        assert_eq!(limits(&daemon, "").len(), 1_000, "{store}");
        let told = cli(&daemon, &["delete", "--limit", "l"]);
        assert!(told.contains("say --yes") && told.ends_with("exit 1"), "{told}");
        let told = cli(&daemon, &["delete", "--limit", "l", "--yes"]);
        assert_eq!(told, "deleted 1000 keys\nexit 0");
        assert_eq!(limits(&daemon, "limit=l").len(), 0, "{store}");
    }
}

#[test]
fn an_unreadable_key_is_listed_and_deleted_and_a_foreign_key_is_left_alone() {
    let redis = Server::start().unwrap();
    let daemon = daemon(&["--store", &redis.url()]);
    buy(&daemon, "u1", "192.0.2.1");
    redis.command(&["SET", "tg:buy:u7", "nonsense"]).unwrap();
    redis.command(&["SET", "other:buy:u7", "nonsense"]).unwrap();
    let broken = keys(&daemon, "key=buy:u7")["keys"][0].clone();
    assert_eq!(broken["limit"], "buying");
    assert!(broken["meaning"].as_str().unwrap().starts_with("cannot be read: "), "{broken}");
    assert_eq!(delete(&daemon, "limit=buying").json()["deleted"], 2);
    assert_eq!(delete(&daemon, "key=@secret").json()["deleted"], 0);
    assert_eq!(delete(&daemon, "key=@nodes").json()["deleted"], 0);
    eventually("what is not a state to be there still", || {
        redis.command(&["EXISTS", "other:buy:u7", "tg:@nodes"]).unwrap() == Reply::Integer(2)
    });
}

#[test]
fn keys_of_a_cluster_are_found_on_all_its_servers() {
    let cluster = Cluster::start().unwrap();
    let seeds: Vec<String> = cluster.nodes().iter().map(|node| node.addr().to_string()).collect();
    let daemon = daemon(&["--store", &format!("redis+cluster://{}", seeds.join(","))]);
    an_operator_finds_and_deletes(&daemon);
    for user in 0..60 {
        buy(&daemon, &format!("u{user}"), &format!("198.51.100.{user}"));
    }
    let on = |node: usize| cluster.nodes()[node].command(&["DBSIZE"]).unwrap() != Reply::Integer(0);
    assert!((0..3).all(on), "the keys lie on all of them");
    let listed = limits(&daemon, "limit=per-address&count=10");
    assert_eq!(listed.len(), 60);
    let told = cli(&daemon, &["delete", "--limit", "per-address", "--yes"]);
    assert_eq!(told, "deleted 60 keys\nexit 0");
}

/// The documented permissions of a server.
#[test]
fn the_permissions_in_the_document_are_enough() {
    let redis = Server::start().unwrap();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/valkey-and-managed-redis.md");
    let document = std::fs::read_to_string(path).unwrap();
    let line = document.lines().find(|line| line.starts_with("ACL SETUSER tidegate ")).unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    redis.command(&words).unwrap();
    let store = redis.url().replace("redis://", "redis://tidegate:PASSWORD@");
    let nodes = [(); 2].map(|()| daemon(&["--store", &store]));
    an_operator_finds_and_deletes(&nodes[0]);
    eventually("both nodes to be seen", || nodes[0].status()["store"]["nodes"] == 2);
    let denied = redis.command(&["ACL", "LOG"]).unwrap();
    what_is_not_allowed_admits_nobody_unseen(&redis, &nodes[0]);
    // The server may refuse the client's name, and not every server knows the command.
    let named = |entry: &Reply| {
        let at = entry.items().iter().position(|field| field.text() == "object").unwrap();
        entry.items()[at + 1].text().to_owned()
    };
    let denied: Vec<String> = denied.items().iter().map(named).collect();
    assert!(denied.iter().all(|command| command.starts_with("client")), "{denied:?}");
}

/// A server that does not let its keys be read or written is lost, not empty.
fn what_is_not_allowed_admits_nobody_unseen(redis: &Server, node: &Daemon) {
    for command in ["mget", "exists", "set", "psetex"] {
        redis.command(&["ACL", "SETUSER", "tidegate", &format!("-{command}")]).unwrap();
        let unseen = (0..20).filter(|address| {
            let answer = buy(node, command, &format!("203.0.113.{address}"));
            answer["allowed"] == true && answer["degraded"] == false
        });
        let unseen = unseen.count();
        assert!(unseen <= 10, "without {command}, {unseen} passed a limit of 10");
        redis.command(&["ACL", "SETUSER", "tidegate", &format!("+{command}")]).unwrap();
        eventually("the store to be found again", || {
            buy(node, "u8", "203.0.113.99")["degraded"] == false
        });
    }
}

#[test]
fn a_store_that_is_lost_is_told_as_such() {
    let redis = Server::start().unwrap();
    let daemon = daemon(&["--store", &redis.url()]);
    redis.kill().unwrap();
    eventually("a lost store", || {
        daemon.admin().get("/admin/v1/keys?user=u1").status == 503
            && delete(&daemon, "limit=per-user").status == 503
    });
}

#[test]
fn meaningless_calls_are_refused_with_a_reason() {
    let daemon = daemon(&[]);
    for (query, field) in [
        ("usr=u1", "usr"),
        ("limit=per-usr", "limit"),
        ("policy=none", "policy"),
        ("limit=per-user&cursor=x", "cursor"),
        ("user=u1&operation=sell", "operation"),
        ("user=u1&limit=per-address", "limit"),
    ] {
        let answer = daemon.admin().get(&format!("/admin/v1/keys?{query}"));
        assert_eq!(answer.status, 400, "{query}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        assert_eq!(answer.json()["field"], field, "{query}: {}", answer.text());
    }
    assert_eq!(delete(&daemon, "").status, 400);
    let posted = daemon.admin().post("/admin/v1/keys", "{}");
    assert_eq!((posted.status, posted.header("allow")), (405, Some("GET, HEAD, DELETE")));
}

#[test]
fn a_viewer_looks_and_an_operator_deletes() {
    // The tokens are called as their roles.
    let tokens = "viewer a-viewer d35ca5051b82ffc326a3b0b6574a9a3161dee16b9478a199ee39cd803ce5b799
operator an-operator 06e55b633481f7bb072957eabcf110c972e86691c3cfedabe088024bffe42f23
";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    std::fs::write(&file, tokens).unwrap();
    let daemon = daemon(&["--tokens", file.to_str().unwrap()]);
    let status = |method: &str, token: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("Authorization", bearer.as_str())];
        daemon.admin().send(method, "/admin/v1/keys?user=u1", &headers, None).status
    };
    assert_eq!((status("GET", "viewer"), status("DELETE", "viewer")), (200, 403));
    assert_eq!((status("GET", "operator"), status("DELETE", "operator")), (200, 200));
    let told = cli(&daemon, &["list", "--token", "operator"]);
    assert_eq!(told, "0 keys\nexit 0");
    assert!(cli(&daemon, &["list"]).contains("expected a token"));
}

#[test]
fn the_command_lists_shows_and_deletes_keys() {
    let daemon = daemon(&[]);
    for (user, ip) in [("u1", "192.0.2.1"), ("u2", "192.0.2.1")] {
        daemon.check(&json!({ "user": user, "ip": ip }));
    }
    let told = [
        &["list", "--limit", "per-user"][..],
        &["list", "--ip", "192.0.2.1"],
        &["list", "--limit", "per-user", "--count", "1"],
        &["show", "--user", "u1"],
        &["show", "--user", "u1", "--limit", "per-user", "--json"],
        &["show", "--user", "nobody"],
        &["show"],
        &["show", "a", "--user", "u1"],
        &["delete", "--limit", "per-user", "--dry-run"],
        &["delete", "--limit", "per-user"],
        &["delete", "--user", "u1"],
        &["delete", "--user", "u1", "--json"],
        &["delete", "--limit", "per-usr"],
        &["list", "--url", "https://127.0.0.1:1"],
        &["list", "--url", "http://127.0.0.1:1"],
    ]
    .map(|arguments| {
        format!("$ tidegate admin keys {}\n{}", arguments.join(" "), cli(&daemon, arguments))
    });
    assert_snapshot!(told.join("\n\n"));
}

const PENALTIES: &str = "
tidegate: 1
name: shop
events: { failure: {} }
penalties:
  guessing: { event: failure, by: user, within: 1h, ladder: { 3: { delay: 1s } }, key: 'fail:{user:raw}' }
  hosts:    { event: failure, by: ip, within: 1h, ladder: { 3: { delay: 1s } } }
";

#[test]
fn counts_of_penalties_are_found_and_deleted() {
    let redis = Server::start().unwrap();
    for store in ["memory".to_owned(), redis.url()] {
        let daemon = daemon_with(PENALTIES, &["--store", &store]);
        let report = |user: &str| {
            let body = json!({ "event": "failure", "user": user, "ip": "192.0.2.1" });
            let answer = daemon.api().post("/v1/report", &body.to_string());
            answer.json()["delay_ms"].as_u64().unwrap()
        };
        assert_eq!([report("u1"), report("u1"), report("u2")], [0, 0, 1_000], "by address");
        let of_user = keys(&daemon, "user=u1")["keys"].clone();
        assert_eq!((&of_user[0]["penalty"], &of_user[0]["used"]), (&json!("guessing"), &json!(2)));
        assert_eq!(of_user[0]["limit"], Value::Null);
        assert_eq!(keys(&daemon, "penalty=guessing")["keys"].as_array().unwrap().len(), 2);
        assert_eq!(keys(&daemon, "penalty=hosts&ip=192.0.2.1")["keys"][0]["used"], 3);
        if store != "memory" {
            assert_eq!(keys(&daemon, "key=fail:u1")["keys"][0]["penalty"], "guessing");
        }
        let listed = cli(&daemon, &["show", "--penalty", "guessing", "--user", "u1"]);
        assert!(listed.contains("penalty    guessing"), "{listed}");
        let name = of_user[0]["key"].as_str().unwrap();
        assert_eq!(delete(&daemon, &format!("key={name}")).json()["deleted"], 1);
        assert_eq!(delete(&daemon, "penalty=hosts").json()["deleted"], 1);
        assert_eq!([report("u1"), report("u1"), report("u1")], [0, 0, 1_000], "counted anew");
        for (query, field) in [("penalty=hostz", "penalty"), ("user=u1&penalty=hosts", "penalty")] {
            let answer = daemon.admin().get(&format!("/admin/v1/keys?{query}"));
            assert_eq!((answer.status, answer.json()["field"].clone()), (400, json!(field)));
        }
    }
}
