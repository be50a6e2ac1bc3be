//! Answers that are given before the body of their request is read. They reach Debian's curl, which loses
//! the answer of an HTTP/2 stream that is reset, and clients who write all before they read.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::support::{Daemon, Upstream, now};
use crate::tls::Files;

const SIZES: [usize; 4] = [3, 100_000, 200_000, 2_000_000];
/// As many bytes as are thrown away of one body.
const DISCARDED_MAX: usize = 4 << 20;
/// Frames of HTTP/2, and their flags.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const BLOCKED: &str = "{ tidegate: 1, name: blocked, block: { ips: [127.0.0.0/8] } }";
const CHALLENGED: &str = "
tidegate: 1
name: challenged
challenge: { kind: proof_of_work, difficulty: 10, pass: 1h }
limits: { once: { by: ip, total: 1, exceed: challenge } }
";
const ALLOWED: &str = "{ tidegate: 1, name: allowed }";

/// The daemon's certificate and bodies of several sizes.
struct Scene {
    files: Files,
}

impl Scene {
    fn new() -> Self {
        let files = Files::new();
        for size in SIZES {
            std::fs::write(files.path(&size.to_string()), vec![b'x'; size]).unwrap();
        }
        Self { files }
    }

    fn path(&self, name: &str) -> String {
        self.files.path(name).to_str().unwrap().to_owned()
    }

    /// Posts bodies of every size, each from a curl of its own, and expects the same status for each.
    fn posts(
        &self,
        daemon: &Daemon,
        target: (&str, &str),
        curl: &[&str],
        times: usize,
        status: &str,
    ) {
        let (listener, path) = target;
        let url = format!("https://localhost:{}{path}", daemon.address(listener).port());
        let authority = self.path("cert.pem");
        for size in SIZES {
            let body = format!("@{}", self.path(&size.to_string()));
            for _ in 0..times {
                let mut command = Command::new("curl");
                command.args([
                    "-sS",
                    "-o",
                    "/dev/null",
                    "-w",
                    "%{http_code}",
                    "--cacert",
                    &authority,
                ]);
                let ran = command.args(["--data-binary", &body, &url]).args(curl).output().unwrap();
                let said = String::from_utf8_lossy(&ran.stdout).into_owned();
                let error = String::from_utf8_lossy(&ran.stderr);
                assert_eq!(said, status, "{url} {curl:?}, {size} bytes: {error}\n{}", daemon.log());
            }
        }
    }
}

#[test]
fn a_refusal_reaches_curl_whatever_it_still_sends() {
    let scene = Scene::new();
    let daemon = scene.files.public_daemon(BLOCKED, "http://127.0.0.1:9");
    scene.posts(&daemon, ("gateway", "/"), &["--http2"], 20, "403");
    scene.posts(&daemon, ("gateway", "/"), &["--http1.1"], 8, "403");
    scene.posts(&daemon, ("gateway", "/"), &["--http1.1", "-H", "Expect:"], 8, "403");
    scene.posts(&daemon, ("gateway", "/%ff%0"), &["--http2"], 3, "400");
}

#[test]
fn a_challenge_reaches_curl_whatever_it_still_sends() {
    let (scene, upstream) = (Scene::new(), Upstream::start());
    let daemon = scene.files.public_daemon(CHALLENGED, &upstream.url());
    scene.posts(&daemon, ("gateway", "/.well-known/tidegate/challenge"), &["--http2"], 2, "415");
    let url = format!("https://localhost:{}/", daemon.address("gateway").port());
    let authority = scene.path("cert.pem");
    let status = Command::new("curl")
        .args(["-sS", "-o", "/dev/null", "--cacert", &authority, &url])
        .status();
    assert!(status.unwrap().success(), "the only one that is not challenged");
    scene.posts(&daemon, ("gateway", "/"), &["--http2", "-H", "Accept: text/html"], 4, "403");
}

#[test]
fn the_api_and_the_admin_listener_answer_curl_whatever_it_still_sends() {
    let scene = Scene::new();
    let daemon = scene.files.public_daemon(ALLOWED, "http://127.0.0.1:9");
    let http2 = &["--http2"][..];
    scene.posts(&daemon, ("api", "/v1/check"), http2, 4, "401");
    scene.posts(&daemon, ("admin", "/admin/v1/bans"), http2, 4, "401");
    scene.posts(
        &daemon,
        ("api", "/none"),
        &["--http2", "-H", "Authorization: Bearer one"],
        2,
        "404",
    );
    // The upstream cannot be reached.
    scene.posts(&daemon, ("gateway", "/"), http2, 2, "502");
}

#[test]
fn an_upstream_that_answers_before_it_has_the_body_is_heard() {
    let scene = Scene::new();
    let upstream = refusing_upstream();
    let daemon = scene.files.public_daemon(ALLOWED, &upstream);
    scene.posts(&daemon, ("gateway", "/"), &["--http2"], 5, "413");
    scene.posts(&daemon, ("gateway", "/"), &["--http1.1"], 2, "413");
}

