//! A fixed rate of checks, whether or not earlier ones have been answered, and the latency of each from
//! its planned instant.
//!
//! The client's own thread looks for due checks whenever it has nothing else to do, and never sleeps. A
//! separate thread would take a processor from the server or the client, of which each needs one: a
//! spinning thread takes all of it, and a sleeping one is woken late and wakes the client ten thousand
//! times a second, which costs more than the checks do. A delay of the client is still seen: a late check
//! has waited since its planned instant.

#![allow(
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a benchmark may stop at the first surprise, and its figures are for people"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::request_spans::{RequestSpan, at, now_us};
use crate::store::{Checks, Figures, Measure, Redis};

/// A fixed rate of checks, whether or not earlier ones have been answered.
#[derive(Clone, Copy, Debug)]
pub struct OpenLoop {
    /// The checks a second, evenly spaced.
    pub per_second: f64,
    /// How long it lasted.
    pub lasts: Duration,
    /// How many users take turns.
    pub users: usize,
}

/// The result of an open loop.
#[derive(Clone, Debug)]
pub struct OpenLoopResult {
    /// Its cost and throughput. The client's own time is the whole time, because it never sleeps.
    pub figures: Figures,
    /// The p99 of the client's delay before a check: the client's part of the latency.
    pub late_us: u64,
    /// The planned and the answered instant of each check.
    pub lives: Vec<RequestSpan>,
}

impl OpenLoop {
    /// Runs the load.
    pub async fn run(&self, redis: &Redis, checks: &impl Checks) -> OpenLoopResult {
        let all = (self.per_second * self.lasts.as_secs_f64()) as usize;
        let answers = Arc::new(Mutex::new(Vec::with_capacity(all)));
        let (measure, mut late) = (Measure::start(redis).await, Vec::with_capacity(all));
        while late.len() < all {
            let now_us = now_us();
            while late.len() < all && self.planned(measure.started_us, late.len()) <= now_us {
                let due_us = self.planned(measure.started_us, late.len());
                self.send(checks, late.len(), due_us, &answers);
                late.push(now_us - due_us);
            }
            tokio::task::yield_now().await;
        }
        // Each check under way has a sender until it reports.
        while Arc::strong_count(&answers) > 1 {
            tokio::task::yield_now().await;
        }
        let answers = std::mem::take(&mut *answers.lock().unwrap());
        late.sort_unstable();
        let figures = measure.figures(redis, &answers).await;
        let lives = answers.into_iter().map(|(life, _)| life).collect();
        OpenLoopResult { figures, late_us: at(&late, 99), lives }
    }

    fn planned(&self, begins_us: u64, turn: usize) -> u64 {
        begins_us + (turn as f64 * 1e6 / self.per_second) as u64
    }

    fn send(
        &self,
        checks: &impl Checks,
        turn: usize,
        due_us: u64,
        answers: &Arc<Mutex<Vec<(RequestSpan, bool)>>>,
    ) {
        let (checks, answers, users) = (checks.clone(), Arc::clone(answers), self.users);
        tokio::spawn(async move {
            // A large stride, so that users come in no order.
            let answered = checks.check(turn * 7_919, users).await;
            let life = RequestSpan { due_us, done_us: now_us() };
            answers.lock().unwrap().push((life, answered));
        });
    }
}
