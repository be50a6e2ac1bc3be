//! Hostile bytes on the socket: an ambiguous request is refused, and a forwarded one is exactly one
//! request.

use crate::support::{Daemon, Upstream};

const OPEN: &str = "{ tidegate: 1, name: open }";
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Heads that are no requests, and the status of the answer.
fn no_requests() -> Vec<(&'static str, String, u16)> {
    let post = |lines: &str| format!("POST /v1/check HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n");
    let body = |lines: &str| format!("{}0\r\n\r\n{SMUGGLED}", post(lines));
    let close = "Connection: close\r\n";
    let many = |count: usize| "X: y\r\n".repeat(count);
    vec![
        ("both lengths", body("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"), 400),
        ("both, reversed", body("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n"), 400),
        ("two lengths", body("Content-Length: 4\r\nContent-Length: 5\r\n"), 400),
        ("two equal lengths", body("Content-Length: 5\r\nContent-Length: 5\r\n"), 400),
        ("a list of lengths", body("Content-Length: 5, 5\r\n"), 400),
        ("a negative length", body("Content-Length: -1\r\n"), 400),
        ("a signed length", body("Content-Length: +5\r\n"), 400),
        ("a hexadecimal length", body("Content-Length: 0x5\r\n"), 400),
        ("a length beyond all", body("Content-Length: 99999999999999999999999\r\n"), 400),
        ("an unknown coding", body("Transfer-Encoding: xchunked\r\n"), 400),
        ("a coding behind chunked", body("Transfer-Encoding: chunked, gzip\r\n"), 400),
        ("chunked twice", body(&"Transfer-Encoding: chunked\r\n".repeat(2)), 400),
        ("chunked, chunked", body("Transfer-Encoding: chunked, chunked\r\n"), 400),
        ("a coding before chunked", body("Transfer-Encoding: gzip, chunked\r\n"), 400),
        ("a coding and a tab", body("Transfer-Encoding:\x0bchunked\r\n"), 400),
        (
            "chunks in HTTP/1.0",
            body("").replace("1.1\r\n", "1.0\r\nTransfer-Encoding: chunked\r\n"),
            400,
        ),
        ("a folded line", body("X: a\r\n b\r\n"), 400),
        ("a first line that is folded", body("").replacen("Host", " Host", 1), 400),
        ("a blank before the colon", body("Content-Length : 4\r\n"), 400),
        ("a bare line feed", body("X: a\nContent-Length: 4\r\n"), 400),
        ("nothing but line feeds", body("").replace("\r\n", "\n"), 400),
        ("a bare carriage return", body("X: a\rContent-Length: 4\r\n"), 400),
        ("a NUL in a value", body("X: a\0b\r\n"), 400),
        ("a NUL in a name", body("X\0: a\r\n"), 400),
        ("no name", body(": a\r\n"), 400),
        ("no colon", body("X\r\n"), 400),
        ("HTTP/0.9", "GET /v1/check\r\n".to_owned(), 400),
        ("HTTP/1.2", body("").replacen("1.1", "1.2", 1), 400),
        ("HTTP/2.0 by name", body("").replacen("1.1", "2.0", 1), 400),
        ("HTTP/9", body("").replacen("/1.1", "/9", 1), 400),
        ("no Host", post(close).replacen("Host: localhost\r\n", "", 1), 400),
        ("two Hosts", post("Host: localhost\r\nConnection: close\r\n"), 400),
        ("an empty method", format!(" {}", body("")), 400),
        ("two blanks", body("").replacen(' ', "  ", 1), 400),
        ("too many lines", post(&many(100)), 431),
        ("a head of more than 64 KiB", post(&format!("X: {}\r\n", "y".repeat(66_000))), 431),
        ("a line of 100 KiB", format!("GET /{} HTTP/1.1\r\n", "a".repeat(100_000)), 431),
        ("garbage", "\u{1}\u{2}\u{3}\r\n\r\n".to_owned(), 400),
        ("TLS", "\u{16}\u{3}\u{1}\0\u{5}hello".to_owned(), 400),
    ]
}

/// The statuses of all answers; none for a close without an answer.
pub(crate) fn statuses(text: &str) -> Vec<u16> {
    let lines = text.split("HTTP/1.").skip(1);
    lines.map(|line| line.get(2..5).and_then(|status| status.parse().ok()).unwrap_or(0)).collect()
}

#[test]
fn malformed_and_smuggled_requests_are_refused_and_never_forwarded() {
    let upstream = Upstream::start();
    let daemon = Daemon::with_policy(OPEN, Some(&upstream));
    for (name, bytes, expected) in no_requests() {
        for (surface, client) in [("gateway", daemon.gateway()), ("api", daemon.api())] {
            let text = client.raw(bytes.as_bytes());
            assert_eq!(statuses(&text), [expected], "{name} on the {surface}: {text}");
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
        assert_eq!(statuses(&text), [400], "{chunks:?}: {text}");
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
    assert!(upstream.seen().iter().all(|seen| !seen.line.contains("smuggled")));
}