#[test]
fn the_answer_of_an_upstream_does_not_wait_for_a_slow_body() {
    let upstream = refusing_upstream();
    let policy = "{ tidegate: 1, name: one, limits: { one: { by: ip, concurrency: 1 } } }";
    let arguments = ["--gateway", "127.0.0.1:0", "--upstream", &upstream];
    let daemon = Daemon::with_policy_and(policy, None, &arguments);
    let started = now();
    for _ in 0..8 {
        // The place of the last one is free, although its body never came.
        let mut slow = daemon.gateway().connect();
        let start = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc";
        slow.socket.write_all(start).unwrap();
        assert_eq!(slow.answer().status, 413);
    }
    let took = started.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}, where each could wait two seconds");
}

/// The URL of a service that refuses every request once it has the head.
fn refusing_upstream() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || refuse_by_head(socket));
        }
    });
    url
}

/// Reads a head, answers, and reads on until the other side closes.
fn refuse_by_head(mut socket: TcpStream) {
    let head = BufReader::new(socket.try_clone().unwrap()).lines();
    head.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
    let answer = b"HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nlong";
    let _ = socket.write_all(answer).and_then(|()| socket.shutdown(Shutdown::Write));
    let _ = std::io::copy(&mut socket, &mut std::io::sink());
}

#[test]
fn a_client_that_writes_before_it_reads_is_answered_and_the_connection_closes() {
    let upstream = Upstream::start();
    let daemon = Daemon::with_policy(BLOCKED, Some(&upstream));
    let listeners = [(daemon.gateway(), "403"), (daemon.api(), "413"), (daemon.admin(), "405")];
    for (client, status) in listeners {
        for _ in 0..5 {
            let mut connection = client.connect();
            let target = if status == "413" { "/v1/check" } else { "/admin/v1/status" };
            let length = 10 * DISCARDED_MAX;
            let head = format!(
                "POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
            );
            connection.socket.write_all(head.as_bytes()).unwrap();
            connection.socket.write_all(&vec![b'x'; DISCARDED_MAX / 2]).unwrap();
            let mut text = String::new();
            connection.socket.read_to_string(&mut text).unwrap();
            assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{text}");
            assert!(text.to_ascii_lowercase().contains("connection: close\r\n"), "{text}");
        }
    }
    assert_eq!(upstream.count(), 0);
}

#[test]
fn a_connection_whose_refused_body_was_thrown_away_serves_the_next_request() {
    let upstream = Upstream::start();
    let daemon = Daemon::with_policy(BLOCKED, Some(&upstream));
    let mut connection = daemon.gateway().connect();
    let body = "x".repeat(1_000_000);
    for _ in 0..3 {
        connection.request("POST", "/", &[], Some(&body));
        assert_eq!(connection.answer().status, 403);
    }
}

#[test]
fn a_body_that_does_not_come_holds_up_its_own_answer_for_two_seconds_and_nobody_else() {
    let daemon = Daemon::with_policy_and(
        "{ tidegate: 1, name: one, limits: { one: { by: ip, concurrency: 1 } } }",
        None,
        &["--gateway", "127.0.0.1:0", "--upstream", "http://127.0.0.1:9"],
    );
    let mut slow = daemon.gateway().connect();
    let started = now();
    slow.socket.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc").unwrap();
    daemon.wait_for_log("upstream_unreachable");
    // Its place is free although its body is still awaited.
    let other = daemon.gateway().get("/");
    assert_eq!((other.status, started.elapsed() < Duration::from_secs(2)), (502, true));
    let answer = slow.answer();
    assert_eq!((answer.status, answer.header("connection")), (502, Some("close")));
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(1900) && took < Duration::from_secs(15), "{took:?}");
    assert!(slow.is_closed());
}

#[test]
fn an_http_2_stream_with_more_than_that_is_answered_and_reset_without_an_error() {
    let upstream = Upstream::start();
    let daemon = Daemon::with_policy(BLOCKED, Some(&upstream));
    let mut socket = daemon.gateway().connect().socket;
    // POST, http, /, the authority `a`, and a length of 9999999.
    let head = b"\x83\x86\x84\x41\x01a\x0f\x0d\x079999999";
    let length = u8::try_from(head.len()).unwrap();
    socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    socket.write_all(b"\0\0\0\x04\0\0\0\0\0").unwrap();
    socket.write_all(&[0, 0, length, HEADERS, END_HEADERS, 0, 0, 0, 1]).unwrap();
    socket.write_all(head).unwrap();
    let (mut has_ended, mut answer) = (false, Vec::new());
    loop {
        let mut frame = [0; 9];
        socket.read_exact(&mut frame).unwrap();
        let mut payload = vec![0; usize::from(frame[1]) << 8 | usize::from(frame[2])];
        socket.read_exact(&mut payload).unwrap();
        match frame[3] {
            DATA | HEADERS => has_ended |= frame[4] & END_STREAM > 0,
            RST_STREAM => break assert_eq!(payload, [0; 4], "no error"),
            _ => continue,
        }
        answer.extend(payload);
    }
    assert!(has_ended && String::from_utf8_lossy(&answer).contains("Forbidden"));
}
