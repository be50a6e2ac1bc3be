//! So many checks a second, whether or not those before have been answered, and what each took from
//! the instant that it was planned for.
//!
//! The client's own thread looks for those that are due whenever it has nothing else to do, and never
//! sleeps. A thread of its own would have to take a processor from the server or the client, of which
//! each needs one: one that spins takes all of it, and one that sleeps is woken late and wakes the
//! client ten thousand times a second, which costs more than the checks do. What holds the client up
//! is still seen: a check that it comes to late has waited since it was planned.

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

use crate::lives::{Life, at, now_us};
use crate::store::{Checks, Figures, Measure, Redis};

/// So many a second, whether or not those before have been answered.
#[derive(Clone, Copy, Debug)]
pub struct OpenLoop {
    /// How many arrive in a second, evenly.
    pub per_second: f64,
    /// For how long.
    pub lasts: Duration,
    /// How many users take turns.
    pub users: usize,
}

/// What an open loop found.
#[derive(Clone, Debug)]
pub struct Open {
    /// What it cost and brought. The client's own time is all there is, since it never sleeps.
    pub figures: Figures,
    /// How late the client came to a check, the 99th of a hundred: what of the latency was before it.
    pub late_us: u64,
    /// When each was planned and answered.
    pub lives: Vec<Life>,
}

impl OpenLoop {
    /// Runs the load.
    pub async fn run(&self, redis: &Redis, checks: &impl Checks) -> Open {
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
        // Each of those under way has one until it has told.
        while Arc::strong_count(&answers) > 1 {
            tokio::task::yield_now().await;
        }
        let answers = std::mem::take(&mut *answers.lock().unwrap());
        late.sort_unstable();
        let figures = measure.figures(redis, &answers).await;
        let lives = answers.into_iter().map(|(life, _)| life).collect();
        Open { figures, late_us: at(&late, 99), lives }
    }

    fn planned(&self, begins_us: u64, turn: usize) -> u64 {
        begins_us + (turn as f64 * 1e6 / self.per_second) as u64
    }

    fn send(
        &self,
        checks: &impl Checks,
        turn: usize,
        due_us: u64,
        answers: &Arc<Mutex<Vec<(Life, bool)>>>,
    ) {
        let (checks, answers, users) = (checks.clone(), Arc::clone(answers), self.users);
        tokio::spawn(async move {
            // Far apart, so that users come in no order.
            let answered = checks.check(turn * 7_919, users).await;
            let life = Life { due_us, done_us: now_us() };
            answers.lock().unwrap().push((life, answered));
        });
    }
}
