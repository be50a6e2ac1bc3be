//! Starting and stopping.

use std::io::Write as _;

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
fn the_gateway_forwards_what_passes_and_nothing_else() {
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
fn a_policy_can_come_from_a_pipe() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(POLICY.as_bytes()).unwrap();
    drop(writer);
    let daemon = Daemon::start(Daemon::command().arg("/dev/stdin").stdin(reader));
    assert_eq!(daemon.check(&json!({ "user": "u" })).json()["allowed"], true);
}
