//! Starting and stopping.

use std::io::Write as _;
use std::process::Command;

use serde_json::json;

use crate::support::{Daemon, Upstream};

const POLICY: &str = "
tidegate: 1
name: live
limits:
  per-client: { by: client, total: 2 }
";

#[test]
fn the_demo_starts_without_a_policy_and_limits() {
    let daemon = Daemon::start(Daemon::command().args(["--gateway", "127.0.0.1:0"]));
    assert_eq!(daemon.gateway().get("/strict").status, 200);
    let refused = daemon.gateway().get("/strict");
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("10")));
}

#[test]
fn the_gateway_forwards_admitted_requests_only() {
    let upstream = Upstream::start();
    let daemon = Daemon::with_policy(POLICY, Some(&upstream));
    for _ in 0..2 {
        assert_eq!(daemon.gateway().get("/a?b=c").status, 200);
        assert_eq!(upstream.last().line, "GET /a?b=c HTTP/1.1");
    }
    assert_eq!(daemon.gateway().get("/a").status, 429);
    assert_eq!(upstream.count(), 2);
}

#[test]
fn counters_outlive_a_clean_stop_in_a_state_directory() {
    let state = tempfile::tempdir().unwrap();
    let arguments = ["--state-dir", state.path().to_str().unwrap()];
    let check = json!({ "user": "u" });
    let mut daemon = Daemon::with_policy_and(POLICY, None, &arguments);
    assert_eq!(daemon.check(&check).json()["allowed"], true);
    assert_eq!(daemon.check(&check).json()["allowed"], true);
    daemon.stop();
    let daemon = Daemon::with_policy_and(POLICY, None, &arguments);
    assert_eq!(daemon.check(&check).json()["allowed"], false);
}

#[test]
fn addresses_are_taken_as_people_write_them_and_profiles_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    let profile = |total: u32| format!("{{ limits: {{ per-client: {{ total: {total} }} }} }}");
    let profiles = format!("profiles: {{ three: {}, one: {} }}\n", profile(3), profile(1));
    std::fs::write(&path, format!("{POLICY}{profiles}")).unwrap();
    let upstream = Upstream::start();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("serve").arg(&path).args(["--gateway", ":0", "--upstream", &upstream.url()]);
    command.args(["--api", "localhost:0", "--admin", "localhost:0", "--profile", "three,one"]);
    let daemon = Daemon::start(&mut command);
    assert!(daemon.address("gateway").ip().is_unspecified());
    assert!(daemon.address("api").ip().is_loopback() && daemon.address("admin").ip().is_loopback());
    let statuses = [(); 2].map(|()| daemon.gateway().get("/").status);
    assert_eq!(statuses, [200, 429]);
}

/// The command with this policy on its standard input.
fn piped(policy: &str) -> Command {
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(policy.as_bytes()).unwrap();
    let mut command = Daemon::command();
    command.arg("/dev/stdin").stdin(reader);
    command
}

#[test]
fn a_policy_from_a_pipe_stays_at_a_reload_and_that_is_told() {
    let daemon = Daemon::start(&mut piped(POLICY));
    let check = || daemon.check(&json!({ "user": "u" })).json()["allowed"] == true;
    assert!(check());
    let status = daemon.status();
    assert!(status["warnings"].to_string().contains("/dev/stdin is a pipe"), "{status}");
    daemon.signal("HUP");
    daemon.wait_for_log("nothing can be read anew; /dev/stdin is a pipe and stays as it was read");
    assert!(check());
    assert!(!check(), "counted on");
    assert_eq!(daemon.status()["reload"]["error"], serde_json::Value::Null);
}

#[test]
fn files_beside_a_pipe_are_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.yaml");
    let other = |version: u32| {
        let text = format!("{{ tidegate: 1, name: other, version: {version} }}");
        std::fs::write(&path, text).unwrap();
    };
    other(1);
    let daemon = Daemon::start(piped(POLICY).arg(&path));
    other(2);
    daemon.wait_for_log("in force; /dev/stdin is a pipe and stays as it was read");
    let policies = daemon.status()["policies"].clone();
    assert_eq!(policies[1]["version"], "2");
    assert_eq!(policies[0]["file"], "/dev/stdin");
    assert_eq!(daemon.check(&json!({ "user": "u" })).json()["allowed"], true);
}
