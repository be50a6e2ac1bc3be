//! The order of requests, the same for the same seed.

use super::figures::{CLIENTS, REQUESTS_PER_S, SECONDS};
use crate::simulation::Random;

/// The clients of all requests, in order. Requests are evenly spaced.
#[derive(Clone, Debug)]
pub struct Traffic {
    clients: Vec<u32>,
}

impl Traffic {
    /// The traffic of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // Each client's share of all requests ends where the next one's begins.
        let mut ends = Vec::new();
        let mut end = 0;
        for rank in 1..=u64::from(CLIENTS) {
            end += 1_000_000_000_000 / rank;
            ends.push(end);
        }
        let mut random = Random::new(seed);
        let client = |_| {
            let drawn = random.below(end);
            u32::try_from(ends.partition_point(|end| *end <= drawn)).unwrap_or(0)
        };
        Self { clients: (0..REQUESTS_PER_S * SECONDS).map(client).collect() }
    }

    /// How many requests a second each client sends.
    pub(super) fn per_s(&self) -> Vec<u64> {
        let mut sent = vec![0; usize::try_from(CLIENTS).unwrap_or(0)];
        for client in &self.clients {
            sent[usize::try_from(*client).unwrap_or(0)] += 1;
        }
        sent.into_iter().map(|sent: u64| sent / SECONDS).collect()
    }

    /// Each request: its time in microseconds, and its client.
    pub(super) fn requests(&self) -> impl Iterator<Item = (u64, u32)> {
        let times_us = (0..).map(|place| place * 1_000_000 / REQUESTS_PER_S);
        times_us.zip(self.clients.iter().copied())
    }
}
