//! One limit by keys of the caller, without a policy.

use std::hash::{BuildHasher as _, Hasher as _};

use foldhash::quality::RandomState;

use crate::algorithm::{Spec, Verdict};
use crate::clock::{Clock as _, QuickClock, SystemClock};
use crate::key::Key;
use crate::rate::{BurstRate, Rate, RateError};
use crate::store::Table;
use crate::units::Amount;

/// How many keys it holds by default.
const MAX_KEYS_DEFAULT: usize = 1_000_000;

/// One limit by keys of the caller, without a policy, levels or names: a fast answer to "may this key go on?".
///
/// Threads share it by reference. It evicts keys as the [memory store](crate::store::Memory) does: expired keys first,
/// and if there are too many live keys, the one that owes least.
///
/// If the processor has an invariant counter, the counter is the clock. It is calibrated when the first `Keyed` is made,
/// which may take some tenths of a second, and may drift by some seconds a day. Calendar limits use the system's clock.
///
/// ```
/// use tidegate::Keyed;
/// use tidegate::Verdict;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let logins = Keyed::token_bucket("10/min burst 2")?;
/// assert_eq!(logins.check("ann@example.org"), Verdict::Allowed);
/// assert_eq!(logins.check("ann@example.org"), Verdict::Allowed);
/// assert_ne!(logins.check("ann@example.org"), Verdict::Allowed);
/// assert_eq!(logins.check("bob@example.org"), Verdict::Allowed);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Keyed {
    spec: Spec,
    table: Table,
    /// Seeded at random, so that nobody outside can choose texts that collide.
    hashers: [RandomState; 2],
    /// The clock of a calendar limit.
    wall_clock: Option<SystemClock>,
    quick_clock: QuickClock,
}

impl Keyed {
    /// A bucket that is refilled evenly and starts full: `20/min burst 5`.
    ///
    /// # Errors
    /// The rate is a text that cannot be read.
    pub fn token_bucket(
        rate: impl TryInto<BurstRate, Error: Into<RateError>>,
    ) -> Result<Self, RateError> {
        rate.try_into().map_err(Into::into).map(|rate| Self::of(rate.token_bucket()))
    }

    /// Never more in any window: `5/min`.
    ///
    /// # Errors
    /// The rate is a text that cannot be read, or is above 65,536.
    pub fn sliding_window(
        rate: impl TryInto<Rate, Error: Into<RateError>>,
    ) -> Result<Self, RateError> {
        rate.try_into().map_err(Into::into)?.sliding_window().map(Self::of)
    }

    /// A sliding window in constant memory, for high limits: `1000/min`.
    ///
    /// # Errors
    /// The rate is a text that cannot be read.
    pub fn sliding_counter(
        rate: impl TryInto<Rate, Error: Into<RateError>>,
    ) -> Result<Self, RateError> {
        rate.try_into().map_err(Into::into).map(|rate| Self::of(rate.sliding_counter()))
    }

    /// Windows aligned to the epoch: `100/min`.
    ///
    /// # Errors
    /// The rate is a text that cannot be read.
    pub fn fixed_window(
        rate: impl TryInto<Rate, Error: Into<RateError>>,
    ) -> Result<Self, RateError> {
        rate.try_into().map_err(Into::into).map(|rate| Self::of(rate.fixed_window()))
    }

    /// A limit on the machine's clock, with a random secret, for a million keys.
    fn of(spec: Spec) -> Self {
        Self {
            spec,
            table: Table::standalone(MAX_KEYS_DEFAULT),
            hashers: Default::default(),
            wall_clock: spec.uses_wall_clock().then(SystemClock::new),
            quick_clock: QuickClock::new(),
        }
    }

    /// The same limit without its keys, for at most this many of them, and at least one.
    #[must_use]
    pub fn with_max_keys(self, max_keys: usize) -> Self {
        Self { table: Table::standalone(max_keys.max(1)), ..self }
    }

    /// Charges one if it fits.
    #[must_use]
    pub fn check(&self, key: &str) -> Verdict {
        self.check_n(key, Amount::ONE)
    }

    /// Charges the cost if it fits.
    #[must_use]
    pub fn check_n(&self, key: &str, cost: Amount) -> Verdict {
        self.table.check(&self.spec, self.key_of(key), cost, self.now_us())
    }

