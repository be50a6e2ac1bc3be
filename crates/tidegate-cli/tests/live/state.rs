//! A daemon that is killed, and the state that its next start loads.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};

use crate::support::{Client, Daemon, eventually, make_fifo};

const MANY: u64 = 1_000_000_000;
const POLICY: &str = "
tidegate: 1
name: live
limits:
  total:  { by: user, total: 1_000_000_000 }
  quota:  { by: user, quota: 1_000_000_000/month }
  window: { by: user, fixed_window: 1_000_000_000/day }
  bucket: { by: user, token_bucket: 1000000/s burst 1000000 }
  exact:  { by: user, sliding_window: 10000/s, exceed: warn }
";
/// Those of them whose counts only rise.
const LIMITS: [&str; 3] = ["total", "quota", "window"];
/// How many users each client is.
const USERS: u64 = 40;

fn start(state: &Path) -> Daemon {
    Daemon::with_policy_and(POLICY, None, &["--state-dir", state.to_str().unwrap()])
}

fn kill(mut daemon: Daemon) {
    daemon.signal("KILL");
    assert!(!daemon.wait().success());
}

/// Waits until all earlier answers are saved. The save that is complete at the beginning, and the one
/// under way, may be older than the last answer; the save after them is not.
fn saved(daemon: &Daemon) {
    let saved_at = || daemon.status()["state_dir"]["saved_at"].clone();
    for _ in 0..2 {
        let before = saved_at();
        eventually("changes to be saved", || saved_at() != before);
    }
}

fn user(client: usize, index: u64) -> String {
    format!("client {client}, user {index}")
}

/// A client that spends without pause until the daemon is gone, in turn as each of its users.
fn spending(api: Client, client: usize, answered: &Arc<AtomicU64>) -> JoinHandle<()> {
    let answered = Arc::clone(answered);
    thread::spawn(move || {
        let mut connection = api.over(TcpStream::connect(api.address).unwrap());
        for index in (0..USERS).cycle() {
            let check = json!({ "user": user(client, index) }).to_string();
            connection.request("POST", "/v1/check", &[], Some(&check));
            let Some(answer) = connection.try_answer() else { return };
            assert_eq!(answer.json()["allowed"], true, "{}", answer.text());
            answered.fetch_add(1, Ordering::SeqCst);
        }
    })
}

/// What a limit has counted for a user.
fn used(daemon: &Daemon, user: &str, limit: &str) -> u64 {
    let answer = daemon.check(&json!({ "user": user, "cost": 0 })).json();
    let limits = answer["limits"].as_array().unwrap();
    let found =
        limits.iter().find(|one| one["name"] == limit).unwrap_or_else(|| panic!("{answer}"));
    MANY - found["remaining"].as_u64().unwrap()
}

fn used_by_all(daemon: &Daemon, client: usize, limit: &str) -> u64 {
    (0..USERS).map(|index| used(daemon, &user(client, index), limit)).sum()
}

#[test]
fn a_kill_under_load_loses_no_more_than_what_came_after_the_last_save() {
    const CLIENTS: usize = 3;
    let state = tempfile::tempdir().unwrap();
    let mut daemon = start(state.path());
    // Limits are saved one after the other, so their last saved requests may differ.
    let mut known = [[0; LIMITS.len()]; CLIENTS];
    for round in 0..3 {
        let answered: [Arc<AtomicU64>; CLIENTS] = Default::default();
        let clients: Vec<JoinHandle<()>> =
            (0..CLIENTS).map(|client| spending(daemon.api(), client, &answered[client])).collect();
        let count = |client: usize| answered[client].load(Ordering::SeqCst);
        eventually("every user to have spent", || (0..CLIENTS).all(|one| count(one) > USERS));
        let before: [u64; CLIENTS] = std::array::from_fn(count);
        saved(&daemon);
        kill(daemon);
        clients.into_iter().for_each(|client| client.join().unwrap());
        daemon = start(state.path());
        for client in 0..CLIENTS {
            for (limit, known) in LIMITS.iter().zip(&mut known[client]) {
                let (least, most) = (*known + before[client], *known + count(client));
                *known = used_by_all(&daemon, client, limit);
                // One request may have been decided and not answered.
                assert!((least..=most + 1).contains(known), "{round}: {least} {known} {most}");
            }
        }
    }
}

fn ban(daemon: &Daemon, user: &str) -> Value {
    let order = json!({ "key": { "user": user }, "for": "1h", "reason": "for this test" });
    daemon.admin().post("/admin/v1/bans", &order.to_string()).json()["id"].clone()
}

fn outcome(daemon: &Daemon, user: &str) -> Value {
    daemon.check(&json!({ "user": user })).json()["outcome"].clone()
}

