//! One limit by a key of one's own, alone and in batches, against governor's keyed limiter.

use std::hint::black_box;
use std::num::NonZeroU32;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tidegate::Verdict;
use tidegate::{Keyed, Rate};

use crate::population::{KEYS, Population};
use crate::rounds::{Checks, nanoseconds};
use crate::table::Table;

/// So much that no key uses it up. It refills slowly, so that every key stays live and needs a slot.
pub(crate) const PLENTY: Bucket = Bucket { an_hour: 60, burst: 100_000_000 };
/// One, and no more for an hour.
const ONCE: Bucket = Bucket { an_hour: 1, burst: 1 };

/// Measures limits by a key alone.
pub fn measure(table: &mut Table) {
    for (name, population) in [("uniform", Population::uniform()), ("Zipf", Population::zipf())] {
        let (ours, governor) = (PLENTY.ours(2 * KEYS), PLENTY.governor());
        for key in population.each() {
            assert!(ours.check(key) == Verdict::Allowed && governor.check_key(key).is_ok());
        }
        for threads in [1, 2] {
            let what = format!("keyed check, 1M keys, {name}, {}", said(threads));
            compare(table, &what, threads, &ours, &governor, &population, Some(0.5));
        }
        for size in [16, 64] {
            let what = format!("keyed checks by {size}, each, 1M keys, {name}");
            compare_batches(table, &what, size, &ours, &governor, &population);
        }
    }
    hot(table);
}

/// One hot key.
fn hot(table: &mut Table) {
    let one = Population::one();
    let (ours, governor) = (PLENTY.ours(2 * KEYS), PLENTY.governor());
    for threads in [1, 2] {
        let what = format!("one hot key, allowed, {}", said(threads));
        compare(table, &what, threads, &ours, &governor, &one, Some(1.0));
    }
    let (ours, governor) = (ONCE.ours(KEYS), ONCE.governor());
    assert!(governor.check_key(one.key(0)).is_ok() && ours.check(one.key(0)) == Verdict::Allowed);
    for (threads, must) in [(1, None), (2, Some(0.5))] {
        let what = format!("one hot key, denied, {}", said(threads));
        compare(table, &what, threads, &ours, &governor, &one, must);
    }
    let ours = ONCE.exact(KEYS);
    assert_eq!(ours.check(one.key(0)), Verdict::Allowed);
    for threads in [1, 2] {
        let what = format!("the same by an exact window; governor: its bucket, {}", said(threads));
        compare(table, &what, threads, &ours, &governor, &one, None);
    }
}

fn said(threads: usize) -> &'static str {
    if threads == 1 { "one thread" } else { "two threads" }
}

fn compare(
    table: &mut Table,
    what: &str,
    threads: usize,
    ours: &Keyed,
    governor: &DefaultKeyedRateLimiter<String>,
    population: &Population,
    must: Option<f64>,
) {
    let ours: Checks<'_> = Box::new(|turns| {
        for turn in turns {
            black_box(ours.check(population.key(turn)));
        }
    });
    let ns = nanoseconds(threads, &[ours, one_by_one(governor, population)]);
    table.add(what, "ns", ns[0], ns[1], must);
}

/// Batches, against single checks of governor, which has no batches.
fn compare_batches(
    table: &mut Table,
    what: &str,
    size: usize,
    ours: &Keyed,
    governor: &DefaultKeyedRateLimiter<String>,
    population: &Population,
) {
    let ours: Checks<'_> = Box::new(|turns| {
        let (mut keys, mut verdicts) = (Vec::with_capacity(size), Vec::with_capacity(size));
        for from in turns.step_by(size) {
            keys.clear();
            keys.extend((from..from + size).map(|turn| population.key(turn)));
            verdicts.clear();
            ours.check_all(&keys, &mut verdicts);
            black_box(&verdicts);
        }
    });
    let ns = nanoseconds(1, &[ours, one_by_one(governor, population)]);
    table.add(what, "ns", ns[0], ns[1], Some(0.25));
}

fn one_by_one<'c>(
    governor: &'c DefaultKeyedRateLimiter<String>,
    population: &'c Population,
) -> Checks<'c> {
    Box::new(|turns| {
        for turn in turns {
            black_box(governor.check_key(population.key(turn)).is_ok());
        }
    })
}

/// The same limit for all sides.
pub struct Bucket {
    /// The refill in an hour.
    pub an_hour: u32,
    /// The burst.
    pub burst: u32,
}

impl Bucket {
    /// The limit in governor.
    #[must_use]
    pub fn governor(&self) -> DefaultKeyedRateLimiter<String> {
        let number = |number| NonZeroU32::new(number).unwrap();
        RateLimiter::keyed(Quota::per_hour(number(self.an_hour)).allow_burst(number(self.burst)))
    }

    /// The limit in this library, for `max_keys` keys.
    #[must_use]
    pub fn ours(&self, max_keys: usize) -> Keyed {
        let number = |number| NonZeroU32::new(number).unwrap();
        let rate = Rate::per_hour(number(self.an_hour)).burst(number(self.burst));
        Keyed::token_bucket(rate).unwrap().with_max_keys(max_keys)
    }

    /// An exact window of an hour instead.
    fn exact(&self, max_keys: usize) -> Keyed {
        let rate = Rate::per_hour(NonZeroU32::new(self.burst).unwrap());
        Keyed::sliding_window(rate).unwrap().with_max_keys(max_keys)
    }
}
