//! Candidates take turns in short rounds, so that whatever else the machine does hits all of them; the
//! middle round counts.
//!
//! The host of a virtual machine may run two processors of it on one core for a while. Two threads then
//! share the core's cache, nothing goes to and fro between them, and what they contend for is the core:
//! that is not what a row of two threads is about. Rounds of that kind are told by a loop that needs nothing
//! but a processor, and measured again.

use std::hint::black_box;
use std::ops::Range;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const ROUNDS: usize = 41;
const ROUND: Duration = Duration::from_millis(15);
/// How many rounds are measured at most until so many count.
const ROUNDS_MAX: usize = 4 * ROUNDS;
/// How many turns the loop goes that tells whether threads have a core each: less than a millisecond.
const SPINS: usize = 500_000;
/// How much longer it may take when all threads go at once. On one core it takes half as long again.
const SPIN_MOST: f64 = 1.25;

/// Something to be measured: does one check for each of these turns.
pub type Checks<'c> = Box<dyn Fn(Range<usize>) + Sync + 'c>;

/// Nanoseconds that a check takes each candidate, on so many threads at once.
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
    // Where there are hardly any others, they have to do.
    let missing = ROUNDS - rounds.len();
    rounds.extend(shared.into_iter().take(missing));
    (0..candidates.len()).map(|index| middle(rounds.iter().map(|took| took[index]))).collect()
}

/// Whether so many threads have a core each just now.
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
