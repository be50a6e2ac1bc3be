//! The drain: every accepted request gets its whole answer.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::{Client, Daemon, Reply, Upstream, eventually, now};

const OPEN: &str = "{ tidegate: 1, name: open, limits: { all: { by: ip, total: 1_000_000_000 } } }";

const CHECK: &str = "{\"ip\":\"192.0.2.1\"}";

/// Sends without pause on one connection after the other until the daemon no longer listens. A
/// request that was written on an open connection and not answered is a failure.
fn until_the_end(
    client: &Client,
    method: &str,
    target: &str,
    body: &str,
    done: &AtomicUsize,
) -> Option<String> {
    while let Ok(socket) = TcpStream::connect(client.address) {
        let mut connection = client.over(socket);
        loop {
            connection.request(method, target, &[], Some(body));
            let Some(answer) = connection.try_answer() else {
                // A connection that was never accepted has only been in the system's queue.
                return connection.was_answered().then(|| "no answer".to_owned());
            };
            if answer.status != 200 {
                return Some(format!("{answer:?}"));
            }
            done.fetch_add(1, Ordering::Relaxed);
            if answer.header("connection") == Some("close") {
                break;
            }
        }
    }
    None
}

#[test]
fn under_load_every_request_on_an_open_connection_is_answered() {
    for _ in 0..3 {
        let upstream = Upstream::start();
        let mut daemon = Daemon::with_policy(OPEN, Some(&upstream));
        let (gateway, api, done) = (daemon.gateway(), daemon.api(), Arc::new(AtomicUsize::new(0)));
        let clients: Vec<_> = (0..8)
            .map(|index| {
                let done = Arc::clone(&done);
                thread::spawn(move || match index % 2 {
                    0 => until_the_end(&gateway, "GET", "/", "", &done),
                    _ => until_the_end(&api, "POST", "/v1/check", CHECK, &done),
                })
            })
            .collect();
        eventually("some answers", || done.load(Ordering::Relaxed) > 200);
        daemon.stop();
        for client in clients {
            assert_eq!(client.join().unwrap(), None, "{}", daemon.log());
        }
    }
}

/// Answers in pieces, and goes on only when told.
fn slow(go: &Arc<AtomicBool>) -> Upstream {
    let go = Arc::clone(go);
    Upstream::replying(move |_| {
        let go = Arc::clone(&go);
        Reply::Take(Box::new(move |mut socket: TcpStream| {
            socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf").unwrap();
            eventually("leave to go on", || go.load(Ordering::Relaxed));
            socket.write_all(b"full").unwrap();
        }))
    })
}

#[test]
fn requests_under_way_finish_and_ready_turns_to_503() {
    let go = Arc::new(AtomicBool::new(false));
    let upstream = slow(&go);
    let mut daemon = Daemon::with_policy(OPEN, Some(&upstream));
    let mut connection = daemon.gateway().connect();
    connection.request("GET", "/", &[], None);
    connection.socket.read_exact(&mut [0; 20]).unwrap();
    // Kept connections are served for a while, and their requests get an answer.
    let mut kept = daemon.api().connect();
    kept.request("GET", "/ready", &[], None);
    assert_eq!(kept.answer().status, 200);
    daemon.signal("TERM");
    daemon.wait_for_log("told to stop");
    kept.request("GET", "/ready", &[], None);
    let ready = kept.answer();
    assert_eq!((ready.status, ready.header("connection")), (503, Some("close")));
    eventually("refused connections", || TcpStream::connect(daemon.address("gateway")).is_err());
    go.store(true, Ordering::Relaxed);
    let mut rest = String::new();
    connection.socket.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("halffull"), "{rest}");
    assert!(daemon.wait().success(), "{}", daemon.log());
}

#[test]
fn a_request_whose_head_or_body_is_half_sent_is_finished() {
    let upstream = Upstream::start();
    let mut daemon = Daemon::with_policy(OPEN, Some(&upstream));
    let mut head = daemon.gateway().connect();
    head.request("GET", "/", &[], None);
    assert_eq!(head.answer().status, 200);
    head.socket.write_all(b"GET /head HTTP/1.1\r\nHo").unwrap();
    let mut body = daemon.gateway().connect();
    let start = b"POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab";
    body.socket.write_all(start).unwrap();
    let mut idle = daemon.gateway().connect();
    idle.request("GET", "/", &[], None);
    assert_eq!(idle.answer().status, 200);
    daemon.signal("TERM");
    assert!(idle.is_closed(), "an idle connection is closed after a while, and these are not idle");
    head.socket.write_all(b"st: a\r\n\r\n").unwrap();
    assert_eq!(head.answer().status, 200);
    body.socket.write_all(b"cd").unwrap();
    assert_eq!(body.answer().status, 200);
    assert_eq!(upstream.last().body, b"abcd");
    assert!(daemon.wait().success(), "{}", daemon.log());
}

#[test]
fn a_request_beyond_the_bound_on_waiters_is_refused_at_once() {
    let go = Arc::new(AtomicBool::new(false));
    let upstream = slow(&go);
    let mut daemon = Daemon::with_policy_and(OPEN, Some(&upstream), &["--max-connections", "1"]);
    let mut connection = daemon.gateway().connect();
    connection.request("GET", "/", &[], None);
    connection.socket.read_exact(&mut [0; 20]).unwrap();
    let mut outside = daemon.gateway().connect();
    outside.request("GET", "/", &[], None);
    daemon.signal("TERM");
    assert!(outside.is_closed());
    go.store(true, Ordering::Relaxed);
    let mut rest = String::new();
    connection.socket.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("halffull"), "{rest}");
    assert!(daemon.wait().success(), "{}", daemon.log());
}

