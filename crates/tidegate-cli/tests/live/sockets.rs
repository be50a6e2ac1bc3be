//! Hostile bytes on the socket: whatever could be read in two ways is refused, and whatever comes
//! through is one request. Slow senders and slow readers are let go.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use crate::support::{Client, Connection, Daemon, Reply, Upstream, eventually, now};

const OPEN: &str = "{ tidegate: 1, name: open }";
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Heads that are no requests, and what may be answered; 0 is a close without a word.
fn no_requests() -> Vec<(&'static str, String, &'static [u16])> {
    let post = |lines: &str| format!("POST /v1/check HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n");
    let body = |lines: &str| format!("{}0\r\n\r\n{SMUGGLED}", post(lines));
    let close = "Connection: close\r\n";
    let many = |count: usize| "X: y\r\n".repeat(count);
    vec![
        ("both lengths", body("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"), &[400]),
        ("both, reversed", body("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n"), &[400]),
        ("two lengths", body("Content-Length: 4\r\nContent-Length: 5\r\n"), &[400]),
        ("a list of lengths", body("Content-Length: 5, 5\r\n"), &[400]),
        ("a negative length", body("Content-Length: -1\r\n"), &[400]),
        ("a signed length", body("Content-Length: +5\r\n"), &[400]),
        ("a hexadecimal length", body("Content-Length: 0x5\r\n"), &[400]),
        ("a length beyond all", body("Content-Length: 99999999999999999999999\r\n"), &[400, 413]),
        ("an unknown coding", body("Transfer-Encoding: xchunked\r\n"), &[400, 501]),
        ("a coding behind chunked", body("Transfer-Encoding: chunked, gzip\r\n"), &[400, 501]),
        ("a coding and a tab", body("Transfer-Encoding:\x0bchunked\r\n"), &[400, 501]),
        (
            "chunks in HTTP/1.0",
            body("").replace("1.1\r\n", "1.0\r\nTransfer-Encoding: chunked\r\n"),
            &[400],
        ),
        ("a folded line", body("X: a\r\n b\r\n"), &[400]),
        ("a first line that is folded", body("").replacen("Host", " Host", 1), &[400]),
        ("a blank before the colon", body("Content-Length : 4\r\n"), &[400]),
        ("a bare line feed", body("X: a\nContent-Length: 4\r\n"), &[400]),
        ("nothing but line feeds", body("").replace("\r\n", "\n"), &[400]),
        ("a bare carriage return", body("X: a\rContent-Length: 4\r\n"), &[400]),
        ("a NUL in a value", body("X: a\0b\r\n"), &[400]),
        ("a NUL in a name", body("X\0: a\r\n"), &[400]),
        ("no name", body(": a\r\n"), &[400]),
        ("no colon", body("X\r\n"), &[400]),
        ("HTTP/0.9", "GET /v1/check\r\n".to_owned(), &[400]),
        ("HTTP/1.2", body("").replacen("1.1", "1.2", 1), &[400, 505]),
        ("HTTP/2.0 by name", body("").replacen("1.1", "2.0", 1), &[400, 505]),
        ("HTTP/9", body("").replacen("/1.1", "/9", 1), &[400, 505]),
        ("no Host", post(close).replacen("Host: localhost\r\n", "", 1), &[400]),
        ("two Hosts", post("Host: localhost\r\nConnection: close\r\n"), &[400]),
        ("an empty method", format!(" {}", body("")), &[400]),
        ("two blanks", body("").replacen(' ', "  ", 1), &[400]),
        ("too many lines", post(&many(100)), &[400, 431]),
        ("a head of more than 64 KiB", post(&format!("X: {}\r\n", "y".repeat(66_000))), &[431]),
        ("a line of 100 KiB", format!("GET /{} HTTP/1.1\r\n", "a".repeat(100_000)), &[414, 431]),
        ("garbage", "\u{1}\u{2}\u{3}\r\n\r\n".to_owned(), &[400]),
        ("TLS", "\u{16}\u{3}\u{1}\0\u{5}hello".to_owned(), &[400]),
    ]
}

