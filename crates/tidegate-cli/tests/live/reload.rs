//! Reloads of policies and certificates, and the counts that survive them.

use std::ffi::OsStr;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use serde_json::json;

use crate::support::{Client, Daemon, Upstream, eventually, make_fifo};

fn policy(total: u64) -> String {
    format!("{{ tidegate: 1, name: live, limits: {{ one: {{ by: user, total: {total} }} }} }}")
}

/// The limit of `u`, and what remains after this check.
fn check(daemon: &Daemon) -> (bool, u64, u64) {
    let answer = daemon.check(&json!({ "user": "u" })).json();
    let limit = &answer["limits"][0];
    let number = |name: &str| limit[name].as_u64().unwrap();
    (answer["allowed"] == true, number("limit"), number("remaining"))
}

fn errors(daemon: &Daemon) -> String {
    daemon.status().to_string()
}

#[test]
fn a_changed_file_and_a_signal_reload_and_counters_survive() {
    let daemon = Daemon::with_policy(&policy(3), None);
    assert_eq!(check(&daemon), (true, 3, 2));
    fs::write(daemon.policy_path(), policy(5)).unwrap();
    daemon.wait_for_log("reloaded");
    assert_eq!(check(&daemon), (true, 5, 3));
    // Replaced by renaming, as editors do.
    let next = daemon.policy_path().with_extension("new");
    fs::write(&next, policy(6)).unwrap();
    fs::rename(&next, daemon.policy_path()).unwrap();
    let reloads = |daemon: &Daemon| daemon.log().matches("reloaded").count();
    eventually("the second reload", || reloads(&daemon) >= 2);
    assert_eq!(check(&daemon), (true, 6, 3));
    let before = reloads(&daemon);
    daemon.signal("HUP");
    eventually("the third reload", || reloads(&daemon) > before);
    assert_eq!(check(&daemon), (true, 6, 2));
}

#[test]
fn an_invalid_policy_is_refused_and_logged_and_the_next_valid_one_is_taken() {
    let daemon = Daemon::with_policy(&policy(3), None);
    let broken = [
        "{ tidegate: 1, name: live, limits: { one: { by: user, totl: 3 } } }".to_owned(),
        "\0\u{1}".to_owned(),
        String::new(),
        "{ tidegate: 1, name: live, limits: { one: { by: user, total: \"${NOT_SET_ANYWHERE}\" } } }".to_owned(),
    ];
    for (index, text) in broken.iter().enumerate() {
        fs::write(daemon.policy_path(), text).unwrap();
        daemon.signal("HUP");
        let refused = || daemon.log().matches("reload was refused").count();
        eventually("the refusal", || refused() > index);
        assert_eq!(check(&daemon).1, 3);
        let line = errors(&daemon);
        assert!(line.contains("policy.yaml"), "{line}");
    }
    fs::remove_file(daemon.policy_path()).unwrap();
    daemon.signal("HUP");
    eventually("the missing file, told", || errors(&daemon).contains("No such file"));
    assert_eq!(check(&daemon).1, 3);
    fs::write(daemon.policy_path(), policy(9)).unwrap();
    eventually("the good one", || {
        daemon.check(&json!({ "user": "other" })).json()["limits"][0]["limit"] == 9
    });
    eventually("no error in the status", || !errors(&daemon).contains("No such file"));
    assert_eq!(check(&daemon).1, 9);
    let counted = |result: &str| {
        let page = daemon.admin().get("/metrics").text();
        let name = format!("tidegate_reloads_total{{result=\"{result}\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&name)?.parse::<u32>().ok()).unwrap()
    };
    eventually("both counted", || counted("refused") >= 5 && counted("taken") >= 1);
}

#[test]
fn a_policy_that_is_gone_or_becomes_a_pipe_is_told_and_the_old_one_stays() {
    let daemon = Daemon::with_policy(&policy(3), None);
    let error = || daemon.status()["reload"]["error"].to_string();
    for (is_pipe, told) in [(false, "No such file"), (true, "it is a pipe, expected a file")] {
        let refusals = || daemon.log().matches("reload was refused").count();
        let before = refusals();
        fs::remove_file(daemon.policy_path()).unwrap();
        if is_pipe {
            make_fifo(&daemon.policy_path());
        }
        eventually("the status to tell", || error().contains(told));
        eventually("the log to tell", || refusals() > before);
        daemon.signal("HUP");
        eventually("the log to tell again", || refusals() > before + 1);
        assert_eq!(check(&daemon).1, 3);
        _ = fs::remove_file(daemon.policy_path());
        fs::write(daemon.policy_path(), policy(3)).unwrap();
        eventually("no error in the status", || error() == "null");
    }
}

#[test]
fn what_is_no_file_ends_the_start_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (fifo, good) = (folder.path().join("fifo"), folder.path().join("policy.yaml"));
    make_fifo(&fifo);
    fs::write(&good, policy(3)).unwrap();
    let said = |arguments: &[&OsStr]| {
        let ended = Daemon::command().args(arguments).output().unwrap();
        assert!(!ended.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&ended.stderr).into_owned()
    };
    let (fifo, good) = (fifo.as_os_str(), good.as_os_str());
    for (path, found) in [(fifo, "pipe"), (folder.path().as_os_str(), "directory")] {
        let found = format!("it is a {found}, expected a file");
        assert!(said(&[path]).contains(&found), "{found}");
        for flag in ["--tokens", "--jwt-key", "--geoip", "--hash-key"] {
            let said = said(&[good, flag.as_ref(), path]);
            assert!(said.contains(&found), "{flag}: {said}");
        }
    }
    let said = said(&[good, "--state-dir".as_ref(), fifo]);
    assert!(said.contains("fifo: it is no directory"), "{said}");
}

