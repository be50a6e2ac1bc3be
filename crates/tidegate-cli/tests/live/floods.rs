//! Clients and upstreams that send or hold more than they need: all are bounded, and others are served.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use crate::support::{Daemon, Reply, Upstream, eventually, now};

const OPEN: &str = "{ tidegate: 1, name: open }";
const ONE: &str = "{ tidegate: 1, name: one, limits: { one: { by: ip, concurrency: 1 } } }";

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The start of a connection, which grants each answer a window of this many bytes.
pub(crate) fn start(window: u32) -> Vec<u8> {
    let window = [&[0, 4][..], &window.to_be_bytes()].concat();
    [PREFACE, &frame(SETTINGS, 0, 0, &window)].concat()
}

/// A whole GET.
fn get(stream: u32) -> Vec<u8> {
    frame(HEADERS, 5, stream, &[0x82, 0x86, 0x84, 0x41, 0x01, b'a'])
}

fn grant(stream: u32, bytes: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())
}

/// Frames that carry no request.
pub(crate) fn idle_frames() -> [(&'static str, Vec<u8>); 6] {
    [
        ("SETTINGS", frame(SETTINGS, 0, 0, &[])),
        ("PING", frame(PING, 0, 0, &[7; 8])),
        ("PRIORITY", frame(2, 0, 1, &[0, 0, 0, 0, 9])),
        ("WINDOW_UPDATE", grant(0, 1)),
        ("an unknown frame", frame(0xbb, 0, 0, b"x")),
        ("GREASE on a stream", frame(0x2a, 0, 1, &[])),
    ]
}

/// Reads and forgets whatever comes.
fn read_on(socket: &TcpStream) {
    let mut reader = socket.try_clone().unwrap();
    thread::spawn(move || while matches!(reader.read(&mut [0; 65_536]), Ok(1..)) {});
}

#[test]
fn floods_of_frames_without_a_request_are_cut_while_others_are_served() {
    let upstream = Upstream::start();
    let daemon = Daemon::with_policy(OPEN, Some(&upstream));
    for (name, frame) in idle_frames() {
        let mut socket = daemon.gateway().connect().socket;
        read_on(&socket);
        socket.write_all(&start(65_535)).unwrap();
        let batch = frame.repeat(100);
        let sent = (0..10_000).take_while(|_| socket.write_all(&batch).is_ok()).count();
        assert!(sent < 9_000, "{name}: {sent} batches were taken");
        assert_eq!(daemon.gateway().get("/").status, 200);
    }
}

#[test]
fn what_http_2_complains_of_is_logged_once_a_second() {
    let upstream = Upstream::start();
    let daemon = Daemon::with_policy(OPEN, Some(&upstream));
    let mut socket = daemon.gateway().connect().socket;
    // The acknowledgement of a ping that was never sent.
    let bytes = [start(65_535), frame(PING, 1, 0, &[3; 8]).repeat(900)].concat();
    socket.write_all(&bytes).unwrap();
    let lines = || daemon.log().lines().filter(|line| line.contains("PING")).count();
    eventually("a line", || lines() > 0);
    socket.write_all(&get(1)).unwrap();
    eventually("the request behind the flood", || upstream.count() == 1);
    assert!(lines() < 10, "{} lines", lines());
}

/// The memory of a process, in MiB.
fn resident_mib(daemon: &Daemon) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<usize>().unwrap() / 1024
}

#[test]
fn answers_that_nobody_reads_cost_little() {
    let large = "x".repeat(300_000);
    let upstream = Upstream::replying(move |_| Reply::Answer(200, large.clone()));
    let daemon = Daemon::with_policy(OPEN, Some(&upstream));
    assert_eq!(daemon.gateway().get("/").status, 200);
    let idle = resident_mib(&daemon);
    let mut sockets = Vec::new();
    for connection in 1..=2 {
        let mut socket = daemon.gateway().connect().socket;
        let mut bytes = [start(1 << 30), grant(0, 1 << 30)].concat();
        (0..256).for_each(|number| bytes.extend(get(2 * number + 1)));
        socket.write_all(&bytes).unwrap();
        eventually("the requests", || upstream.count() == 1 + connection * 256);
        sockets.push(socket);
    }
    // As much as is kept of the answers is kept now, unless it grows.
    let mut last = resident_mib(&daemon);
    eventually("the memory to settle", || {
        thread::sleep(Duration::from_millis(200));
        std::mem::replace(&mut last, resident_mib(&daemon)) == last
    });
    let grown = last.saturating_sub(idle);
    assert!(grown < 2 * 40, "{grown} MiB for two connections");
    drop(sockets);
}

