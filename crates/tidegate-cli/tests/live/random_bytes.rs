//! A storm of random bytes: nothing breaks, and nothing leaks.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use crate::support::{Daemon, Upstream, eventually};

const POLICY: &str = "
tidegate: 1
name: storm
identity: { attributes: { email: { body: /email }, key: { header: X-Key } } }
operations: { login: POST /login, item: 'GET /items/{id}' }
limits:
  email: { when: login, by: email, sliding_window: 5/min, counts: failures }
  key:   { by: key, token_bucket: 100/s }
  place: { by: ip, concurrency: 100 }
";
const SEED: u64 = 20_240_229;
const THREADS: usize = 4;
const ROUNDS: usize = 2_500;

const SAMPLES: [&str; 9] = [
    "GET /items/7?a=b HTTP/1.1\r\nHost: localhost\r\nX-Key: k\r\n\r\n",
    "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 17\r\n\r\n{\"email\":\"a@b.c\"}",
    "POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Length: 40\r\n\r\n{\"user\":\"u\",\"path\":\"/a\",\"cost\":\"1.5\"}   ",
    "POST /v1/check/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: 26\r\n\r\n[{\"ip\":\"::1\"},{\"user\":1}] ",
    "GET /admin/v1/status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n\r\n",
    "GET /metrics HTTP/1.0\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0\0\0\u{4}\u{1}\u{5}\0\0\0\u{1}abcd",
];

/// Random bytes, or a request with a few bytes changed, removed, repeated or spliced.
fn shot(random: &mut fastrand::Rng) -> Vec<u8> {
    if random.u8(..4) == 0 {
        return (0..random.usize(..2_000)).map(|_| random.u8(..)).collect();
    }
    let mut bytes = SAMPLES[random.usize(..SAMPLES.len())].as_bytes().to_vec();
    for _ in 0..random.usize(..6) {
        let at = random.usize(..bytes.len());
        match random.u8(..6) {
            0 => bytes[at] = random.u8(..),
            1 => drop(bytes.remove(at)),
            2 => bytes.insert(at, b"\r\n\0 :;,%/\\\xff"[random.usize(..11)]),
            3 => bytes.truncate(at.max(1)),
            4 => {
                let piece = bytes[at..].to_vec();
                bytes.extend_from_slice(&piece);
            }
            _ => {
                let other = SAMPLES[random.usize(..SAMPLES.len())].as_bytes();
                bytes.splice(at..at, other[..random.usize(..other.len())].iter().copied());
            }
        }
        if bytes.is_empty() {
            bytes.push(b'G');
        }
    }
    bytes
}

fn fire(address: SocketAddr, bytes: &[u8], patient: bool) {
    let Ok(mut socket) = TcpStream::connect(address) else { panic!("nobody listens") };
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let _ = socket.write_all(bytes);
    if patient {
        let _ = socket.shutdown(Shutdown::Write);
        let _ = socket.read_to_end(&mut Vec::new());
    }
}

fn resident_kb(daemon: &Daemon) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn random_and_mutated_requests_break_nothing() {
    let upstream = Upstream::start();
    let bounds = ["--header-timeout", "500ms", "--body-timeout", "500ms", "--log-level", "error"];
    let daemon = Daemon::with_policy_and(POLICY, Some(&upstream), &bounds);
    let before_kb = resident_kb(&daemon);
    let addresses = ["gateway", "api", "admin"].map(|name| daemon.address(name));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(SEED + u64::try_from(thread).unwrap());
                for round in 0..ROUNDS {
                    let bytes = shot(&mut random);
                    fire(addresses[round % 3], &bytes, random.u8(..4) > 0);
                }
            });
        }
    });
    assert_eq!(daemon.gateway().send("GET", "/", &[("X-Key", "another")], None).status, 200);
    assert_eq!(daemon.api().get("/ready").status, 200);
    assert_eq!(daemon.admin().get("/admin/v1/status").status, 200);
    eventually("the end of all connections and places", || {
        let metrics = daemon.admin().get("/metrics").text();
        let open = |name: &str| {
            let line = format!("tidegate_open_connections{{listener=\"{name}\"}} ");
            metrics.lines().find_map(|found| found.strip_prefix(line.as_str())).map(str::to_owned)
        };
        open("gateway").as_deref() == Some("0") && open("api").as_deref() == Some("0")
    });
    let grown_kb = resident_kb(&daemon).saturating_sub(before_kb);
    println!("{} connections: {grown_kb} kB more than before", THREADS * ROUNDS);
    assert!(grown_kb < 100_000, "{grown_kb} kB");
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
}
