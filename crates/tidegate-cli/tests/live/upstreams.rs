//! Upstreams that are down, slow, broken or rude: the client gets an answer, places are released, and
//! charges are settled.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tidegate_testkit::servers::free_port;

use crate::support::{Answer, Connection, Daemon, Reply, Upstream, eventually};

const OPEN: &str = "{ tidegate: 1, name: open }";
/// One place for all clients, and at most a thousand counted failures.
const COUNTED: &str = "
tidegate: 1
name: counted
limits:
  place:    { by: ip, concurrency: 1 }
  failures: { by: ip, total: 1_000, counts: failures }
response: { headers: ietf }
";

fn raw(text: &str) -> Reply {
    Reply::Raw(text.as_bytes().to_vec())
}

/// Sends bytes and hangs up.
fn last_words(text: &'static str) -> Reply {
    Reply::Take(Box::new(move |mut socket: TcpStream| {
        let _ = socket.write_all(text.as_bytes());
    }))
}

fn by_path(path: &str) -> Reply {
    match path {
        "/closes" => Reply::Close,
        "/garbage" => raw("SSH-2.0-OpenSSH_9.2\r\n\r\n"),
        "/half-head" => last_words("HTTP/1.1 200 OK\r\nContent-Le"),
        "/half-body" => last_words("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"),
        "/half-chunk" => {
            last_words("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\nhalf")
        }
        "/no-last-chunk" => {
            last_words("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
        }
        "/both" => raw("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc"),
        "/huge-head" => raw(&format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(1_000_000))),
        "/many-lines" => raw(&format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(5_000))),
        "/switches" => raw("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"),
        "/401" => Reply::Answer(401, "who?".to_owned()),
        "/slow" => Reply::Take(Box::new(|mut socket| drop(socket.read(&mut [0])))),
        "/silent" => Reply::Take(Box::new(|mut socket: TcpStream| {
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
            drop(socket.read(&mut [0]));
        })),
        _ => Reply::Answer(200, "fine\n".to_owned()),
    }
}

fn rude() -> Upstream {
    Upstream::replying(|seen| by_path(seen.line.split(' ').nth(1).unwrap()))
}

fn ask(daemon: &Daemon, path: &str) -> Option<Answer> {
    let mut connection = daemon.gateway().connect();
    connection.request("GET", path, &[], None);
    connection.try_answer()
}

/// How many failures were counted, once the place is free.
fn failures(daemon: &Daemon) -> Option<u64> {
    let check = daemon.check(&serde_json::json!({ "ip": "127.0.0.1" })).json();
    if check["allowed"] == false {
        assert_eq!(check["limit"], "place", "{check}");
        return None;
    }
    let remaining = check["limits"][1]["remaining"].as_u64().unwrap();
    let settled = serde_json::json!({ "lease": check["lease"], "status": 200 }).to_string();
    assert_eq!(daemon.api().post("/v1/settle", &settled).status, 200);
    let released = serde_json::json!({ "lease": check["lease"] }).to_string();
    assert_eq!(daemon.api().post("/v1/release", &released).status, 200);
    // The check itself counts until it is settled.
    Some(999 - remaining)
}

#[test]
fn every_way_to_fail_is_told_settled_as_a_failure_and_frees_its_place() {
    let upstream = rude();
    for (path, status) in [
        ("/closes", Some(502)),
        ("/garbage", Some(502)),
        ("/half-head", Some(502)),
        ("/both", Some(502)),
        ("/huge-head", Some(502)),
        ("/many-lines", Some(502)),
        ("/switches", Some(502)),
        ("/slow", Some(504)),
        ("/401", Some(401)),
        ("/half-body", None),
        ("/half-chunk", None),
        ("/no-last-chunk", None),
        ("/silent", None),
    ] {
        let bounds = ["--upstream-timeout", "300ms", "--body-timeout", "300ms"];
        let daemon = Daemon::with_policy_and(COUNTED, Some(&upstream), &bounds);
        let answer = ask(&daemon, path);
        assert_eq!(answer.as_ref().map(|answer| answer.status), status, "{path}: {answer:?}");
        if let Some(answer) = answer.filter(|answer| answer.status >= 500) {
            assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{path}");
            assert!(answer.header("ratelimit").is_some(), "{path}: {answer:?}");
        }
        eventually(&format!("the place behind {path}"), || {
            ask(&daemon, "/fine").is_some_and(|answer| answer.status == 200)
        });
        eventually(&format!("{path}, settled"), || failures(&daemon) == Some(1));
    }
}

#[test]
fn an_upstream_that_is_down_is_a_502_and_served_again_once_it_is_back() {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
    let url = format!("http://{address}");
    let mut command = Daemon::command();
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.yaml");
    std::fs::write(&policy, COUNTED).unwrap();
    command.arg(&policy).args(["--gateway", "127.0.0.1:0", "--upstream", &url]);
    let daemon = Daemon::start(&mut command);
    for _ in 0..2 {
        let answer = ask(&daemon, "/").unwrap();
        assert_eq!(answer.status, 502);
        assert_eq!(answer.json()["status"], 502);
    }
    eventually("what was counted", || failures(&daemon) == Some(2));
    let listener = TcpListener::bind(address).unwrap();
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let _ = socket.read(&mut [0; 1024]);
        socket.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    });
    assert_eq!(ask(&daemon, "/").unwrap().status, 204);
}

