//! A load on one server: connections that each send a request and read the answer, over and over, all
//! from one thread. The measure is the server's own processor time, which the load hardly changes.

#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a benchmark may stop at the first surprise, and its figures are for people"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Child;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

/// The cost and the throughput of a load.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Seconds of the server's processor time for a million requests.
    pub cpu_seconds_per_million: f64,
    /// Requests in a second.
    pub per_second: f64,
    /// The median latency, in microseconds.
    pub p50_us: u64,
    /// The p99.
    pub p99_us: u64,
    /// The status of the last answer.
    pub status: u16,
}

/// Loads a server from `connections` connections with `requests` requests in all, from one thread.
///
/// # Panics
/// The server does not answer as HTTP/1.1 with a length.
#[must_use]
pub fn load(
    server: u32,
    address: SocketAddr,
    connections: usize,
    requests: usize,
    request: impl Fn(usize) -> Vec<u8> + Send + Sync + 'static,
) -> Figures {
    let each = requests / connections;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let (before, started) = (cpu_seconds(server), now());
    let request = Arc::new(request);
    let runs = runtime.block_on(async {
        let run = |connection| run(address, each, connection, Arc::clone(&request));
        (0..connections).map(run).collect::<JoinSet<_>>().join_all().await
    });
    let (elapsed, cpu) = (started.elapsed(), cpu_seconds(server) - before);
    let mut latencies: Vec<u64> =
        runs.iter().flat_map(|(latencies, _)| latencies.clone()).collect();
    latencies.sort_unstable();
    let served = latencies.len() as f64;
    Figures {
        cpu_seconds_per_million: cpu / served * 1e6,
        per_second: served / elapsed.as_secs_f64(),
        p50_us: latencies[latencies.len() / 2],
        p99_us: latencies[latencies.len() * 99 / 100],
        status: runs[0].1,
    }
}

async fn run(
    address: SocketAddr,
    requests: usize,
    connection: usize,
    request: Arc<impl Fn(usize) -> Vec<u8>>,
) -> (Vec<u64>, u16) {
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    socket.set_nodelay(true).unwrap();
    let mut buffer = vec![0; 16 * 1024];
    let mut latencies = Vec::with_capacity(requests);
    let mut status = 0;
    for turn in 0..requests {
        let bytes = request(connection * requests + turn);
        let started = now();
        socket.write_all(&bytes).await.unwrap();
        let mut filled = 0;
        status = loop {
            let read = socket.read(&mut buffer[filled..]).await.unwrap();
            assert!(read > 0, "the server hung up");
            filled += read;
            if let Some((status, _)) = whole_answer(&buffer[..filled]) {
                break status;
            }
        };
        latencies.push(u64::try_from(started.elapsed().as_micros()).unwrap());
    }
    (latencies, status)
}

/// The median of several figures, by processor time.
///
/// # Panics
/// There are none.
#[must_use]
pub fn median(mut figures: Vec<Figures>) -> Figures {
    figures.sort_by(|a, b| a.cpu_seconds_per_million.total_cmp(&b.cpu_seconds_per_million));
    figures[figures.len() / 2]
}

/// How many bytes the body of one answer has.
///
/// # Panics
/// The server does not answer.
#[must_use]
pub fn body_bytes(address: SocketAddr, request: &[u8]) -> usize {
    body(address, request).len()
}

/// The body of a server's answer to a GET.
///
/// # Panics
/// The server does not answer.
#[must_use]
pub fn page(address: SocketAddr, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    String::from_utf8(body(address, request.as_bytes())).unwrap()
}

fn body(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.write_all(request).unwrap();
    let (mut buffer, mut filled) = (vec![0; 64 * 1024], 0);
    loop {
        let read = socket.read(&mut buffer[filled..]).unwrap();
        assert!(read > 0, "the server hung up");
        filled += read;
        if let Some((_, length)) = whole_answer(&buffer[..filled]) {
            return buffer[filled - length..filled].to_vec();
        }
    }
}

/// The status and the Content-Length of an answer, once the whole answer has arrived.
pub(crate) fn whole_answer(text: &[u8]) -> Option<(u16, usize)> {
    let head = find(text, b"\r\n\r\n")?;
    let lines = std::str::from_utf8(&text[..head]).unwrap();
    let length = lines.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().unwrap())
    });
    let length = length.unwrap_or(0);
    (text.len() >= head + 4 + length).then(|| (lines[9..12].parse().unwrap(), length))
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

/// Waits until something listens.
///
/// # Panics
/// Nothing does within ten seconds.
pub fn wait_for(address: SocketAddr) {
    let started = now();
    while TcpStream::connect(address).is_err() {
        assert!(started.elapsed() < Duration::from_secs(10), "nothing listens on {address}");
        thread::yield_now();
    }
}

/// The processor time that a process and its threads have used.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks / 100.0
}

/// A child that ends with its owner.
#[derive(Debug)]
pub struct Server(pub Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The current time, for measurements.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}
