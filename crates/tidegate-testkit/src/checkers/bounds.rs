//! Upper bounds on what is admitted.

use std::collections::BTreeMap;

use tidegate::Amount;
use tidegate::engine::algorithm::{sliding_counter, sliding_window, token_bucket};

use super::{Entry, Violation, admissions, by_key, micros, violation};

/// Admitted in any δ ≤ burst + rate · δ, and no more than `slack` above it.
///
/// # Errors
/// The first admission after which more was admitted.
pub fn token_bucket(
    log: &[Entry],
    spec: &token_bucket::Spec,
    slack: Amount,
) -> Result<(), Violation> {
    let (rate, period) = (micros(spec.count), u128::from(spec.period_us.max(1)));
    // Levels are in millionths times the period, so that nothing is rounded.
    let full = (micros(spec.burst) + micros(slack)) * period;
    for entries in admissions(log) {
        let (mut level, mut last_us) = (0_u128, 0_u64);
        for entry in entries {
            level = level.saturating_sub(rate * u128::from(entry.time_us - last_us));
            level += micros(entry.cost) * period;
            last_us = entry.time_us;
            if level > full {
                let level = decimal(level / period);
                let detail = format!("the bucket holds {}, but {level} are in it", spec.burst);
                return Err(violation(entry, detail));
            }
        }
    }
    Ok(())
}

/// Never more than the limit in any (t − window, t].
///
/// # Errors
/// The first admission that ends a window with more.
pub fn sliding_window(log: &[Entry], spec: &sliding_window::Spec) -> Result<(), Violation> {
    for entries in admissions(log) {
        let (mut oldest, mut sum) = (0, 0);
        for (newest, entry) in entries.iter().enumerate() {
            sum += micros(entry.cost);
            while oldest < newest
                && entries[oldest].time_us.saturating_add(spec.window_us) <= entry.time_us
            {
                sum -= micros(entries[oldest].cost);
                oldest += 1;
            }
            over(entry, sum, spec.limit, "in one window")?;
        }
    }
    Ok(())
}

/// Admitted in any δ ≤ limit + limit · δ / window: the bound of a bucket of that size and rate.
///
/// # Errors
/// The first admission after which more was admitted.
pub fn sliding_counter(log: &[Entry], spec: &sliding_counter::Spec) -> Result<(), Violation> {
    let bucket =
        token_bucket::Spec { count: spec.limit, period_us: spec.window_us, burst: spec.limit };
    token_bucket(log, &bucket, Amount::ZERO)
}

/// Never more than the limit in one window, aligned to the epoch.
///
/// # Errors
/// The first admission that is too much for its window.
pub fn fixed_window(log: &[Entry], limit: Amount, window_us: u64) -> Result<(), Violation> {
    per_window(log, limit, |time_us| time_us / window_us.max(1))
}

/// Never more than the limit between two turns of the calendar; `turns_us` are in order.
///
/// # Errors
/// The first admission that is too much for its window.
pub fn quota(log: &[Entry], limit: Amount, turns_us: &[u64]) -> Result<(), Violation> {
    let window = |time_us| turns_us.partition_point(|turn_us| *turn_us <= time_us);
    per_window(log, limit, |time_us| u64::try_from(window(time_us)).unwrap_or(u64::MAX))
}

/// Never more than the limit in all.
///
/// # Errors
/// The first admission that is too much.
pub fn total(log: &[Entry], limit: Amount) -> Result<(), Violation> {
    per_window(log, limit, |_| 0)
}

fn per_window(
    log: &[Entry],
    limit: Amount,
    window_of: impl Fn(u64) -> u64,
) -> Result<(), Violation> {
    for entries in admissions(log) {
        let mut sums: BTreeMap<u64, u128> = BTreeMap::new();
        for entry in entries {
            let sum = sums.entry(window_of(entry.time_us)).or_default();
            *sum += micros(entry.cost);
            over(entry, *sum, limit, "in one window")?;
        }
    }
    Ok(())
}

/// A place that was held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The key of the limit.
    pub key: String,
    /// The instant at which the place was taken.
    pub from_us: u64,
    /// The first instant at which the place was free: released, or expired.
    pub until_us: u64,
    /// How many places.
    pub places: Amount,
}

/// Never more places held at once than there are.
///
/// # Errors
/// The first hold that is one too many.
pub fn concurrency(holds: &[Hold], places: Amount) -> Result<(), Violation> {
    let log: Vec<Entry> =
        holds.iter().map(|hold| Entry::admitted(&hold.key, hold.from_us, hold.places)).collect();
    for entries in by_key(&log) {
        for entry in entries {
            let held = |hold: &&Hold| {
                hold.key == entry.key
                    && hold.from_us <= entry.time_us
                    && entry.time_us < hold.until_us
            };
            let sum = holds.iter().filter(held).map(|hold| micros(hold.places)).sum();
            over(entry, sum, places, "held at once")?;
        }
    }
    Ok(())
}