#[test]
fn requests_that_do_not_end_are_cut_off_at_the_drain_timeout() {
    let upstream = slow(&Arc::new(AtomicBool::new(false)));
    let mut daemon = Daemon::with_policy_and(OPEN, Some(&upstream), &["--drain-timeout", "300ms"]);
    let mut connection = daemon.gateway().connect();
    connection.request("GET", "/", &[], None);
    connection.socket.read_exact(&mut [0; 20]).unwrap();
    let started = now();
    daemon.stop();
    assert!(started.elapsed() < Duration::from_secs(10));
    let mut rest = String::new();
    let _ = connection.socket.read_to_string(&mut rest);
    assert!(rest.ends_with("half"), "{rest}");
}

#[test]
fn idle_connections_do_not_hold_up_the_end() {
    let upstream = Upstream::start();
    let mut daemon = Daemon::with_policy(OPEN, Some(&upstream));
    let idle: Vec<_> = [daemon.gateway(), daemon.api(), daemon.admin()]
        .into_iter()
        .map(|client| {
            let mut kept = client.connect();
            kept.request("GET", "/health", &[], None);
            kept.answer();
            (client.connect(), kept)
        })
        .collect();
    let started = now();
    daemon.stop();
    assert!(started.elapsed() < Duration::from_secs(10));
    drop(idle);
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let upstream = slow(&Arc::new(AtomicBool::new(false)));
    let mut daemon = Daemon::with_policy(OPEN, Some(&upstream));
    let mut connection = daemon.gateway().connect();
    connection.request("GET", "/", &[], None);
    connection.socket.read_exact(&mut [0; 20]).unwrap();
    daemon.signal("TERM");
    daemon.wait_for_log("told to stop");
    daemon.stop();
}

#[test]
fn counters_are_kept_to_the_last_request_that_was_answered() {
    let state = tempfile::tempdir().unwrap();
    let arguments = ["--state-dir", state.path().to_str().unwrap()];
    let mut daemon = Daemon::with_policy_and(OPEN, None, &arguments);
    let (api, done) = (daemon.api(), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let done = Arc::clone(&done);
            thread::spawn(move || until_the_end(&api, "POST", "/v1/check", CHECK, &done))
        })
        .collect();
    eventually("some answers", || done.load(Ordering::Relaxed) > 200);
    daemon.stop();
    for client in clients {
        assert_eq!(client.join().unwrap(), None, "{}", daemon.log());
    }
    let daemon = Daemon::with_policy_and(OPEN, None, &arguments);
    let answer = daemon.api().post("/v1/check", CHECK).json();
    let used = 1_000_000_000 - answer["limits"][0]["remaining"].as_u64().unwrap() - 1;
    assert_eq!(used, done.load(Ordering::Relaxed) as u64);
}

#[test]
fn the_demo_serves_to_the_last_request() {
    let mut daemon = Daemon::start(Daemon::command().args(["--gateway", "127.0.0.1:0"]));
    let mut kept = daemon.gateway().connect();
    kept.request("GET", "/health", &[], None);
    assert_eq!(kept.answer().status, 200);
    // Half a head keeps the gateway up for longer than an idle connection does.
    kept.socket.write_all(b"GET /health HTTP/1.1\r\nHo").unwrap();
    let mut idle = daemon.gateway().connect();
    idle.request("GET", "/health", &[], None);
    assert_eq!(idle.answer().status, 200);
    daemon.signal("TERM");
    assert!(idle.is_closed());
    kept.socket.write_all(b"st: a\r\n\r\n").unwrap();
    assert_eq!(kept.answer().status, 200);
    assert!(daemon.wait().success(), "{}", daemon.log());
}

#[test]
fn during_the_delay_everything_is_still_accepted_and_told_to_go_elsewhere() {
    let upstream = Upstream::start();
    let mut daemon = Daemon::with_policy_and(OPEN, Some(&upstream), &["--drain-delay", "3s"]);
    let mut kept = daemon.gateway().connect();
    kept.request("GET", "/", &[], None);
    assert_eq!(kept.answer().header("connection"), None);
    daemon.signal("TERM");
    daemon.wait_for_log("drain_delay");
    kept.request("GET", "/", &[], None);
    let answer = kept.answer();
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    assert!(kept.is_closed());
    let answer = daemon.gateway().get("/");
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")), "a new one");
    assert_eq!(daemon.api().post("/v1/check", CHECK).status, 200);
    for listener in [daemon.api(), daemon.admin()] {
        let ready = listener.get("/ready");
        assert_eq!((ready.status, ready.header("connection")), (503, Some("close")));
        assert_eq!(listener.get("/health").status, 200);
    }
    assert_eq!(daemon.status()["draining"], true);
    assert!(!daemon.log().contains("what was accepted"), "{}", daemon.log());
    assert!(daemon.wait().success(), "{}", daemon.log());
}

#[test]
fn the_admin_listener_ends_last() {
    let go = Arc::new(AtomicBool::new(false));
    let upstream = slow(&go);
    let mut daemon = Daemon::with_policy(OPEN, Some(&upstream));
    let mut connection = daemon.gateway().connect();
    connection.request("GET", "/", &[], None);
    connection.socket.read_exact(&mut [0; 20]).unwrap();
    daemon.signal("TERM");
    for closed in ["gateway", "api"] {
        eventually("refused connections", || TcpStream::connect(daemon.address(closed)).is_err());
    }
    assert_eq!(daemon.admin().get("/ready").status, 503);
    assert_eq!(daemon.admin().get("/metrics").status, 200);
    go.store(true, Ordering::Relaxed);
    let mut rest = String::new();
    connection.socket.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("halffull"), "{rest}");
    assert!(daemon.wait().success(), "{}", daemon.log());
}
