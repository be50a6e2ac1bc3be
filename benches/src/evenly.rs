//! An even load, whatever the server does: every request has its time, and a request that waits because
//! the last answer was late counts as late.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a benchmark may stop at the first surprise"
)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::load::whole_answer;
use crate::request_spans::{RequestSpan, now_us};

/// The answers to a load.
#[derive(Clone, Debug)]
pub struct Answers {
    /// The due and the answered instant of each request.
    pub lives: Vec<RequestSpan>,
    /// The number of answers other than 200 and 429.
    pub dropped: usize,
}

/// Sends `requests` requests, `per_second` in a second, from as many threads as there are clients.
pub fn evenly(
    address: SocketAddr,
    clients: usize,
    per_second: usize,
    requests: usize,
    request: impl Fn(usize) -> Vec<u8> + Send + Sync + 'static,
) -> Answers {
    let begins_us = now_us() + 100_000;
    let request = Arc::new(request);
    let threads: Vec<_> = (0..clients)
        .map(|client| {
            let request = Arc::clone(&request);
            thread::spawn(move || {
                let mut connection = Connection::open(address);
                let turns = (client..requests).step_by(clients);
                let due =
                    |turn: usize| begins_us + u64::try_from(turn * 1_000_000 / per_second).unwrap();
                turns.map(|turn| connection.ask(&request(turn), due(turn))).collect::<Vec<_>>()
            })
        })
        .collect();
    let answers: Vec<(RequestSpan, bool)> =
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    Answers {
        dropped: answers.iter().filter(|(_, decided)| !decided).count(),
        lives: answers.into_iter().map(|(life, _)| life).collect(),
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

    /// Returns the due and the answered instant of a request, and whether a decision came. A request that is
    /// sent late, because the answer before it was late, has waited since it was due.
    fn ask(&mut self, request: &[u8], due_us: u64) -> (RequestSpan, bool) {
        let before_us = now_us();
        thread::sleep(Duration::from_micros(due_us.saturating_sub(before_us)));
        let since_us = if before_us > due_us { due_us } else { now_us() };
        let status = self.exchange(request);
        let life = RequestSpan { due_us: since_us, done_us: now_us() };
        if status.is_none() {
            *self = Self::open(self.address);
        }
        (life, matches!(status, Some(200 | 429)))
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