fn over(entry: &Entry, sum: u128, limit: Amount, what: &str) -> Result<(), Violation> {
    if sum <= micros(limit) {
        return Ok(());
    }
    Err(violation(entry, format!("at most {limit} {what}, found {}", decimal(sum))))
}

fn decimal(micros: u128) -> String {
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(units: u64) -> Amount {
        Amount::from_units(units).unwrap()
    }

    fn ones(times_us: &[u64]) -> Vec<Entry> {
        times_us.iter().map(|time_us| Entry::admitted("k", *time_us, Amount::ONE)).collect()
    }

    const BUCKET: token_bucket::Spec = token_bucket::Spec {
        count: Amount::ONE,
        period_us: 3,
        // Two.
        burst: match Amount::from_units(2) {
            Some(two) => two,
            None => Amount::ONE,
        },
    };

    #[test]
    fn a_bucket_may_spend_its_burst_and_its_refill_and_not_a_microsecond_sooner() {
        let judge = |log: &[Entry]| token_bucket(log, &BUCKET, Amount::ZERO);
        assert_eq!(judge(&ones(&[5, 5, 8, 11])), Ok(()));
        let broken = judge(&ones(&[5, 5, 8, 10])).unwrap_err();
        assert_eq!((broken.time_us, &*broken.key), (10, "k"));
        assert_eq!(
            broken.to_string(),
            "key `k` at 10 µs: the bucket holds 2, but 2.333333 are in it"
        );
    }

    #[test]
    fn the_order_of_the_log_does_not_matter_and_keys_do_not_mix() {
        assert!(token_bucket(&ones(&[10, 5, 8, 5]), &BUCKET, Amount::ZERO).is_err());
        let mut log = ones(&[5, 5]);
        log.push(Entry::admitted("other", 5, Amount::ONE));
        log.push(Entry::denied("k", 5, Amount::ONE, Some(3)));
        assert_eq!(token_bucket(&log, &BUCKET, Amount::ZERO), Ok(()));
    }

    #[test]
    fn slack_forgives_exactly_as_much_as_it_says() {
        let log = ones(&[0, 0, 2]);
        let slack = |micros| Amount::from_micros(micros).unwrap();
        assert!(token_bucket(&log, &BUCKET, slack(333_333)).is_err());
        assert_eq!(token_bucket(&log, &BUCKET, slack(333_334)), Ok(()));
    }

    #[test]
    fn a_window_forgets_an_entry_that_is_exactly_one_window_old() {
        let spec = sliding_window::Spec { limit: units(2), window_us: 100 };
        assert_eq!(sliding_window(&ones(&[0, 50, 100, 150]), &spec), Ok(()));
        assert_eq!(sliding_window(&ones(&[0, 50, 99]), &spec).unwrap_err().time_us, 99);
    }

    #[test]
    fn a_counter_may_reach_twice_the_limit_in_a_window_and_no_more() {
        let spec = sliding_counter::Spec { limit: units(2), window_us: 100 };
        assert_eq!(sliding_counter(&ones(&[0, 0, 50, 100]), &spec), Ok(()));
        assert_eq!(sliding_counter(&ones(&[0, 0, 49]), &spec).unwrap_err().time_us, 49);
    }

    #[test]
    fn windows_that_meet_at_an_edge_count_apart() {
        assert_eq!(fixed_window(&ones(&[99, 100]), Amount::ONE, 100), Ok(()));
        assert!(fixed_window(&ones(&[100, 199]), Amount::ONE, 100).is_err());
        assert_eq!(quota(&ones(&[6, 7, 30]), Amount::ONE, &[7, 30]), Ok(()));
        assert_eq!(quota(&ones(&[7, 29]), Amount::ONE, &[7, 30]).unwrap_err().time_us, 29);
    }

    #[test]
    fn a_total_counts_everything() {
        assert_eq!(total(&ones(&[1, 1_000_000]), units(2)), Ok(()));
        assert!(total(&ones(&[1, 1_000_000, u64::MAX]), units(2)).is_err());
    }

    #[test]
    fn a_place_is_free_at_the_instant_it_is_given_back() {
        let hold = |from_us, until_us| Hold {
            key: "k".to_owned(),
            from_us,
            until_us,
            places: Amount::ONE,
        };
        assert_eq!(concurrency(&[hold(0, 10), hold(10, 20)], Amount::ONE), Ok(()));
        let broken = concurrency(&[hold(0, 11), hold(10, 20)], Amount::ONE).unwrap_err();
        assert_eq!(broken.time_us, 10);
    }
}