#[test]
fn a_place_is_held_until_the_client_has_taken_the_answer() {
    let upstream = Upstream::start();
    let daemon = Daemon::with_policy(ONE, Some(&upstream));
    let mut reader = daemon.gateway().connect().socket;
    reader.write_all(&[start(0), get(1)].concat()).unwrap();
    // The settings, their acknowledgement, and the head of the answer.
    let mut kinds = Vec::new();
    while !kinds.contains(&HEADERS) {
        let mut header = [0; 9];
        reader.read_exact(&mut header).unwrap();
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        reader.read_exact(&mut vec![0; usize::try_from(length).unwrap()]).unwrap();
        kinds.push(header[3]);
    }
    for _ in 0..50 {
        assert_eq!(daemon.gateway().get("/").status, 429, "nothing of the answer is taken");
    }
    reader.write_all(&grant(1, 1_000)).unwrap();
    eventually("the place", || daemon.gateway().get("/").status == 200);
}

/// An answer that is far larger than the buffers of sockets.
fn endless() -> Upstream {
    Upstream::replying(|_| {
        Reply::Take(Box::new(|mut socket: TcpStream| {
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
            while socket.write_all(&[b'x'; 65_536]).is_ok() {}
        }))
    })
}

/// Grants a stream some bytes every 50 ms. Returns for how long the daemon goes along, at most five
/// seconds.
fn trickle(daemon: &Daemon, bytes: u32) -> Duration {
    let mut socket = daemon.gateway().connect().socket;
    read_on(&socket);
    socket.write_all(&[start(0), grant(0, 1 << 30), get(1)].concat()).unwrap();
    let started = now();
    while started.elapsed() < Duration::from_secs(5) && socket.write_all(&grant(1, bytes)).is_ok() {
        thread::sleep(Duration::from_millis(50));
    }
    started.elapsed()
}

#[test]
fn a_reader_below_a_kibibyte_a_second_is_cut_and_a_faster_one_is_not() {
    let upstream = endless();
    let daemon = Daemon::with_policy_and(ONE, Some(&upstream), &["--body-timeout", "1s"]);
    assert!(trickle(&daemon, 8) < Duration::from_secs(5), "160 bytes a second");
    eventually("the place of the slow one", || {
        daemon.check(&serde_json::json!({ "ip": "127.0.0.1" })).json()["allowed"] == true
    });
    assert!(trickle(&daemon, 1_024) >= Duration::from_secs(5), "20 KiB a second");
}

#[test]
fn an_upstream_that_only_announces_its_answer_is_given_up() {
    let upstream = Upstream::replying(|_| {
        Reply::Take(Box::new(|mut socket: TcpStream| {
            let hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n".repeat(100);
            while socket.write_all(&hints).is_ok() {}
        }))
    });
    let daemon = Daemon::with_policy(OPEN, Some(&upstream));
    let started = now();
    assert_eq!(daemon.gateway().get("/").status, 502);
    assert!(started.elapsed() < Duration::from_secs(30), "it was not cut");
}

#[test]
fn a_few_announcements_are_skipped() {
    let upstream = Upstream::replying(|_| {
        let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n".repeat(100);
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        Reply::Raw([hints.as_str(), answer].concat().into_bytes())
    });
    let daemon = Daemon::with_policy(OPEN, Some(&upstream));
    for _ in 0..3 {
        assert_eq!(daemon.gateway().get("/").text(), "ok");
    }
}

#[test]
fn one_client_does_not_take_all_connections_to_the_upstream() {
    let upstream = Upstream::start();
    let policy = "{ tidegate: 1, name: proxied, identity: { trusted_proxies: [127.0.0.1] } }";
    let arguments = ["--max-upstream-connections", "8", "--connect-timeout", "20s"];
    let daemon = Daemon::with_policy_and(policy, Some(&upstream), &arguments);
    let flood = "POST / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.1\r\nContent-Length: 100\r\n\r\nx";
    let mut sockets = Vec::new();
    for _ in 0..20 {
        let mut socket = daemon.gateway().connect().socket;
        socket.write_all(flood.as_bytes()).unwrap();
        sockets.push(socket);
    }
    for client in ["203.0.113.2", "203.0.113.3"] {
        let headers = [("X-Forwarded-For", client)];
        let answer = daemon.gateway().send("GET", "/", &headers, None);
        assert_eq!(answer.status, 200, "{client}");
    }
    drop(sockets);
}
