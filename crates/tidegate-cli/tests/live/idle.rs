//! Thousands who say nothing: they cost little, and hold up nobody.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::{Connection, Daemon, Upstream, eventually};

const PLACES: &str = "
tidegate: 1
name: places
identity: { attributes: { who: { header: X-Who } } }
limits: { one: { by: who, concurrency: 1, missing: skip } }
";
/// So many are opened, where the system lets us.
const KEPT: usize = 10_000;
const SOCKETS: usize = 6_000;
/// What the rest of the tests needs.
const SPARE: usize = 2_000;
/// Ten thousand must fit into 500 MB.
const KB_EACH: usize = 50;
/// Written before the first answer is waited for.
const BATCH: usize = 100;

/// Raises our own bound on open files, and says what it is.
fn open_files() -> usize {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let now = getrlimit(Resource::Nofile).current.unwrap_or(1_000_000);
    usize::try_from(now).unwrap_or(usize::MAX)
}

fn resident_kb(daemon: &Daemon) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Opens connections in batches, each with a request that is answered so.
fn open(
    daemon: &Daemon,
    count: usize,
    request: impl Fn(&mut Connection, usize),
    status: u16,
) -> Vec<Connection> {
    let mut all = Vec::with_capacity(count);
    while all.len() < count {
        let first = all.len();
        let mut batch: Vec<Connection> =
            (first..count.min(first + BATCH)).map(|_| daemon.gateway().connect()).collect();
        for (index, connection) in batch.iter_mut().enumerate() {
            request(connection, first + index);
        }
        for connection in &mut batch {
            assert_eq!(connection.answer().status, status);
        }
        all.append(&mut batch);
    }
    all
}

/// What each of them costs, said and checked.
fn weigh(daemon: &Daemon, what: &str, count: usize, before_kb: usize) {
    let after_kb = resident_kb(daemon);
    let grown_kb = after_kb.saturating_sub(before_kb);
    println!(
        "{count} idle {what}: {before_kb} kB before, {after_kb} kB with them, {} bytes each",
        grown_kb * 1024 / count
    );
    assert!(grown_kb < KB_EACH * count, "{grown_kb} kB for {count} {what}");
}

#[test]
fn thousands_of_idle_connections_and_sockets_are_cheap_and_the_daemon_answers() {
    let room = open_files().saturating_sub(SPARE);
    let upstream = Upstream::start();
    let daemon = Daemon::with_policy(PLACES, Some(&upstream));
    let (count, before_kb) = (KEPT.min(room), resident_kb(&daemon));
    let get = |connection: &mut Connection, _| connection.request("GET", "/", &[], None);
    let kept = open(&daemon, count, get, 200);
    weigh(&daemon, "connections", count, before_kb);
    assert_eq!(daemon.gateway().get("/").status, 200);
    assert_eq!(daemon.api().get("/ready").status, 200);
    drop((kept, daemon));

    let (address, _upstream) = switching();
    let daemon = in_front_of(address);
    let (count, before_kb) = (SOCKETS.min(room / 2), resident_kb(&daemon));
    let ask = |connection: &mut Connection, index: usize| {
        let who = index.to_string();
        let headers =
            [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("X-Who", who.as_str())];
        connection.request("GET", "/", &headers, None);
    };
    let sockets = open(&daemon, count, ask, 101);
    weigh(&daemon, "WebSockets", count, before_kb);
    let refused = daemon.gateway().send("GET", "/", &[("X-Who", "0")], None);
    assert_eq!(refused.status, 429, "its place is taken");
    drop(sockets);
    eventually("the places", || {
        let mut connection = daemon.gateway().connect();
        ask(&mut connection, 0);
        connection.answer().status == 101
    });
    assert!(!daemon.log().contains("could not accept"), "{}", daemon.log());
}

/// An upstream that switches protocols and then says nothing, on one thread.
fn switching() -> (SocketAddr, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let mut open: Vec<TcpStream> = Vec::new();
        for mut socket in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(socket.try_clone().unwrap());
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                line.clear();
            }
            let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
            let _ = socket.write_all(head.as_bytes());
            open.push(socket);
        }
    });
    (address, serving)
}

fn in_front_of(upstream: SocketAddr) -> Daemon {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    fs::write(&path, PLACES).unwrap();
    let url = format!("http://{upstream}");
    let mut daemon = Daemon::start(Daemon::command().arg(&path).args([
        "--gateway",
        "127.0.0.1:0",
        "--upstream",
        &url,
    ]));
    daemon.folder = Some(folder);
    daemon
}
