//! A load that comes evenly whatever the server does: every request has its time, and one that must
//! wait because the last was answered late is counted as late.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a benchmark may stop at the first surprise"
)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::load::whole_answer;

/// How a load was answered.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// How many requests were sent.
    pub sent: usize,
    /// How many of them were not answered with 200 or 429.
    pub dropped: usize,
    /// The middle latency, in microseconds.
    pub p50_us: u64,
    /// The 99th of a hundred.
    pub p99_us: u64,
    /// The longest.
    pub longest_us: u64,
}

/// Sends `requests` requests, `per_second` in a second, from as many threads as there are clients.
pub fn evenly(
    address: SocketAddr,
    clients: usize,
    per_second: usize,
    requests: usize,
    request: impl Fn(usize) -> Vec<u8> + Send + Sync + 'static,
) -> Answered {
    let apart = Duration::from_secs(1) / u32::try_from(per_second).unwrap();
    let begins = now() + Duration::from_millis(100);
    let request = Arc::new(request);
    let threads: Vec<_> = (0..clients)
        .map(|client| {
            let request = Arc::clone(&request);
            thread::spawn(move || {
                let mut connection = Connection::open(address);
                let turns = (client..requests).step_by(clients);
                let due = |turn: usize| begins + apart * u32::try_from(turn).unwrap();
                turns.map(|turn| connection.ask(&request(turn), due(turn))).collect::<Vec<_>>()
            })
        })
        .collect();
    let answers: Vec<(u64, bool)> =
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    let mut latencies: Vec<u64> = answers.iter().map(|(us, _)| *us).collect();
    latencies.sort_unstable();
    Answered {
        sent: answers.len(),
        dropped: answers.iter().filter(|(_, decided)| !decided).count(),
        p50_us: latencies[latencies.len() / 2],
        p99_us: latencies[latencies.len() * 99 / 100],
        longest_us: latencies[latencies.len() - 1],
    }
}

struct Connection {
    address: SocketAddr,
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    fn open(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        Self { address, socket, buffer: vec![0; 16 * 1024] }
    }

    /// How many microseconds an answer took, and whether it was a decision. A request that is sent
    /// late because the answer before it was late has waited since it was due.
    fn ask(&mut self, request: &[u8], due: Instant) -> (u64, bool) {
        let is_late = now() > due;
        thread::sleep(due.saturating_duration_since(now()));
        let since = if is_late { due } else { now() };
        let status = self.exchange(request);
        let us = u64::try_from(since.elapsed().as_micros()).unwrap();
        if status.is_none() {
            *self = Self::open(self.address);
        }
        (us, matches!(status, Some(200 | 429)))
    }

    fn exchange(&mut self, request: &[u8]) -> Option<u16> {
        self.socket.write_all(request).ok()?;
        let mut filled = 0;
        loop {
            let read =
                self.socket.read(&mut self.buffer[filled..]).ok().filter(|read| *read > 0)?;
            filled += read;
            if let Some((status, _)) = whole_answer(&self.buffer[..filled]) {
                return Some(status);
            }
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn now() -> Instant {
    Instant::now()
}
