//! Bodies that the policy reads: readable ones are counted, and all bytes are forwarded unchanged.

use std::io::{Read as _, Write as _};

use crate::support::{Connection, Daemon, Upstream};

const EMAIL: &str = "
tidegate: 1
name: email
identity: { attributes: { email: { body: /email } } }
limits: { email: { by: email, total: 1 } }
";
const COST: &str = "
tidegate: 1
name: cost
identity: { attributes: { tokens: { body: /tokens } } }
limits: { tokens: { by: ip, total: 100, cost: tokens } }
";
/// The same body as JSON with gzip: `{"email":"a@b.c"}`.
const GZIPPED: &[u8] = &[
    0x1f, 0x8b, 0x08, 0, 0, 0, 0, 0, 0x02, 0xff, 0xab, 0x56, 0x4a, 0xcd, 0x4d, 0xcc, 0xcc, 0x51,
    0xb2, 0x52, 0x4a, 0x74, 0x48, 0xd2, 0x4b, 0x56, 0xaa, 0x05, 0,
];

fn head(lines: &str) -> String {
    format!(
        "POST /login HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\n{lines}\r\n"
    )
}

fn sized(lines: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = head(&format!("{lines}Content-Length: {}\r\n", body.len())).into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

fn chunked(lines: &str, body: &[u8], size: usize) -> Vec<u8> {
    let mut bytes = head(&format!("{lines}Transfer-Encoding: chunked\r\n")).into_bytes();
    for chunk in body.chunks(size) {
        bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}

/// A JSON body of this length.
fn json_of(bytes: usize) -> Vec<u8> {
    let mut body = br#"{"email":"a@b.c","pad":""#.to_vec();
    body.resize(bytes - 2, b'x');
    body.extend_from_slice(b"\"}");
    body
}

fn status(answer: &str) -> &str {
    answer.get(9..12).unwrap_or(answer)
}

#[test]
fn an_attribute_of_a_body_is_counted_and_the_body_is_forwarded_byte_for_byte() {
    let largest = json_of(64 * 1024);
    let bodies: [&[u8]; 3] = [
        br#"{"email":"a@b.c"}"#,
        b" {\"x\":[1,\"\\u00e9\"],\r\n\"email\" : \"a@b.c\" } \n",
        &largest,
    ];
    for body in bodies {
        for bytes in [sized("", body), chunked("", body, 7), chunked("", body, 60_000)] {
            let upstream = Upstream::start();
            let daemon = Daemon::with_policy(EMAIL, Some(&upstream));
            let text = daemon.gateway().raw(&bytes);
            assert_eq!(status(&text), "200", "{text}");
            assert!(upstream.last().body == body, "changed on the way");
            assert_eq!(status(&daemon.gateway().raw(&bytes)), "429");
            assert_eq!(upstream.count(), 1);
        }
    }
}

#[test]
fn an_unreadable_body_is_counted_by_its_reason_and_forwarded_byte_for_byte() {
    let upstream = Upstream::start();
    let roomy = EMAIL.replace("total: 1", "total: 100");
    let daemon = Daemon::with_policy(&roomy, Some(&upstream));
    let too_large = json_of(64 * 1024 + 1);
    let huge = json_of(3_000_000);
    for (name, lines, body) in [
        ("gzipped", "Content-Encoding: gzip\r\n", GZIPPED),
        ("no JSON", "", b"email=a@b.c&\xff\0"),
        ("JSON and more", "", br#"{"email":"a@b.c"} {"email":"d"}"#),
        ("cut off", "", br#"{"email":"a@b"#),
        ("another shape", "", br#"["email"]"#),
        ("no string", "", br#"{"email":{"a":"b"}}"#),
        ("deep", "", &[b'['; 60_000]),
        ("a byte too large", "", &too_large),
        ("far too large", "", &huge),
        ("empty", "", b""),
    ] {
        for bytes in [sized(lines, body), chunked(lines, body, 5_000)] {
            let before = upstream.count();
            for _ in 0..2 {
                let text = daemon.gateway().raw(&bytes);
                assert_eq!(status(&text), "200", "{name}: {text}");
                assert!(upstream.last().body == body, "{name} was changed on the way");
            }
            assert_eq!(upstream.count(), before + 2, "{name}");
        }
    }
    let metrics = daemon.admin().get("/metrics").text();
    for (reason, times) in
        [("encoding", 4), ("syntax", 16), ("shape", 4), ("size", 8), ("no_type", 0)]
    {
        let line = format!("tidegate_unreadable_bodies_total{{reason=\"{reason}\"}} {times}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    daemon.wait_for_log("event=\"unreadable\" attribute=\"email\" reason=\"encoding\"");
}

#[test]
fn two_types_of_one_body_are_a_400_where_it_is_read() {
    let upstream = Upstream::start();
    let daemon = Daemon::with_policy(EMAIL, Some(&upstream));
    let twice = sized("Content-Type: text/plain\r\n", br#"{"email":"a@b.c"}"#);
    let text = daemon.gateway().raw(&twice);
    assert_eq!(status(&text), "400", "{text}");
    assert!(text.contains("attributes.email"), "{text}");
    assert_eq!(upstream.count(), 0);
    let other = Daemon::with_policy("{ tidegate: 1, name: none }", Some(&upstream));
    assert_eq!(status(&other.gateway().raw(&twice)), "200");
}

#[test]
fn a_cost_that_cannot_be_read_is_a_400_and_nothing_goes_on() {
    let upstream = Upstream::start();
    let daemon = Daemon::with_policy(COST, Some(&upstream));
    for body in [
        &b"no JSON"[..],
        br#"{"email":"a"}"#,
        br#"{"tokens":"many"}"#,
        br#"{"tokens":-1}"#,
        br#"{"tokens":[]}"#,
        b"",
        &json_of(64 * 1024 + 1),
    ] {
        let text = daemon.gateway().raw(&sized("", body));
        assert_eq!(status(&text), "400", "{text}");
        assert!(text.contains("application/problem+json"), "{text}");
    }
    assert_eq!(status(&daemon.gateway().raw(&sized("Content-Encoding: gzip\r\n", GZIPPED))), "400");
    assert_eq!(upstream.count(), 0);
    assert_eq!(status(&daemon.gateway().raw(&sized("", br#"{"tokens":60}"#))), "200");
    assert_eq!(status(&daemon.gateway().raw(&sized("", br#"{"tokens":60}"#))), "429");
    assert_eq!(status(&daemon.gateway().raw(&sized("", br#"{"tokens":40}"#))), "200");
}

#[test]
fn a_client_that_asks_for_leave_gets_it_only_if_its_body_is_wanted() {
    let upstream = Upstream::start();
    let policy = "{ tidegate: 1, name: one, limits: { one: { by: ip, total: 1 } } }";
    for policy in [policy, EMAIL] {
        let daemon = Daemon::with_policy(policy, Some(&upstream));
        let body = br#"{"email":"a@b.c"}"#;
        let head = head(&format!("Expect: 100-continue\r\nContent-Length: {}\r\n", body.len()));
        let mut connection: Connection = daemon.gateway().connect();
        connection.socket.write_all(head.as_bytes()).unwrap();
        let mut leave = [0; 25];
        connection.socket.read_exact(&mut leave).unwrap();
        assert_eq!(&leave, b"HTTP/1.1 100 Continue\r\n\r\n");
        connection.socket.write_all(body).unwrap();
        assert_eq!(connection.answer().status, 200);
        assert_eq!(upstream.last().body, body);
        assert_eq!(upstream.last().header("expect"), None);
    }
    let daemon = Daemon::with_policy(policy, Some(&upstream));
    assert_eq!(daemon.gateway().get("/").status, 200);
    let text =
        daemon.gateway().raw(head("Expect: 100-continue\r\nContent-Length: 5\r\n").as_bytes());
    assert_eq!(status(&text), "429", "refused before its body: {text}");
}
