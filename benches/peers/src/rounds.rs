//! Candidates take turns in short rounds, so that other work of the machine hits all of them; the median
//! round counts.
//!
//! The host of a virtual machine may run two of its processors on one core for a while. Two threads then
//! share the core's cache and contend for the core, not for memory: a row of two threads must not measure
//! that. A loop that needs only a processor detects such rounds, and they are measured again.

use std::hint::black_box;
use std::ops::Range;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const ROUNDS: usize = 41;
const ROUND: Duration = Duration::from_millis(15);
/// The most rounds that are measured until enough of them count.
const ROUNDS_MAX: usize = 4 * ROUNDS;
/// The iterations of the loop that detects whether threads have a core each: less than a millisecond.
const SPINS: usize = 500_000;
/// How much longer the loop may take when all threads run at once. On one core it takes half as long again.
const SPIN_MOST: f64 = 1.25;

/// A candidate: does one check for each of these turns.
pub type Checks<'c> = Box<dyn Fn(Range<usize>) + Sync + 'c>;

/// The nanoseconds of a check for each candidate, on `threads` threads at once.
#[must_use]
pub fn nanoseconds(threads: usize, candidates: &[Checks<'_>]) -> Vec<f64> {
    let counts: Vec<usize> = candidates.iter().map(checks_per_round).collect();
    let (mut rounds, mut shared): (Vec<Vec<f64>>, Vec<Vec<f64>>) = Default::default();
    for round in 0..ROUNDS_MAX {
        let had_cores = have_cores(threads);
        let took = |(candidate, count): (&Checks<'_>, &usize)| {
            timed(threads, *count, round, candidate).as_secs_f64() * 1e9 / *count as f64
        };
        let took = candidates.iter().zip(&counts).map(took).collect();
        if had_cores && have_cores(threads) { &mut rounds } else { &mut shared }.push(took);
        if rounds.len() == ROUNDS {
            break;
        }
    }
    if !shared.is_empty() {
        let rounds = shared.len();
        eprintln!("  rounds in which {threads} threads had no core each: {rounds}, done again");
    }
    // If there are hardly any good rounds, the others count too.
    let missing = ROUNDS - rounds.len();
    rounds.extend(shared.into_iter().take(missing));
    (0..candidates.len()).map(|index| middle(rounds.iter().map(|took| took[index]))).collect()
}

/// Whether `threads` threads have a core each at the moment.
fn have_cores(threads: usize) -> bool {
    let spin: Checks<'_> = Box::new(|turns| {
        let (mut one, mut other) = (1_u64, 2_u64);
        for _ in turns {
            one = black_box(one + 1);
            other = other.rotate_left(3) ^ one;
        }
        black_box(other);
    });
    let took = |threads| timed(threads, SPINS, 0, &spin).as_secs_f64();
    threads == 1 || took(threads) < SPIN_MOST * took(1)
}

fn middle(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
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

/// The time of the threads for `count` checks each, on turns of their own.
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

/// The current time, for measurements.
#[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}