/// What came back, as statuses: none for a close without a word.
fn statuses(text: &str) -> Vec<u16> {
    let lines = text.split("HTTP/1.").skip(1);
    lines.map(|line| line.get(2..5).and_then(|status| status.parse().ok()).unwrap_or(0)).collect()
}

#[test]
fn what_is_no_request_or_more_than_one_is_refused_and_never_forwarded() {
    let upstream = Upstream::start();
    let daemon = Daemon::with_policy(OPEN, Some(&upstream));
    for (name, bytes, expected) in no_requests() {
        for (surface, client) in [("gateway", daemon.gateway()), ("api", daemon.api())] {
            let text = client.raw(bytes.as_bytes());
            let statuses = statuses(&text);
            assert_eq!(statuses.len(), 1, "{name} on the {surface}: {text}");
            assert!(expected.contains(&statuses[0]), "{name} on the {surface}: {text}");
        }
    }
    assert_eq!(upstream.count(), 0, "{:?}", upstream.seen());
    assert_eq!(daemon.gateway().get("/").status, 200);
    assert_eq!(daemon.api().get("/health").status, 200);
}

#[test]
fn a_pipelined_request_is_watched_as_closely_as_the_first() {
    let upstream = Upstream::start();
    let daemon = Daemon::with_policy(OPEN, Some(&upstream));
    let both = "POST /both HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    let get = "GET /get HTTP/1.1\r\nHost: a\r\n\r\n";
    let post = "POST /post HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n\r\n\r\nx";
    let chunked = "POST /chunked HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\n\r\n";
    let bare = "GET /bare HTTP/1.1\r\nHost: a\nX: y\r\n\r\n";
    for bad in [both, bare] {
        let before = upstream.count();
        let text = daemon.gateway().raw(format!("{get}{post}{chunked}{bad}{SMUGGLED}").as_bytes());
        assert_eq!(statuses(&text), [200, 200, 200, 400], "{text}");
        let lines: Vec<String> =
            upstream.seen()[before..].iter().map(|seen| seen.line.clone()).collect();
        assert_eq!(lines, ["GET /get HTTP/1.1", "POST /post HTTP/1.1", "POST /chunked HTTP/1.1"]);
    }
    let bodies: Vec<Vec<u8>> = upstream.seen().into_iter().map(|seen| seen.body).collect();
    assert_eq!(bodies[..3], [b"".to_vec(), b"\r\n\r\nx".to_vec(), b"abc".to_vec()]);
}

#[test]
fn chunks_arrive_as_they_were_meant_or_not_at_all() {
    let upstream = Upstream::start();
    let daemon = Daemon::with_policy(OPEN, Some(&upstream));
    let head =
        "POST /c HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (chunks, body) in [
        ("5;ext=\"a;b\"\r\nhello\r\n0\r\n\r\n", "hello"),
        ("00005\r\nhello\r\n0\r\nTrailer: x\r\n\r\n", "hello"),
        ("1\r\na\r\nA\r\nbcdefghijk\r\n0\r\n\r\n", "abcdefghijk"),
    ] {
        let text = daemon.gateway().raw(format!("{head}{chunks}").as_bytes());
        assert_eq!(statuses(&text), [200], "{chunks:?}: {text}");
        assert_eq!(upstream.last().body, body.as_bytes(), "{chunks:?}");
        assert_eq!(upstream.last().header("trailer"), None);
    }
    let before = upstream.count();
    for chunks in [
        "zz\r\nhello\r\n0\r\n\r\n",
        "-5\r\nhello\r\n0\r\n\r\n",
        "5\r\nhelloX\r\n0\r\n\r\n",
        "5\nhello\n0\n\n",
        "5 5\r\nhello\r\n0\r\n\r\n",
        "FFFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "5;\nGET /smuggled HTTP/1.1\r\nhello\r\n0\r\n\r\n",
    ] {
        let text = daemon.gateway().raw(format!("{head}{chunks}{SMUGGLED}").as_bytes());
        assert!(matches!(statuses(&text)[..], [] | [400]), "{chunks:?}: {text}");
    }
    // A body that breaks off in its middle never makes a whole request.
    assert_eq!(upstream.count(), before, "{:?}", upstream.seen());
}