    /// Charges one to each key if it fits, in their order, and appends the verdicts. All checks happen at one instant, and
    /// their memory comes together, so that a batch takes less time than single checks.
    pub fn check_all<K: AsRef<str>>(&self, keys: &[K], verdicts: &mut Vec<Verdict>) {
        let keys = keys.iter().map(|key| self.key_of(key.as_ref()));
        self.table.check_all(&self.spec, keys, self.now_us(), verdicts);
    }

    /// How many keys it holds, expired ones included.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.table.keys()
    }

    /// Two hashes with a seed each: keys are told apart by 128 bits, as those of a policy's limits are.
    #[inline]
    fn key_of(&self, text: &str) -> Key {
        let [upper, lower] = self.hashers.each_ref().map(|state| {
            let mut hasher = state.build_hasher();
            hasher.write(text.as_bytes());
            u128::from(hasher.finish())
        });
        Key(upper << 64 | lower)
    }

    /// The time on the clock that the limit runs on.
    fn now_us(&self) -> u64 {
        match &self.wall_clock {
            Some(clock) => clock.now().unix_us,
            None => self.quick_clock.steady_us(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::algorithm::{fixed_window, sliding_window, token_bucket, total};
    use crate::units::DAY_US;

    fn units(units: u64) -> Amount {
        Amount::from_units(units).unwrap()
    }

    fn specs() -> [Spec; 4] {
        let (limit, window_us) = (units(2), 365 * DAY_US);
        let bucket = token_bucket::Spec { count: limit, period_us: window_us, burst: limit };
        [
            Spec::TokenBucket(bucket),
            Spec::FixedWindow(fixed_window::Spec { limit, window_us: 1_000 * window_us }),
            Spec::SlidingWindow(sliding_window::Spec { limit, window_us }),
            Spec::Total(total::Spec { limit }),
        ]
    }

    #[test]
    fn a_key_has_its_limit_and_no_other_keys() {
        for spec in specs() {
            let keyed = Keyed::of(spec);
            for key in ["a", "b"] {
                assert_eq!(keyed.check(key), Verdict::Allowed, "{spec}");
                assert_eq!(keyed.check(key), Verdict::Allowed, "{spec}");
                assert_ne!(keyed.check(key), Verdict::Allowed, "{spec}");
            }
            assert_eq!(keyed.check_n("c", units(3)), Verdict::Denied { retry_after: None });
            assert_eq!(keyed.keys(), 2, "what was refused is not kept: {spec}");
        }
    }

    #[test]
    fn a_batch_answers_as_one_check_after_the_other_would() {
        for spec in specs() {
            let keyed = Keyed::of(spec);
            let keys: Vec<String> = (0..300).map(|key| (key % 100).to_string()).collect();
            let mut verdicts = vec![Verdict::Allowed];
            keyed.check_all(&keys, &mut verdicts);
            assert_eq!(verdicts.len(), 301, "appended");
            let refused = |verdicts: &[Verdict]| {
                verdicts.iter().filter(|verdict| **verdict != Verdict::Allowed).count()
            };
            assert_eq!((refused(&verdicts[..201]), refused(&verdicts)), (0, 100), "{spec}");
        }
    }

    /// Checks keys, and appends what became of each.
    type Ask = fn(&Keyed, &[String], &mut Vec<Verdict>);

    /// In batches, and one by one.
    const ASKS: [Ask; 2] = [Keyed::check_all, |keyed, keys, verdicts| {
        verdicts.extend(keys.iter().map(|key| keyed.check(key)));
    }];

    const THREADS: usize = 3;

    /// What several threads return that run at once.
    fn at_once<T: Send>(act: impl Fn(usize) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let act = &act;
            let threads: Vec<_> =
                (0..THREADS).map(|thread| scope.spawn(move || act(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn several_threads_admit_exactly_while_the_table_grows() {
        for ask in ASKS {
            let keyed = Keyed::of(specs()[0]);
            let keys: Vec<String> = (0..20_000).map(|key| key.to_string()).collect();
            let each = at_once(|_| {
                let mut verdicts = Vec::new();
                keys.chunks(64).for_each(|some| ask(&keyed, some, &mut verdicts));
                verdicts
            });
            for (place, key) in keys.iter().enumerate() {
                let allowed = each.iter().filter(|one| one[place] == Verdict::Allowed);
                assert_eq!(allowed.count(), THREADS - 1, "{key}, which may go on twice");
            }
        }
    }

    #[test]
    fn several_threads_admit_exactly_while_keys_come_and_go() {
        const LIMIT: u64 = 3_000;
        let (count, period_us) = (units(LIMIT), 365 * DAY_US);
        let bucket = token_bucket::Spec { count, period_us, burst: units(LIMIT) };
        for ask in ASKS {
            let keyed = Keyed::of(Spec::TokenBucket(bucket)).with_max_keys(500);
            // It has used more than any other, so that it never has to go.
            assert!((0..2).all(|_| keyed.check("busy") == Verdict::Allowed));
            let admitted = at_once(|thread| {
                let mut verdicts = Vec::new();
                for batch in 0..LIMIT {
                    let others = (0..7).map(|key| format!("{thread} {batch} {key}"));
                    let keys: Vec<String> = others.chain(["busy".to_owned()]).collect();
                    ask(&keyed, &keys, &mut verdicts);
                }
                let busy = verdicts.chunks(8).map(|batch| batch[7]);
                busy.filter(|verdict| *verdict == Verdict::Allowed).count() as u64
            });
            assert_eq!(admitted.iter().sum::<u64>(), LIMIT - 2);
        }
    }

    /// Every letter of a text counts, wherever it stands, and so does its length.
    #[test]
    fn no_two_texts_that_differ_a_little_have_one_key() {
        let (keyed, mut keys, mut texts) = (Keyed::of(specs()[0]), HashSet::new(), 0);
        for length in 0..84 {
            let plain: String = ('a'..='z').cycle().take(length).collect();
            let changed = (0..length).flat_map(|place| {
                ["!", "a", "\0"].map(|with| {
                    let mut text = plain.clone();
                    text.replace_range(place..=place, with);
                    text
                })
            });
            let mut all: HashSet<String> = changed.collect();
            all.insert(plain.clone());
            all.insert("\0".repeat(length));
            texts += all.len();
            keys.extend(all.iter().map(|text| keyed.key_of(text)));
        }
        assert_eq!(keys.len(), texts);
    }

    /// Wherever a table looks at a key, all values are about equally frequent, also for texts that differ in a counted
    /// number, as names do.
    #[test]
    fn the_bits_that_place_a_key_are_even() {
        const TEXTS: usize = 1 << 15;
        const PLACES: usize = 1 << 6;
        let keyed = Keyed::of(specs()[0]);
        let kinds: [fn(usize) -> String; 6] = [
            |number| number.to_string(),
            |number| format!("u{number:06}"),
            |number| format!("10.0.{}.{}", number >> 8, number & 255),
            |number| format!("user-{number:020}"),
            |number| format!("{number:040}@example.org"),
            |number| format!("{number:0100}"),
        ];
        for kind in kinds {
            let hash = |number| u64::try_from(keyed.key_of(&kind(number)).0 >> 64).unwrap();
            let hashes: Vec<u64> = (0..TEXTS).map(hash).collect();
            // The lowest bits choose the segment, the highest the page, the next ones its lines.
            for first in [0, 6, 24, 32, 40, 46, 52, 58] {
                let mut counts = [0_usize; PLACES];
                let place =
                    |hash: &u64| usize::try_from(hash >> first & (PLACES as u64 - 1)).unwrap();
                hashes.iter().for_each(|hash| counts[place(hash)] += 1);
                // Seven times the spread that chance has: the seed differs from run to run.
                let even = TEXTS / PLACES;
                let far = 7 * even.isqrt();
                let is_even = |count: &usize| count.abs_diff(even) < far;
                assert!(counts.iter().all(is_even), "{} from {first}: {counts:?}", kind(1));
            }
        }
    }

    #[test]
    fn there_are_never_more_keys_than_it_may_hold() {
        let keyed = Keyed::of(specs()[0]).with_max_keys(500);
        for key in 0..5_000 {
            assert_eq!(keyed.check(&key.to_string()), Verdict::Allowed);
        }
        assert_eq!(keyed.keys(), 500);
    }
}
