//! One limit by a key of one's own, against governor's keyed limiter.

use std::hint::black_box;
use std::num::NonZeroU32;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tidegate::store::Memory;
use tidegate::{Limiter, Policy, Request};

use crate::population::Population;
use crate::rounds::{Checks, nanoseconds};
use crate::table::Table;

/// So much that nobody uses it up. It comes back slowly, so that no key is as good as new meanwhile,
/// which would need no place.
const BURST: u32 = 1_000_000_000;
const AN_HOUR: u32 = 1_000;

/// Measures what is named by a key alone.
pub fn measure(table: &mut Table) {
    for (name, population) in [("uniform", Population::uniform()), ("Zipf", Population::zipf())] {
        let (ours, governor) = (Ours::plenty(), governor_plenty());
        for key in population.each() {
            assert!(ours.check(key) && governor.check_key(key).is_ok());
        }
        for threads in [1, 2] {
            let what = format!("keyed check, 1M keys, {name}, {}", said(threads));
            compare(table, &what, threads, &ours, &governor, &population, Some(0.5));
        }
    }
    hot(table);
}

/// One key that everybody uses.
fn hot(table: &mut Table) {
    let one = Population::one();
    let (ours, governor) = (Ours::plenty(), governor_plenty());
    for threads in [1, 2] {
        let what = format!("one hot key, allowed, {}", said(threads));
        compare(table, &what, threads, &ours, &governor, &one, Some(1.0));
    }
    let governor = RateLimiter::keyed(Quota::per_hour(NonZeroU32::MIN));
    let ours = Ours::used_up(one.key(0));
    assert!(governor.check_key(one.key(0)).is_ok());
    for (threads, must) in [(1, None), (2, Some(0.5))] {
        let what = format!("one hot key, denied, {}", said(threads));
        compare(table, &what, threads, &ours, &governor, &one, must);
    }
}

fn said(threads: usize) -> &'static str {
    if threads == 1 { "one thread" } else { "two threads" }
}

fn compare(
    table: &mut Table,
    what: &str,
    threads: usize,
    ours: &Ours,
    governor: &DefaultKeyedRateLimiter<String>,
    population: &Population,
    must: Option<f64>,
) {
    let candidates: [Checks<'_>; 2] = [
        Box::new(|turns| {
            for turn in turns {
                black_box(ours.check(population.key(turn)));
            }
        }),
        Box::new(|turns| {
            for turn in turns {
                black_box(governor.check_key(population.key(turn)).is_ok());
            }
        }),
    ];
    let ns = nanoseconds(threads, &candidates);
    table.add(what, "ns", ns[0], ns[1], must);
}

/// Governor with a limit that never refuses.
#[must_use]
pub fn governor_plenty() -> DefaultKeyedRateLimiter<String> {
    let number = |number| NonZeroU32::new(number).unwrap();
    RateLimiter::keyed(Quota::per_hour(number(AN_HOUR)).allow_burst(number(BURST)))
}

/// A limit by key: a policy of one bucket.
pub struct Ours(Limiter);

impl Ours {
    /// A limit that never refuses.
    #[must_use]
    pub fn plenty() -> Self {
        Self::with_max_keys(crate::population::KEYS * 2)
    }

    /// The same for so many keys.
    #[must_use]
    pub fn with_max_keys(max_keys: usize) -> Self {
        Self::new(&format!("{AN_HOUR}/h burst {BURST}"), max_keys)
    }

    /// A limit of one an hour, which this key has had.
    #[must_use]
    pub fn used_up(key: &str) -> Self {
        let ours = Self::new("1/h burst 1", 1_000);
        assert!(ours.check(key) && !ours.check(key));
        ours
    }

    fn new(bucket: &str, max_keys: usize) -> Self {
        let text = format!(
            "{{ tidegate: 1, name: one, limits: {{ a: {{ by: user, token_bucket: {bucket} }} }} }}"
        );
        let policy = Policy::parse("one.yaml", &text).unwrap();
        let limiter = Limiter::builder().policy(policy).store(Memory::with_max_keys(max_keys));
        Self(limiter.build().unwrap())
    }

    /// Whether one more is allowed.
    #[inline]
    #[must_use]
    pub fn check(&self, key: &str) -> bool {
        self.0.check(&Request::new("GET", "/").user(key)).unwrap().is_allowed()
    }
}
