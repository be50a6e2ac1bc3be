//! Thousands of silent connections cost little, and hold up no other client.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::{Connection, Daemon, eventually};

const PLACES: &str = "
tidegate: 1
name: places
identity: { attributes: { who: { header: X-Who } } }
limits: { one: { by: who, concurrency: 1, missing: skip } }
";
/// The memory that this number of connections must fit into.
const EACH: usize = 10_000;
const ALL_KB: usize = 600_000;
/// The open files that the rest of the tests needs.
const SPARE: usize = 2_000;
/// The requests that are written before the first answer is read.
const BATCH: usize = 100;
/// The variable that makes the other process an upstream.
const ROLE: &str = "TIDEGATE_TEST_IDLE_UPSTREAM";

/// Raises this process's limit on open files, and returns it.
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

/// Opens connections in batches, each with a request that gets this answer.
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

/// How many connections a gateway may have on both sides, as docs/operating.md says.
fn both_sides(open_files: usize) -> usize {
    open_files - 64 - open_files / 16 - open_files / 8
}

/// The bytes of each connection, which are also printed.
fn weigh(daemon: &Daemon, what: &str, count: usize, before_kb: usize) -> usize {
    let after_kb = resident_kb(daemon);
    let each = after_kb.saturating_sub(before_kb) * 1024 / count;
    println!(
        "{count} idle {what}: {before_kb} kB before, {after_kb} kB with them, {each} bytes each"
    );
    each
}

/// Ten thousand of each need thirty thousand open files in the daemon. If the system allows fewer, the
/// daemon has all the connections and as many WebSockets as fit beside them, another daemon has as
/// many WebSockets as fit alone, and the cost of each is multiplied.
#[test]
fn ten_thousand_idle_connections_and_websockets_fit_into_600_mb_and_the_daemon_answers() {
    let open_files = open_files();
    let upstream = SwitchedUpstream::start();
    let ours = open_files - SPARE.min(open_files / 2);
    let kept_count = EACH.min(both_sides(open_files) * 2 / 3).min(ours * 2 / 3);
    let beside = EACH.min((both_sides(open_files) - kept_count) / 2).min(ours - kept_count);
    let daemon = in_front_of(upstream.address, beside);
    let empty_kb = warm_kb(&daemon);
    let kept = open(&daemon, kept_count, get, 200);
    let kept_bytes = weigh(&daemon, "connections", kept_count, empty_kb);
    let kept_kb = resident_kb(&daemon);
    let sockets = open(&daemon, beside - 1, ask, 101);
    let beside_bytes = weigh(&daemon, "WebSockets beside them", beside - 1, kept_kb);
    let refused = daemon.gateway().send("GET", "/", &[("X-Who", "0")], None);
    assert_eq!(refused.status, 429, "its place is taken");
    assert_eq!(daemon.gateway().get("/").status, 200);
    assert_eq!(daemon.api().get("/ready").status, 200);
    if kept_count + beside == 2 * EACH {
        assert!(resident_kb(&daemon) < ALL_KB);
    }
    drop((kept, sockets));
    eventually("the places", || {
        let mut connection = daemon.gateway().connect();
        ask(&mut connection, 0);
        connection.answer().status == 101
    });
    assert!(!daemon.log().contains("could not accept"), "{}", daemon.log());
    drop(daemon);

    let alone = EACH.min(both_sides(open_files) / 2).min(ours);
    let daemon = in_front_of(upstream.address, alone);
    let before_kb = warm_kb(&daemon);
    let sockets = open(&daemon, alone, ask, 101);
    let alone_bytes = weigh(&daemon, "WebSockets", alone, before_kb);
    drop(sockets);
    let all_kb = empty_kb + EACH * (kept_bytes + beside_bytes.max(alone_bytes)) / 1024;
    println!("{EACH} idle connections and {EACH} idle WebSockets: {all_kb} kB");
    assert!(all_kb < ALL_KB, "{all_kb} kB");
}

/// The daemon's memory after a few requests: one-time allocations are no part of the cost of each.
fn warm_kb(daemon: &Daemon) -> usize {
    drop(open(daemon, BATCH, get, 200));
    drop(open(daemon, BATCH, |connection, index| ask(connection, EACH + index), 101));
    resident_kb(daemon)
}

fn get(connection: &mut Connection, _: usize) {
    connection.request("GET", "/", &[], None);
}

/// Asks for a WebSocket of one's own.
fn ask(connection: &mut Connection, index: usize) {
    let who = index.to_string();
    let headers = [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("X-Who", who.as_str())];
    connection.request("GET", "/", &headers, None);
}

/// An upstream that switches protocols and then is silent, in a process of its own: its sockets do
/// not count as this process's open files.
struct SwitchedUpstream {
    address: SocketAddr,
    process: Child,
}

impl SwitchedUpstream {
    fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "idle::an_upstream_for_the_idle", "--ignored", "--nocapture"]);
        let streams = command.env(ROLE, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = streams.stderr(Stdio::null()).spawn().unwrap();
        let told = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut told =
            told.filter_map(|line| line.strip_prefix("at ").and_then(|at| at.parse().ok()));
        Self { address: told.next().unwrap(), process }
    }
}

impl Drop for SwitchedUpstream {
    fn drop(&mut self) {
        // The process ends when its standard input is closed.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn an_upstream_for_the_idle() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    open_files();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("\nat {}", listener.local_addr().unwrap());
    thread::spawn(move || {
        let mut open: Vec<TcpStream> = Vec::new();
        for mut socket in listener.incoming().map_while(Result::ok) {
            let mut head = String::new();
            let mut reader = BufReader::new(&socket);
            while reader.read_line(&mut head).is_ok_and(|read| read > 2) {}
            if head.contains("websocket") {
                let _ = socket.write_all(b"HTTP/1.1 101 SwitchedUpstream Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
                open.push(socket);
            } else {
                let _ = socket.write_all(
                    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
                );
            }
        }
    });
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn in_front_of(upstream: SocketAddr, upstream_connections: usize) -> Daemon {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    fs::write(&path, PLACES).unwrap();
    let mut command = Daemon::command();
    command.arg(&path).args([
        "--gateway",
        "127.0.0.1:0",
        "--upstream",
        &format!("http://{upstream}"),
    ]);
    // The first connections must stay until the last are open, and the upstream never closes: upstream
    // connections come free only after a while.
    command.args(["--idle-timeout", "10min", "--connect-timeout", "30s"]);
    command.args(["--max-upstream-connections", &upstream_connections.to_string()]);
    let mut daemon = Daemon::start(&mut command);
    daemon.folder = Some(folder);
    daemon
}