#[test]
fn odd_requests_that_mean_one_thing_are_forwarded_as_that() {
    let upstream = Upstream::start();
    let daemon = Daemon::with_policy(OPEN, Some(&upstream));
    let send = |text: &str| {
        let before = upstream.count();
        let answer = daemon.gateway().raw(text.as_bytes());
        assert_eq!(statuses(&answer), [200], "{text:?}: {answer}");
        assert_eq!(upstream.count(), before + 1, "{text:?}");
        upstream.last()
    };
    let close = "Host: a\r\nConnection: close\r\n";
    assert_eq!(send(&format!("get / HTTP/1.1\r\n{close}\r\n")).line, "get / HTTP/1.1");
    assert_eq!(send("GET /old HTTP/1.0\r\n\r\n").line, "GET /old HTTP/1.1");
    let seen = send(&format!(
        "POST / HTTP/1.1\r\n{close}Connection: Host, Content-Length, X-Forwarded-For, X-Hop\r\nX-Hop: 1\r\nContent-Length: 2\r\n\r\nab"
    ));
    assert_eq!((seen.header("host"), &seen.body[..]), (Some("a"), &b"ab"[..]));
    assert_eq!((seen.header("x-forwarded-for"), seen.header("x-hop")), (Some("127.0.0.1"), None));
    let seen = send(&format!(
        "GET / HTTP/1.1\r\n{close}Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
    ));
    assert_eq!((seen.header("upgrade"), seen.header("http2-settings")), (None, None));
    let seen = send(&format!(
        "POST / HTTP/1.1\r\n{close}Content-Length: 2\r\nContent-Length: 2\r\n\r\nab"
    ));
    let lengths = seen.headers.iter().filter(|(name, _)| name == "content-length").count();
    assert_eq!((lengths, &seen.body[..]), (1, &b"ab"[..]));
    let lines = "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n";
    let text = format!("POST / HTTP/1.1\r\n{close}{lines}\r\n0\r\n\r\n{SMUGGLED}");
    let answer = daemon.gateway().raw(text.as_bytes());
    assert_eq!(statuses(&answer).len(), 1, "{answer}");
    assert!(upstream.seen().iter().all(|seen| !seen.line.contains("smuggled")));
}

/// A byte every now and then, until the other side closes; what it said before.
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
        let text = client.raw(head.as_bytes());
        assert_eq!(statuses(&text), [408], "{text}");
    }
    // The body of a call is small, so that a byte at a time is no way to send it.
    assert_eq!(statuses(&drip(&daemon.api(), head, Duration::from_millis(20))), [408]);
    assert_eq!(upstream.seen().iter().filter(|seen| seen.line.starts_with("POST")).count(), 0);
}

/// An answer that is far larger than what sockets hold.
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

/// The start of HTTP/2, with windows of nothing, and a GET on stream 1.
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
fn a_reader_who_grants_no_window_is_let_go_and_frees_its_place() {
    let upstream = endless();
    let policy = "{ tidegate: 1, name: one, limits: { one: { by: ip, concurrency: 1 } } }";
    let daemon = Daemon::with_policy_and(policy, Some(&upstream), &["--body-timeout", "400ms"]);
    let mut reader = daemon.gateway().connect();
    reader.socket.write_all(&http2_without_a_window()).unwrap();
    eventually("the upstream's request", || upstream.count() == 1);
    assert_eq!(daemon.gateway().get("/").status, 429);
    eventually("the place of one who takes nothing", || {
        // It says something all the time, and takes nothing.
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
        // Whoever does this is likely to be cut off.
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