#[test]
fn bans_and_lifted_bans_survive_a_kill() {
    let state = tempfile::tempdir().unwrap();
    let daemon = start(state.path());
    let (lifted, _) = (ban(&daemon, "u1"), ban(&daemon, "u2"));
    saved(&daemon);
    kill(daemon);
    let daemon = start(state.path());
    assert_eq!(
        (outcome(&daemon, "u1"), outcome(&daemon, "u2")),
        (json!("banned"), json!("banned"))
    );
    let target = format!("/admin/v1/bans?id={}", lifted.as_str().unwrap());
    assert_eq!(daemon.admin().send("DELETE", &target, &[], None).status, 200);
    saved(&daemon);
    kill(daemon);
    let daemon = start(state.path());
    assert_eq!(
        (outcome(&daemon, "u1"), outcome(&daemon, "u2")),
        (json!("allowed"), json!("banned"))
    );
}

/// What a daemon says that does not start.
fn refusal(state: &Path) -> String {
    let policy = tempfile::NamedTempFile::new().unwrap();
    fs::write(&policy, POLICY).unwrap();
    let mut command = Daemon::command();
    let ended = command.arg(policy.path()).arg("--state-dir").arg(state).output().unwrap();
    assert!(!ended.status.success());
    String::from_utf8_lossy(&ended.stderr).into_owned()
}

#[test]
fn a_deleted_log_with_bans_refuses_the_start() {
    let state = tempfile::tempdir().unwrap();
    let daemon = start(state.path());
    for user in 1..=6 {
        ban(&daemon, &format!("u{user}"));
    }
    saved(&daemon);
    kill(daemon);
    let log = state.path().join("marks.log.0");
    let whole = fs::read(&log).unwrap();
    fs::remove_file(&log).unwrap();
    let said = refusal(state.path());
    assert!(said.contains("marks.log.0: it is not there"), "{said}");
    assert!(said.contains("put it back, or move marks and marks.* away"), "{said}");
    fs::write(&log, whole).unwrap();
    assert_eq!(outcome(&start(state.path()), "u6"), "banned");
}

#[test]
fn a_directory_that_others_could_write_is_mended_and_a_pipe_in_it_is_refused_at_once() {
    let state = tempfile::tempdir().unwrap();
    fs::set_permissions(state.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let mut daemon = start(state.path());
    daemon.wait_for_log("state_mended");
    daemon.stop();
    let mode = fs::metadata(state.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
    fs::remove_file(state.path().join("marks")).unwrap();
    make_fifo(&state.path().join("marks"));
    let said = refusal(state.path());
    assert!(said.contains("marks: it cannot be read: it is a pipe, expected a file"), "{said}");
}

#[test]
fn the_torn_end_of_a_log_is_cut_off_and_a_damaged_one_refuses_the_start() {
    let state = tempfile::tempdir().unwrap();
    let daemon = start(state.path());
    for spent in 1..=3 {
        daemon.check(&json!({ "user": "u1" }));
        saved(&daemon);
        assert_eq!(used(&daemon, "u1", "total"), spent);
    }
    kill(daemon);
    let path = state.path().join("counters.log.0");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let daemon = start(state.path());
    daemon.wait_for_log("state_cut");
    assert_eq!(used(&daemon, "u1", "total"), 2);
    kill(daemon);
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    fs::write(&path, damaged).unwrap();
    let said = refusal(state.path());
    assert!(said.contains("counters.log.0: it is damaged"), "{said}");
    assert!(said.contains("move counters and counters.* away"), "{said}");
    let away = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(state.path()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.starts_with("counters") {
            fs::rename(state.path().join(&name), away.path().join(&name)).unwrap();
        }
    }
    assert_eq!(used(&start(state.path()), "u1", "total"), 0);
}

#[test]
fn a_disk_that_fails_is_shown_and_decisions_go_on_until_all_is_saved_again() {
    let state = tempfile::tempdir().unwrap();
    let daemon = start(state.path());
    let metric = |daemon: &Daemon| daemon.admin().get("/metrics").text();
    saved(&daemon);
    assert_eq!(daemon.status()["state_dir"]["state"], "saving");
    assert!(metric(&daemon).contains("\ntidegate_state_failing 0\n"));
    // A folder in place of new files; permissions would not stop root.
    let obstacles = ["counters.tmp", "counters.log.tmp"].map(|name| state.path().join(name));
    obstacles.iter().for_each(|path| fs::create_dir(path).unwrap());
    assert_eq!(outcome(&daemon, "u1"), "allowed");
    eventually("the status to tell", || daemon.status()["state_dir"]["state"] == "failing");
    let failure = daemon.status()["state_dir"]["failure"].to_string();
    assert!(failure.contains("counters: "), "{failure}");
    assert!(metric(&daemon).contains("\ntidegate_state_failing 1\n"));
    daemon.wait_for_log("state_failing");
    assert_eq!(outcome(&daemon, "u1"), "allowed");
    obstacles.iter().for_each(|path| fs::remove_dir(path).unwrap());
    daemon.wait_for_log("state_recovered");
    assert_eq!(daemon.status()["state_dir"]["state"], "saving");
    saved(&daemon);
    kill(daemon);
    assert_eq!(used(&start(state.path()), "u1", "total"), 2);
}
