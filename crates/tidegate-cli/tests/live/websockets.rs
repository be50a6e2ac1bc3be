//! WebSockets through the gateway: a place is held while one is open, and freed however it ends.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::{Connection, Daemon, Reply, Upstream, eventually, now};

const PLACE: &str =
    "{ tidegate: 1, name: one, limits: { one: { by: ip, concurrency: 1, lease: 1s } } }";
const SWITCH: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
const ASK: [(&str, &str); 4] = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
];
/// A masked text frame, and a close frame.
const TEXT: &[u8] = &[0x81, 0x83, 0, 0, 0, 0, b'a', b'b', b'c'];
const CLOSE: &[u8] = &[0x88, 0x80, 0, 0, 0, 0];

/// Switches protocols and echoes all bytes. It hangs up after a close frame, and when told.
fn echo(hang_up: &Arc<AtomicBool>) -> Upstream {
    let hang_up = Arc::clone(hang_up);
    Upstream::replying(move |seen| {
        if seen.header("upgrade").is_none() {
            return Reply::Answer(200, String::new());
        }
        let hang_up = Arc::clone(&hang_up);
        Reply::Take(Box::new(move |mut socket: TcpStream| {
            socket.write_all(SWITCH).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
            let mut buffer = [0; 4096];
            while !hang_up.load(Ordering::Relaxed) {
                match socket.read(&mut buffer) {
                    Ok(0) => return,
                    Ok(read) => {
                        let _ = socket.write_all(&buffer[..read]);
                        if &buffer[..read] == CLOSE {
                            return;
                        }
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(_) => return,
                }
            }
        }))
    })
}

fn open(daemon: &Daemon) -> Connection {
    let mut connection = daemon.gateway().connect();
    connection.request("GET", "/socket", &ASK, None);
    let answer = connection.answer();
    assert_eq!((answer.status, answer.header("upgrade")), (101, Some("websocket")));
    connection
}

fn says_back(connection: &mut Connection, bytes: &[u8]) {
    connection.socket.write_all(bytes).unwrap();
    let mut back = vec![0; bytes.len()];
    connection.socket.read_exact(&mut back).unwrap();
    assert_eq!(back, bytes);
}

fn is_free(daemon: &Daemon) -> bool {
    daemon.gateway().get("/").status == 200
}

/// Closes with a reset, as the system does for a socket with unread bytes.
fn reset(mut connection: Connection) {
    connection.socket.write_all(TEXT).unwrap();
    connection.socket.peek(&mut [0; 1]).unwrap();
}

#[test]
fn a_place_is_held_beyond_its_lease_while_the_socket_is_open() {
    let upstream = echo(&Arc::default());
    let daemon = Daemon::with_policy(PLACE, Some(&upstream));
    let mut socket = open(&daemon);
    let started = now();
    while started.elapsed() < Duration::from_millis(2_500) {
        says_back(&mut socket, TEXT);
        assert!(!is_free(&daemon));
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(upstream.last().header("sec-websocket-key"), Some("dGhlIHNhbXBsZSBub25jZQ=="));
    says_back(&mut socket, CLOSE);
    assert!(socket.is_closed());
    eventually("the place", || is_free(&daemon));
}

#[test]
fn a_place_is_freed_however_the_client_ends() {
    let upstream = echo(&Arc::default());
    let daemon = Daemon::with_policy(PLACE, Some(&upstream));
    type End = fn(Connection) -> Option<Connection>;
    let ends: [(&str, End); 4] = [
        ("a close frame", |mut socket| {
            says_back(&mut socket, CLOSE);
            Some(socket)
        }),
        ("a closed connection", |socket| {
            drop(socket);
            None
        }),
        ("a reset", |socket| {
            reset(socket);
            None
        }),
        ("a half-closed connection", |socket| {
            socket.socket.shutdown(Shutdown::Write).unwrap();
            Some(socket)
        }),
    ];
    for (name, end) in ends {
        let mut socket = open(&daemon);
        says_back(&mut socket, TEXT);
        assert!(!is_free(&daemon), "{name}");
        let kept = end(socket);
        eventually(name, || is_free(&daemon));
        drop(kept);
    }
}

#[test]
fn a_place_is_freed_however_the_upstream_ends() {
    let hang_up = Arc::new(AtomicBool::new(false));
    let upstream = echo(&hang_up);
    let daemon = Daemon::with_policy(PLACE, Some(&upstream));
    let mut socket = open(&daemon);
    says_back(&mut socket, TEXT);
    hang_up.store(true, Ordering::Relaxed);
    assert!(socket.is_closed());
    eventually("the place", || is_free(&daemon));
    let crashing = Upstream::replying(|seen| match seen.header("upgrade") {
        None => Reply::Answer(200, String::new()),
        Some(_) => Reply::Take(Box::new(|mut socket: TcpStream| {
            socket.write_all(SWITCH).unwrap();
            let _ = socket.read(&mut [0; 1]);
            // Unread bytes turn this close into a reset.
        })),
    });
    let daemon = Daemon::with_policy(PLACE, Some(&crashing));
    let mut socket = open(&daemon);
    socket.socket.write_all(TEXT).unwrap();
    assert!(socket.is_closed());
    eventually("the place", || is_free(&daemon));
}

#[test]
fn an_upgrade_that_is_refused_is_an_answer_like_any_other() {
    let upstream = Upstream::replying(|_| Reply::Answer(403, "no".to_owned()));
    let daemon = Daemon::with_policy(PLACE, Some(&upstream));
    let mut connection = daemon.gateway().connect();
    for _ in 0..3 {
        connection.request("GET", "/socket", &ASK, None);
        assert_eq!(connection.answer().status, 403);
    }
    let echo = echo(&Arc::default());
    let daemon = Daemon::with_policy(PLACE, Some(&echo));
    let socket = open(&daemon);
    connection = daemon.gateway().connect();
    connection.request("GET", "/socket", &ASK, None);
    assert_eq!(connection.answer().status, 429, "refused by the policy");
    assert_eq!(echo.count(), 1);
    drop(socket);
}

#[test]
fn draining_waits_for_open_sockets_and_no_longer_than_its_time() {
    let upstream = echo(&Arc::default());
    let mut daemon = Daemon::with_policy(PLACE, Some(&upstream));
    let mut socket = open(&daemon);
    daemon.signal("TERM");
    daemon.wait_for_log("told to stop");
    says_back(&mut socket, TEXT);
    says_back(&mut socket, CLOSE);
    assert!(daemon.wait().success());

    let mut daemon = Daemon::with_policy_and(PLACE, Some(&upstream), &["--drain-timeout", "300ms"]);
    let mut socket = open(&daemon);
    let started = now();
    daemon.stop();
    assert!(started.elapsed() < Duration::from_secs(10));
    assert!(socket.is_closed());
}
