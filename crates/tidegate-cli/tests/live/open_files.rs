//! More connections than open files: clients that do not fit wait or get an answer, and other listeners
//! go on.

use std::fs;
use std::io::Read as _;
use std::process::Command;

use crate::support::{Connection, Daemon, Reply, Upstream, eventually};

const OPEN: &str = "{ tidegate: 1, name: open }";

/// A daemon that may have 200 open files.
fn with_few_open_files(upstream: &Upstream, arguments: &[&str]) -> Daemon {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    fs::write(&path, OPEN).unwrap();
    let script = "ulimit -n 200 && exec \"$0\" serve \"$@\" --gateway 127.0.0.1:0 --api 127.0.0.1:0 --admin 127.0.0.1:0";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_tidegate")]).arg(&path).args(arguments);
    let mut daemon = Daemon::start(command.args(["--upstream", &upstream.url()]));
    daemon.folder = Some(folder);
    daemon
}

#[test]
fn requests_beyond_the_connections_to_the_upstream_are_told_to_come_back() {
    let upstream = Upstream::replying(|seen| match seen.line.contains("/slow") {
        true => Reply::Take(Box::new(|mut socket| drop(socket.read(&mut [0])))),
        false => Reply::Answer(200, "fine".to_owned()),
    });
    let daemon = with_few_open_files(&upstream, &["--connect-timeout", "200ms"]);
    // As many clients as the gateway accepts, and half as many upstream connections.
    let mut clients: Vec<Connection> = (0..60).map(|_| daemon.gateway().connect()).collect();
    for client in &mut clients {
        client.request("GET", "/slow", &[], None);
    }
    let is_told = |client: &mut Connection| {
        client.socket.set_nonblocking(true).unwrap();
        let is_told = client.socket.peek(&mut [0]).is_ok();
        client.socket.set_nonblocking(false).unwrap();
        is_told
    };
    let mut told = 0;
    eventually("those who do not fit are told", || {
        told = clients.iter_mut().filter_map(|client| is_told(client).then_some(())).count();
        told + upstream.count() == 60
    });
    assert!((1..60).contains(&told), "{told}");
    for mut client in clients.extract_if(.., is_told) {
        let answer = client.answer();
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{answer:?}");
        assert_eq!(answer.json()["status"], 503);
    }
    assert_eq!(daemon.api().get("/ready").status, 200);
    assert_eq!(daemon.admin().get("/metrics").status, 200);
    drop(clients);
    eventually("connections that are free again", || daemon.gateway().get("/fine").status == 200);
    let log = daemon.log();
    assert!(!log.contains("could not accept") && !log.contains("open files"), "{log}");
}

#[test]
fn the_daemon_takes_as_many_open_files_as_it_may_have() {
    let folder = tempfile::tempdir().unwrap();
    let script = "ulimit -S -n 100 && exec \"$0\" serve --gateway 127.0.0.1:0 --api 127.0.0.1:0 --admin 127.0.0.1:0";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_tidegate")]).current_dir(folder.path());
    let daemon = Daemon::start(&mut command);
    let mut open: Vec<Connection> = (0..300).map(|_| daemon.api().connect()).collect();
    for connection in &mut open {
        connection.request("GET", "/health", &[], None);
        assert_eq!(connection.answer().status, 200);
    }
    let mut limits = String::new();
    let path = format!("/proc/{}/limits", daemon.id());
    fs::File::open(path).unwrap().read_to_string(&mut limits).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<&str> = line.split_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers[0], numbers[1]);
}

#[test]
fn many_connections_at_the_gateway_leave_room_on_other_listeners() {
    let upstream = Upstream::start();
    let daemon = with_few_open_files(&upstream, &[]);
    let mut crowd: Vec<Connection> = (0..1_000).map(|_| daemon.gateway().connect()).collect();
    for connection in crowd.iter_mut().take(50) {
        connection.request("GET", "/", &[], None);
        assert_eq!(connection.answer().status, 200, "{}", daemon.log());
    }
    assert_eq!(daemon.api().get("/ready").status, 200);
    assert_eq!(daemon.admin().get("/metrics").status, 200);
    let mut last = crowd.pop().unwrap();
    drop(crowd);
    last.request("GET", "/", &[], None);
    assert_eq!(last.answer().status, 200);
    assert!(!daemon.log().contains("could not accept"), "{}", daemon.log());
}
