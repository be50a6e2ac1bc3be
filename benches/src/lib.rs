//! Measuring, as ratios within one run: absolute times do not carry from one machine to the next.
//!
//! Candidates take turns in short rounds, so that other work of the machine hits all of them; the median
//! round counts. Criterion measures one after the other and prints no ratio.

pub mod bare;
pub mod daemon;
pub mod evenly;
pub mod load;
pub mod open_loop;
pub mod request_spans;
pub mod roles;
pub mod store;
pub mod witness;

use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 101;
const ROUND_NS: u128 = 2_000_000;

/// A candidate to measure.
pub struct Candidate<'c> {
    /// Its name in the table.
    pub name: String,
    /// One unit of the work.
    pub work: Box<dyn FnMut() + 'c>,
}

impl<'c> Candidate<'c> {
    /// A candidate whose result is kept from being optimised away.
    pub fn new<T>(name: impl Into<String>, mut work: impl FnMut() -> T + 'c) -> Self {
        Self { name: name.into(), work: Box::new(move || drop(black_box(work()))) }
    }
}

/// Measures all candidates and prints a table: nanoseconds each, and the ratio to the first.
pub fn compare(title: &str, mut candidates: Vec<Candidate<'_>>) {
    let repeats: Vec<u32> = candidates.iter_mut().map(|one| repeats_per_round(one)).collect();
    let mut rounds: Vec<Vec<f64>> = vec![Vec::with_capacity(ROUNDS); candidates.len()];
    for _ in 0..ROUNDS {
        for (index, candidate) in candidates.iter_mut().enumerate() {
            rounds[index].push(nanoseconds(candidate, repeats[index]));
        }
    }
    println!("\n{title}");
    let medians: Vec<f64> = rounds.into_iter().map(median).collect();
    for (candidate, ns) in candidates.iter().zip(&medians) {
        println!("  {:<40} {ns:>10.1} ns   {:>6.2} x", candidate.name, ns / medians[0]);
    }
}

fn repeats_per_round(candidate: &mut Candidate<'_>) -> u32 {
    let mut repeats: u32 = 1;
    while nanoseconds(candidate, repeats) * f64::from(repeats) < ROUND_NS as f64 {
        repeats = repeats.saturating_mul(2);
    }
    repeats
}

#[allow(clippy::disallowed_methods, reason = "measuring is what this is for")]
fn nanoseconds(candidate: &mut Candidate<'_>, repeats: u32) -> f64 {
    let started = Instant::now();
    for _ in 0..repeats {
        (candidate.work)();
    }
    started.elapsed().as_secs_f64() * 1e9 / f64::from(repeats)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
