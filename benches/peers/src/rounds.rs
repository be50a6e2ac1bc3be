//! Candidates take turns in short rounds, so that whatever else the machine does hits all of them; the
//! middle round counts.

use std::ops::Range;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const ROUNDS: usize = 41;
const ROUND: Duration = Duration::from_millis(15);

/// Something to be measured: does one check for each of these turns.
pub type Checks<'c> = Box<dyn Fn(Range<usize>) + Sync + 'c>;

/// Nanoseconds that a check takes each candidate, on so many threads at once.
#[must_use]
pub fn nanoseconds(threads: usize, candidates: &[Checks<'_>]) -> Vec<f64> {
    let counts: Vec<usize> = candidates.iter().map(checks_per_round).collect();
    let mut rounds = vec![Vec::with_capacity(ROUNDS); candidates.len()];
    for round in 0..ROUNDS {
        for (index, candidate) in candidates.iter().enumerate() {
            let took = timed(threads, counts[index], round, candidate);
            rounds[index].push(took.as_secs_f64() * 1e9 / counts[index] as f64);
        }
    }
    rounds.into_iter().map(middle).collect()
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn checks_per_round(candidate: &Checks<'_>) -> usize {
    let mut count = 64;
    while timed(1, count, 0, candidate) < ROUND {
        count *= 2;
    }
    count
}

/// How long the threads took for so many checks each, on turns of their own.
fn timed(threads: usize, count: usize, round: usize, checks: &Checks<'_>) -> Duration {
    let turns = |thread: usize| {
        let from = (round * threads + thread) * count;
        from..from + count
    };
    if threads == 1 {
        let started = now();
        checks(turns(0));
        return started.elapsed();
    }
    let ready = Barrier::new(threads);
    std::thread::scope(|scope| {
        let each: Vec<_> = (0..threads)
            .map(|thread| {
                let (ready, turns) = (&ready, turns(thread));
                scope.spawn(move || {
                    ready.wait();
                    let started = now();
                    checks(turns);
                    started.elapsed()
                })
            })
            .collect();
        let took: Duration = each.into_iter().map(|thread| thread.join().unwrap()).sum();
        took / u32::try_from(threads).unwrap()
    })
}

/// The time, for what is measured.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}
