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
use std::time::{Duration, Instant};

use crate::store::{Checks, Figures, Measure, Redis, now, us_at};

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
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// What it cost and brought. The client's own time is all there is, since it never sleeps.
    pub figures: Figures,
    /// How late the client came to a check, the 99th of a hundred: what of the latency was before it.
    pub late_us: u64,
}

impl OpenLoop {
    /// Runs the load.
    pub async fn run(&self, redis: &Redis, checks: &impl Checks) -> Open {
        let all = (self.per_second * self.lasts.as_secs_f64()) as usize;
        let answers = Arc::new(Mutex::new(Vec::with_capacity(all)));
        let (measure, mut late) = (Measure::start(redis).await, Vec::with_capacity(all));
        while late.len() < all {
            let now = now();
            while late.len() < all && self.planned(measure.started, late.len()) <= now {
                let planned = self.planned(measure.started, late.len());
                self.send(checks, late.len(), planned, &answers);
                late.push(now - planned);
            }
            tokio::task::yield_now().await;
        }
        // Each of those under way has one until it has told.
        while Arc::strong_count(&answers) > 1 {
            tokio::task::yield_now().await;
        }
        let answers = std::mem::take(&mut *answers.lock().unwrap());
        late.sort_unstable();
        Open { figures: measure.figures(redis, answers).await, late_us: us_at(&late, 99) }
    }

    fn planned(&self, begins: Instant, turn: usize) -> Instant {
        begins + Duration::from_secs_f64(turn as f64 / self.per_second)
    }

    fn send(
        &self,
        checks: &impl Checks,
        turn: usize,
        planned: Instant,
        answers: &Arc<Mutex<Vec<(Duration, bool)>>>,
    ) {
        let (checks, answers, users) = (checks.clone(), Arc::clone(answers), self.users);
        tokio::spawn(async move {
            // Far apart, so that users come in no order.
            let answered = checks.check(turn * 7_919, users).await;
            answers.lock().unwrap().push((planned.elapsed(), answered));
        });
    }
}