#[test]
fn answers_without_a_body_and_answers_before_the_answer_keep_the_connection_in_step() {
    let upstream = Upstream::replying(|seen| match seen.line.split(' ').nth(1).unwrap() {
        "/early" => raw(
            "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        ),
        "/204" => raw("HTTP/1.1 204 No Content\r\n\r\n"),
        "/304" => raw("HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nContent-Length: 99\r\n\r\n"),
        "/head" => raw("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"),
        _ => Reply::Answer(200, "fine".to_owned()),
    });
    let daemon = Daemon::with_policy(OPEN, Some(&upstream));
    let mut connection: Connection = daemon.gateway().connect();
    for (method, path, status, body) in [
        ("GET", "/early", 200, "ok"),
        ("GET", "/204", 204, ""),
        ("GET", "/304", 304, ""),
        ("GET", "/fine", 200, "fine"),
    ] {
        connection.request(method, path, &[], None);
        let answer = connection.answer();
        assert_eq!((answer.status, answer.text().as_str()), (status, body), "{path}");
    }
    // The test's reader expects a body, so this compares the raw bytes.
    connection.request("HEAD", "/head", &[], None);
    connection.request("GET", "/fine", &[("Connection", "close")], None);
    let mut text = String::new();
    connection.socket.read_to_string(&mut text).unwrap();
    let head = text.split("\r\n\r\n").next().unwrap();
    assert!(head.contains("content-length: 99"), "{text}");
    assert!(text.ends_with("\r\n\r\nfine") && text.matches("HTTP/1.1 200").count() == 2, "{text}");
}

#[test]
fn connections_that_the_upstream_closes_between_requests_are_not_the_clients_trouble() {
    let upstream = Upstream::replying(|_| {
        Reply::Take(Box::new(|mut socket: TcpStream| {
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }))
    });
    let daemon = Daemon::with_policy(OPEN, Some(&upstream));
    let mut connection = daemon.gateway().connect();
    for _ in 0..200 {
        connection.request("GET", "/", &[], None);
        assert_eq!(connection.answer().status, 200);
    }
    assert_eq!(upstream.count(), 200);
}

#[test]
fn a_kept_connection_that_ends_with_a_request_on_it_is_tried_again_only_where_that_is_safe() {
    let taken: Arc<AtomicUsize> = Arc::default();
    let count = Arc::clone(&taken);
    let upstream = Upstream::replying(move |_| {
        let count = Arc::clone(&count);
        Reply::Take(Box::new(move |mut socket: TcpStream| {
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            if socket.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {
                count.fetch_add(1, Ordering::SeqCst);
            }
        }))
    });
    let daemon = Daemon::with_policy(OPEN, Some(&upstream));
    let mut connection = daemon.gateway().connect();
    for _ in 0..20 {
        connection.request("GET", "/", &[], None);
        assert_eq!(connection.answer().status, 200);
    }
    assert_eq!(taken.load(Ordering::SeqCst), 19);
    connection.request("POST", "/", &[], Some("body"));
    assert_eq!(connection.answer().status, 502);
    assert_eq!((taken.load(Ordering::SeqCst), upstream.count()), (20, 20));
}

#[test]
fn an_upstream_notices_when_the_client_goes_away() {
    let (writing, gone) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (count, end) = (Arc::clone(&writing), Arc::clone(&gone));
    let upstream = Upstream::replying(move |_| {
        let (count, end) = (Arc::clone(&count), Arc::clone(&end));
        Reply::Take(Box::new(move |mut socket: TcpStream| {
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n");
            while socket.write_all(&[b'x'; 1024]).is_ok() {
                count.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            end.store(true, Ordering::SeqCst);
        }))
    });
    let daemon = Daemon::with_policy(COUNTED, Some(&upstream));
    let mut connection = daemon.gateway().connect();
    connection.request("GET", "/", &[], None);
    let mut start = [0; 4096];
    connection.socket.read_exact(&mut start).unwrap();
    assert_eq!(daemon.gateway().get("/").status, 429, "the place is taken");
    drop(connection);
    eventually("the upstream's end", || gone.load(Ordering::SeqCst));
    assert!(writing.load(Ordering::SeqCst) > 0);
    eventually("the place", || failures(&daemon) == Some(0));
}

#[test]
fn a_client_that_gives_up_before_the_answer_is_a_failure_and_frees_its_place() {
    let upstream = rude();
    let daemon = Daemon::with_policy(COUNTED, Some(&upstream));
    let mut connection = daemon.gateway().connect();
    connection.request("GET", "/slow", &[], None);
    eventually("the upstream's request", || upstream.count() == 1);
    assert_eq!(daemon.gateway().get("/fine").status, 429, "the place is taken");
    drop(connection);
    eventually("the place", || failures(&daemon) == Some(1));
}

#[test]
fn a_place_is_free_again_before_its_answer_has_arrived() {
    let upstream = Upstream::start();
    let daemon = Daemon::with_policy(COUNTED, Some(&upstream));
    let mut connection = daemon.gateway().connect();
    for round in 0..2_000 {
        connection.request("GET", "/", &[], None);
        assert_eq!(connection.answer().status, 200, "{round}");
    }
}