/// Sends without pause until told to stop. Returns the number of answers, and the first failure.
fn hammer(client: &Client, target: &str, stop: &AtomicBool, done: &AtomicUsize) -> Option<String> {
    let mut connection = client.connect();
    while !stop.load(Ordering::Relaxed) {
        connection.request("GET", target, &[], None);
        match connection.try_answer() {
            Some(answer) if answer.status == 200 => done.fetch_add(1, Ordering::Relaxed),
            other => return Some(format!("{other:?}")),
        };
    }
    None
}

#[test]
fn a_reload_under_load_causes_no_error() {
    let upstream = Upstream::start();
    let daemon = Daemon::with_policy(&open(0), Some(&upstream));
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let clients = [(); 4].map(|()| {
            let (client, stop, done) = (daemon.gateway(), &stop, &done);
            scope.spawn(move || hammer(&client, "/", stop, done))
        });
        for round in 1..=20 {
            let before = (daemon.log().matches("reloaded").count(), done.load(Ordering::Relaxed));
            fs::write(daemon.policy_path(), open(round)).unwrap();
            daemon.signal("HUP");
            eventually("a reload, and requests beside it", || {
                daemon.log().matches("reloaded").count() > before.0
                    && done.load(Ordering::Relaxed) > before.1 + 10
            });
        }
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            assert_eq!(client.join().unwrap(), None);
        }
    });
    assert_eq!(upstream.count(), done.load(Ordering::Relaxed));
}

fn open(round: u64) -> String {
    let total = 1_000_000 + round;
    format!("{{ tidegate: 1, name: live, limits: {{ one: {{ by: ip, total: {total} }} }} }}")
}

#[test]
fn a_place_stays_held_through_a_reload() {
    let text = |places: u64| {
        format!(
            "{{ tidegate: 1, name: live, limits: {{ one: {{ by: user, concurrency: {places}, lease: 1h }} }} }}"
        )
    };
    let daemon = Daemon::with_policy(&text(1), None);
    let held = daemon.check(&json!({ "user": "u" })).json();
    for (round, places) in [1, 2].into_iter().enumerate() {
        fs::write(daemon.policy_path(), text(places)).unwrap();
        daemon.signal("HUP");
        eventually("a reload", || daemon.log().matches("reloaded").count() > round);
        eventually("what is in force", || {
            let answer = daemon.check(&json!({ "user": "u" })).json();
            answer["limits"][0]["limit"] == places && (answer["allowed"] == true) == (places == 2)
        });
    }
    let release = json!({ "lease": held["lease"] }).to_string();
    assert_eq!(daemon.api().post("/v1/release", &release).json()["released"], true);
}

#[test]
fn a_broken_part_is_told_and_the_sound_ones_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    fs::write(&tokens, format!("client shop {}\n", "0".repeat(64))).unwrap();
    let path = folder.path().join("policy.yaml");
    fs::write(&path, policy(3)).unwrap();
    let mut command = Daemon::command();
    command.arg(&path).arg("--tokens").arg(&tokens);
    let daemon = Daemon::start(&mut command);
    fs::write(&tokens, "nonsense").unwrap();
    fs::write(&path, policy(5)).unwrap();
    daemon.signal("HUP");
    daemon.wait_for_log("a reload was refused in part");
    let log = daemon.log();
    assert!(log.contains("taken: the policies; as before: the tokens ("), "{log}");
    assert!(!log.contains("what was in force stays"), "{log}");
}

#[test]
fn warnings_of_the_listeners_outlive_a_reload_and_new_ones_are_logged() {
    let daemon = Daemon::with_policy(&policy(3).replace("user", "client"), None);
    let warnings = |daemon: &Daemon| daemon.status()["warnings"].as_array().unwrap().len();
    assert_eq!(warnings(&daemon), 1, "{}", daemon.status());
    let escaped = "anonymous requests escape";
    fs::write(daemon.policy_path(), policy(3)).unwrap();
    daemon.wait_for_log("reloaded");
    let status = daemon.status()["warnings"].to_string();
    assert!(status.contains("every user of this machine") && status.contains(escaped), "{status}");
    let told = || daemon.log().matches(escaped).count();
    assert_eq!(told(), 1, "{}", daemon.log());
    // A known warning is not logged again.
    let reloads = || daemon.log().matches("reloaded").count();
    let before = reloads();
    daemon.signal("HUP");
    eventually("another reload", || reloads() > before);
    assert_eq!(told(), 1, "{}", daemon.log());
}
