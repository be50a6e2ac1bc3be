//! Logins that cannot be read, at the gateway: refused, or counted together on all nodes.

use std::path::Path;

use serde_json::json;
use tidegate_testkit::servers::Server;

use crate::support::{Daemon, Reply, Upstream, eventually};

const ADA: &str = r#"{"email":"ada@example.com"}"#;
/// The service takes the first of a list.
const LIST: &str = r#"{"email":["ada@example.com"]}"#;

fn write_policy(folder: &Path, missing: &str) {
    let text = format!(
        "
tidegate: 1
name: shop
identity: {{ attributes: {{ email: {{ body: /email }} }} }}
operations: {{ login: POST /login, note: POST /notes }}
events: {{ failure: {{ when: login, status: 401 }} }}
penalties:
  guessing:
    event: failure
    by: email
    within: 1h
    ladder: {{ 3: {{ ban: 1h }} }}
    {missing}
"
    );
    std::fs::write(folder.join("policy.yaml"), text).unwrap();
}

fn start(folder: &Path, service: &Upstream, arguments: &[&str]) -> Daemon {
    let mut command = Daemon::command();
    command.arg(folder.join("policy.yaml")).args(["--gateway", "127.0.0.1:0"]);
    command.args(["--upstream", &service.url()]).args(arguments);
    Daemon::start(&mut command)
}

fn post(daemon: &Daemon, path: &str, body: &str) -> u16 {
    let headers = [("Content-Type", "application/json")];
    daemon.gateway().send("POST", path, &headers, Some(body)).status
}

fn service() -> Upstream {
    Upstream::replying(|request| {
        let status = if request.line.starts_with("POST /login") { 401 } else { 200 };
        Reply::Answer(status, "service\n".to_owned())
    })
}

#[test]
fn a_login_that_cannot_be_read_never_reaches_the_service() {
    let (folder, service) = (tempfile::tempdir().unwrap(), service());
    write_policy(folder.path(), "");
    let daemon = start(folder.path(), &service, &[]);
    for _ in 0..20 {
        assert_eq!(post(&daemon, "/login", LIST), 400);
    }
    let headers = [("Content-Type", "application/json")];
    let refused = daemon.gateway().send("POST", "/login", &headers, Some(LIST));
    assert_eq!(refused.json()["field"], "attributes.email", "{}", refused.text());
    assert_eq!(service.count(), 0);
    assert_eq!(post(&daemon, "/notes", LIST), 200);
    assert_eq!(post(&daemon, "/login", ADA), 401);
    let body = json!({ "method": "POST", "path": "/login", "body": LIST });
    assert_eq!(daemon.check(&body).status, 400, "the API says so too");
}

#[test]
fn a_ban_of_logins_that_cannot_be_read_holds_on_every_node_and_over_a_restart() {
    let (folder, service, redis) =
        (tempfile::tempdir().unwrap(), service(), Server::start().unwrap());
    write_policy(folder.path(), "missing: share");
    let store = ["--store", &redis.url(), "--store-timeout", "2s"];
    let [first, second] = [0, 1].map(|_| start(folder.path(), &service, &store));
    let statuses = [&first, &second, &first].map(|node| post(node, "/login", LIST));
    assert_eq!(statuses, [401; 3], "counted together");
    for node in [&first, &second] {
        eventually("the ban on each node", || post(node, "/login", LIST) == 403);
        assert_eq!(post(node, "/login", ADA), 401, "others are not locked out");
        assert_eq!(post(node, "/login", "{}"), 401);
        assert_eq!(post(node, "/notes", LIST), 200);
    }
    drop(first);
    let restarted = start(folder.path(), &service, &store);
    eventually("the ban after a restart", || post(&restarted, "/login", LIST) == 403);
    let bans = restarted.admin().get("/admin/v1/bans").json();
    assert_eq!(bans["bans"][0]["key"], json!({ "unreadable email": "guessing" }));
    let id = bans["bans"][0]["id"].as_str().unwrap().to_owned();
    let removed = restarted.admin().send("DELETE", &format!("/admin/v1/bans?id={id}"), &[], None);
    assert_eq!(removed.json()["removed"], 1);
    eventually("no ban on the other node", || post(&second, "/login", LIST) == 401);
}

#[test]
fn a_ban_of_logins_that_cannot_be_read_is_kept_in_the_state_directory() {
    let (folder, service) = (tempfile::tempdir().unwrap(), service());
    write_policy(folder.path(), "missing: share");
    let state = folder.path().join("state");
    let arguments = ["--state-dir", state.to_str().unwrap()];
    let mut daemon = start(folder.path(), &service, &arguments);
    assert_eq!([0; 4].map(|_| post(&daemon, "/login", LIST)), [401, 401, 401, 403]);
    daemon.stop();
    let daemon = start(folder.path(), &service, &arguments);
    assert_eq!(post(&daemon, "/login", LIST), 403);
    assert_eq!(post(&daemon, "/login", ADA), 401);
}
