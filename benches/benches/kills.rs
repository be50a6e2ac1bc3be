//! The loss by a kill. A daemon with a state directory decides a million keys of four kinds, each once
//! under a limit of one, and is killed on the way. Started again, it refuses every key that it knows. An
//! admitted key was lost, and its answer must be from the last second before the kill.
//!
//! `cargo bench -p tidegate-benches --bench kills`

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark may stop at the first surprise, and prints"
)]

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use tidegate_benches::daemon::{Daemon, built};
use tidegate_benches::load::now;

const POLICY: &str = "
tidegate: 1
name: bench
operations: { a: 'POST /a', b: 'POST /b', c: 'POST /c', d: 'POST /d' }
limits:
  total:  { when: a, by: user, total: 1 }
  quota:  { when: b, by: user, quota: 1/month }
  window: { when: c, by: user, fixed_window: 1/999day }
  bucket: { when: d, by: user, token_bucket: 1/999day }
";
const PATHS: [char; 4] = ['a', 'b', 'c', 'd'];
const KEYS: usize = 1_000_000;
const BATCH: usize = 1_000;
const CLIENTS: usize = 2;
/// The numbers of batches before the kill: nearer to a snapshot or farther from it.
const KILLED_AFTER: [usize; 7] = [400, 500, 600, 700, 800, 900, 980];
const MOST: Duration = Duration::from_secs(1);

fn main() {
    let (tidegate, folder) = (built(), tempfile::tempdir().unwrap());
    let mut oldest = Duration::ZERO;
    println!("\nkill -9 while a million keys of quotas, totals, windows and buckets are charged");
    for batches in KILLED_AFTER {
        let lost = lost(&tidegate, folder.path(), batches);
        println!("  behind {batches:>3} thousand keys: lost what was answered {lost:.0?} before");
        oldest = oldest.max(lost);
    }
    let met = if oldest <= MOST { "met" } else { "MISSED" };
    println!("  oldest answer that was lost: {oldest:.0?} (most: {MOST:?}) {met}");
}

/// The time between the answer of the oldest lost key and the kill.
fn lost(tidegate: &Path, folder: &Path, batches: usize) -> Duration {
    let state = folder.join(format!("state-{batches}"));
    let arguments = ["--state-dir", state.to_str().unwrap(), "--max-keys", "2000000"];
    let mut daemon = Daemon::start(tidegate, folder, POLICY, &arguments);
    let (answered, killed) = kill_behind(&mut daemon, batches);
    let again = Daemon::start(tidegate, folder, POLICY, &arguments);
    let is_lost = |batch: usize| allowed(&ask(again.api, batch).unwrap()) > 0;
    let lost = answered.into_iter().filter(|(batch, _)| is_lost(*batch));
    lost.map(|(_, at)| killed - at).max().unwrap_or_default()
}

/// Sends batches, and kills after a number of them. Returns the answered batches and their times.
fn kill_behind(daemon: &mut Daemon, batches: usize) -> (Vec<(usize, Instant)>, Instant) {
    let (api, next) = (daemon.api, AtomicUsize::new(0));
    let (reached, told) = channel();
    let spend = || {
        let mut answered = Vec::new();
        loop {
            let batch = next.fetch_add(1, Ordering::Relaxed);
            if batch == batches {
                reached.send(()).unwrap();
            }
            let Some(answer) = (batch < KEYS / BATCH).then(|| ask(api, batch).ok()).flatten()
            else {
                return answered;
            };
            answered.push((batch, now()));
            assert_eq!(allowed(&answer), BATCH, "{answer}");
        }
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(spend)).collect();
        told.recv().unwrap();
        let killed = now();
        daemon.server.0.kill().unwrap();
        daemon.server.0.wait().unwrap();
        (clients.into_iter().flat_map(|client| client.join().unwrap()).collect(), killed)
    })
}

/// The answer to a batch; an error where the daemon ended before it was whole.
fn ask(api: SocketAddr, batch: usize) -> io::Result<String> {
    let check = |key: usize| {
        let path = PATHS[key % PATHS.len()];
        format!("{{\"method\":\"POST\",\"path\":\"/{path}\",\"user\":\"user-{key}\"}}")
    };
    let checks: Vec<String> = (batch * BATCH..(batch + 1) * BATCH).map(check).collect();
    let body = format!("[{}]", checks.join(","));
    let mut socket = TcpStream::connect(api)?;
    let length = body.len();
    write!(
        socket,
        "POST /v1/check/batch HTTP/1.1\r\nHost: {api}\r\nConnection: close\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    let is_whole = answer.split_once("\r\n\r\n").is_some_and(|(head, body)| {
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        length.is_some_and(|length| length.parse() == Ok(body.len()))
    });
    if is_whole { Ok(answer) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// The number of admitted checks of a batch.
fn allowed(answer: &str) -> usize {
    answer.matches("{\"allowed\":true,\"outcome\"").count()
}
