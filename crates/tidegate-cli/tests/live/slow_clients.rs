//! Clients that send too slowly, read too slowly or are silent are closed, and others are served meanwhile.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use crate::sockets::statuses;
use crate::support::{Client, Connection, Daemon, Reply, Upstream, eventually, now};

const OPEN: &str = "{ tidegate: 1, name: open }";

/// Sends a byte every now and then until the other side closes, and returns its answer.
fn drip(client: &Client, start: &str, every: Duration) -> String {
    let mut socket = client.connect().socket;
    socket.write_all(start.as_bytes()).unwrap();
    let mut writer = socket.try_clone().unwrap();
    let dripping = thread::spawn(move || {
        while writer.write_all(b"a").is_ok() {
            thread::sleep(every);
        }
    });
    let mut text = Vec::new();
    let _ = socket.read_to_end(&mut text);
    let _ = socket.shutdown(Shutdown::Both);
    dripping.join().unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn slow_senders_are_let_go_while_others_are_served() {
    let upstream = Upstream::start();
    let bounds =
        ["--header-timeout", "300ms", "--body-timeout", "300ms", "--idle-timeout", "400ms"];
    let daemon = Daemon::with_policy_and(OPEN, Some(&upstream), &bounds);
    for client in [daemon.gateway(), daemon.api(), daemon.admin()] {
        let every = Duration::from_millis(20);
        thread::scope(|scope| {
            // A head that never ends, at its first byte, later, and behind a pipelined request.
            let starts = [
                "G",
                "GET / HTTP/1.1\r\nHost: localhost\r\nX: ",
                "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /",
            ];
            let dripping = starts.map(|start| scope.spawn(move || drip(&client, start, every)));
            for _ in 0..20 {
                assert!(client.get("/health").status < 500);
            }
            let said = dripping.map(|one| statuses(&one.join().unwrap()).len());
            assert_eq!(said, [0, 0, 1]);
        });
        // Nothing at all, and nothing after a request.
        assert!(client.connect().is_closed());
        let mut kept = client.connect();
        kept.request("GET", "/health", &[], None);
        kept.answer();
        assert!(kept.is_closed());
    }
    let head = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n";
    for client in [daemon.gateway(), daemon.api()] {
        // On a machine so busy that the upstream was not asked in time, the answer says that instead.
        let mut answers = (0..3).map(|_| client.raw(head.as_bytes()));
        assert!(answers.any(|text| statuses(&text) == [408]), "the client is late");
    }
    // The body of a call is small, so a byte at a time is too slow for it.
    assert_eq!(statuses(&drip(&daemon.api(), head, Duration::from_millis(20))), [408]);
    assert_eq!(upstream.seen().iter().filter(|seen| seen.line.starts_with("POST")).count(), 0);
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

#[test]
fn slow_readers_are_let_go_and_free_their_place() {
    let upstream = endless();
    let policy = "{ tidegate: 1, name: one, limits: { one: { by: ip, concurrency: 1 } } }";
    let daemon = Daemon::with_policy_and(policy, Some(&upstream), &["--body-timeout", "400ms"]);
    let mut reader: Connection = daemon.gateway().connect();
    reader.request("GET", "/", &[], None);
    eventually("the upstream's request", || upstream.count() == 1);
    assert_eq!(daemon.gateway().get("/").status, 429);
    eventually("the place of one who reads nothing", || {
        let mut next = daemon.gateway().connect();
        next.request("GET", "/", &[], None);
        let mut start = [0; 12];
        next.socket.read_exact(&mut start).unwrap();
        &start == b"HTTP/1.1 200"
    });
    let mut rest = Vec::new();
    let _ = reader.socket.read_to_end(&mut rest);
    assert!(rest.len() < 100_000_000, "the answer was cut");
}

/// The start of HTTP/2, with windows of zero, and a GET on stream 1.
fn http2_without_a_window() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // SETTINGS: INITIAL_WINDOW_SIZE 0.
    bytes.extend_from_slice(&[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0]);
    // HEADERS, ends both: :method GET, :scheme http, :path /, :authority a.
    let block = [0x82, 0x86, 0x84, 0x41, 0x01, b'a'];
    bytes.extend_from_slice(&[0, 0, 6, 1, 5, 0, 0, 0, 1]);
    bytes.extend_from_slice(&block);
    bytes
}

#[test]
fn a_client_that_grants_no_window_is_closed_and_frees_its_place() {
    let upstream = endless();
    let policy = "{ tidegate: 1, name: one, limits: { one: { by: ip, concurrency: 1 } } }";
    let daemon = Daemon::with_policy_and(policy, Some(&upstream), &["--body-timeout", "400ms"]);
    let mut reader = daemon.gateway().connect();
    reader.socket.write_all(&http2_without_a_window()).unwrap();
    eventually("the upstream's request", || upstream.count() == 1);
    assert_eq!(daemon.gateway().get("/").status, 429);
    eventually("the place of one who takes nothing", || {
        // The client sends all the time, and reads nothing.
        let _ = reader.socket.write_all(&[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        daemon.check(&serde_json::json!({ "ip": "127.0.0.1" })).json()["allowed"] == true
    });
}

#[test]
fn requests_that_are_taken_back_at_once_leave_nothing_behind() {
    let upstream = Upstream::replying(|_| {
        Reply::Take(Box::new(|mut socket: TcpStream| drop(socket.read(&mut [0]))))
    });
    let policy = "{ tidegate: 1, name: few, limits: { few: { by: ip, concurrency: 5 } } }";
    let daemon = Daemon::with_policy(policy, Some(&upstream));
    for _ in 0..5 {
        let mut socket = daemon.gateway().connect().socket;
        let mut bytes = http2_without_a_window();
        for stream in (3..4_000_u32).step_by(2) {
            let id = stream.to_be_bytes();
            bytes.extend_from_slice(&[0, 0, 6, 1, 5, id[0], id[1], id[2], id[3]]);
            bytes.extend_from_slice(&[0x82, 0x86, 0x84, 0x41, 0x01, b'a']);
            bytes.extend_from_slice(&[0, 0, 4, 3, 0, id[0], id[1], id[2], id[3], 0, 0, 0, 8]);
        }
        // The daemon is likely to close such a connection.
        let _ = socket.write_all(&bytes);
    }
    eventually("all places", || {
        let answer = daemon.check(&serde_json::json!({ "ip": "127.0.0.1" })).json();
        let body = serde_json::json!({ "lease": answer["lease"] }).to_string();
        daemon.api().post("/v1/release", &body);
        answer["limits"][0]["remaining"] == 4
    });
    assert_eq!(daemon.api().get("/ready").status, 200);
}

#[test]
fn silence_on_http_2_is_let_go_whatever_it_leaves_unanswered() {
    let bounds = ["--header-timeout", "300ms", "--idle-timeout", "300ms"];
    let mut daemon = Daemon::with_policy_and(OPEN, None, &bounds);
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    for length in [5, 16, 20, preface.len()] {
        let mut connection = daemon.api().connect();
        connection.socket.write_all(&preface[..length]).unwrap();
        assert!(connection.is_closed(), "{length}");
    }
    daemon.stop();
    let mut daemon = Daemon::with_policy(OPEN, None);
    let mut silent = daemon.api().connect();
    silent.socket.write_all(preface).unwrap();
    silent.socket.peek(&mut [0]).unwrap();
    let started = now();
    daemon.stop();
    assert!(started.elapsed() < Duration::from_secs(15), "it held up the end");
}

#[test]
fn a_body_that_is_read_ahead_must_come_in_time() {
    let upstream = Upstream::start();
    let policy = "
tidegate: 1
name: email
identity: { attributes: { email: { body: /email } } }
limits: { email: { by: email, total: 1 } }
";
    let daemon = Daemon::with_policy_and(policy, Some(&upstream), &["--body-timeout", "300ms"]);
    let head = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000\r\n\r\n";
    let text = drip(&daemon.gateway(), head, Duration::from_millis(20));
    assert_eq!(statuses(&text), [408], "{text}");
    assert_eq!(upstream.count(), 0);
}

#[test]
fn connections_beyond_the_bound_wait_until_others_end() {
    let daemon = Daemon::with_policy_and(OPEN, None, &["--max-connections", "2"]);
    let (first, mut second) = (daemon.api().connect(), daemon.api().connect());
    second.request("GET", "/health", &[], None);
    assert_eq!(second.answer().status, 200);
    let mut third = daemon.api().connect();
    third.request("GET", "/health", &[], None);
    third.socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(third.socket.peek(&mut [0]).is_err(), "served beyond the bound");
    drop(first);
    third.socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(third.answer().status, 200);
}
