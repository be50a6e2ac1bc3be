//! Webhooks that are told of a ban, by the real binary.

use serde_json::json;

use crate::support::{Daemon, Upstream, eventually};

/// Three refusals ban a client and notify a webhook.
fn policy(url: &str, more: &str) -> String {
    format!(
        "
tidegate: 1
name: live
limits: {{ one: {{ by: user, total: 1 }} }}
penalties:
  persistent:
    event: limited
    by: user
    within: 1h
    ladder: {{ 3: {{ ban: 1h, notify: security }} }}
notify: {{ security: {{ webhook: \"{url}/hook\", secret_env: LIVE_SECRET{more} }} }}
"
    )
}

fn daemon(url: &str, arguments: &[&str]) -> Daemon {
    daemon_with(url, "", arguments)
}

fn daemon_with(url: &str, more: &str, arguments: &[&str]) -> Daemon {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    std::fs::write(&path, policy(url, more)).unwrap();
    let mut command = Daemon::command();
    command.arg(&path).args(arguments).env("LIVE_SECRET", "s3cret");
    let mut daemon = Daemon::start(&mut command);
    daemon.folder = Some(folder);
    daemon
}

fn outcomes(daemon: &Daemon) -> Vec<String> {
    let check = |_| daemon.check(&json!({ "user": "ada" })).json()["outcome"].to_string();
    (0..6).map(check).collect()
}

#[test]
fn one_ban_is_one_signed_message_without_identities() {
    let hook = Upstream::start();
    let mut daemon = daemon(&hook.url(), &["--notify-allow-private", "127.0.0.0/8"]);
    let banned =
        ["\"allowed\"", "\"limited\"", "\"limited\"", "\"banned\"", "\"banned\"", "\"banned\""];
    assert_eq!(outcomes(&daemon), banned);
    eventually("the message", || !hook.seen().is_empty());
    daemon.signal("TERM");
    daemon.wait();
    let seen = hook.seen();
    assert_eq!(seen.len(), 1, "{}", daemon.log());
    let body: serde_json::Value = serde_json::from_slice(&seen[0].body).unwrap();
    assert_eq!(body["penalty"], "persistent");
    assert_eq!(body["action"], "ban");
    assert_eq!(body["count"], 3);
    assert!(body["until"].is_string());
    assert_eq!(body["id"].as_str(), seen[0].header("tidegate-delivery"));
    assert!(seen[0].header("tidegate-signature").unwrap().starts_with("t="));
    let user = body["subject"]["user"].as_str().unwrap();
    assert!(user.len() == 16 && !body.to_string().contains("ada"), "{body}");
    assert!(daemon.log().contains("notified") && !daemon.log().contains("/hook"));
}

#[test]
fn a_name_that_leads_to_this_host_is_refused_without_leave() {
    let hook = Upstream::start();
    let url = hook.url().replace("127.0.0.1", "localhost");
    let daemon = daemon(&url, &["--log-identities"]);
    outcomes(&daemon);
    daemon.wait_for_log("notify_refused");
    assert!(hook.seen().is_empty());
    let page = daemon.admin().get("/metrics").text();
    assert!(page.contains("tidegate_notices_total{result=\"refused\"} 1\n"), "{page}");
}

#[test]
fn a_webhook_with_identities_and_a_body_of_its_own_is_told_so_and_signed() {
    let hook = Upstream::start();
    let more = r#", identities: true, body: { text: "{penalty}: {action} of {user}", events: "{count}", ip: "{ip}" }"#;
    let allowed = ["--notify-allow-private", "127.0.0.0/8", "--log", "json"];
    let mut daemon = daemon_with(&hook.url(), more, &allowed);
    let nasty = json!({ "user": "ada\", \"x\": \"" });
    (0..4).for_each(|_| _ = daemon.check(&nasty));
    eventually("the message", || !hook.seen().is_empty());
    daemon.signal("TERM");
    daemon.wait();
    let seen = hook.seen();
    let body: serde_json::Value = serde_json::from_slice(&seen[0].body).unwrap();
    let text = "persistent: ban of ada\", \"x\": \"";
    assert_eq!(body, json!({ "text": text, "events": 3, "ip": null }));
    assert!(seen[0].header("tidegate-signature").unwrap().starts_with("t="));
    assert_eq!(seen[0].header("tidegate-delivery").map(str::len), Some(32));
    assert!(!daemon.log().contains("ada"), "the log stays without identities");
}
