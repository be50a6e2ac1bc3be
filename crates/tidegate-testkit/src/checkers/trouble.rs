//! The bounds of a deployment in trouble: nodes cut off, failovers, clocks that differ.

use tidegate::Amount;
use tidegate::engine::algorithm::{Spec, sliding_counter, sliding_window, token_bucket};

use super::{Entry, Violation, bounds, micros};

/// The faults of a deployment that loosen a promise. By default there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trouble {
    /// How many nodes share the limits.
    pub nodes: u32,
    /// How many of them were cut off from the store, and decided with their share.
    pub cut_off: u32,
    /// Whether a node was cut off or came back meanwhile: one further limit is allowed.
    pub turned: bool,
    /// How often the store failed over.
    pub failovers: u32,
    /// The time of newest writes that each failover may have lost.
    pub lag_us: u64,
    /// How far the store's clock was set back, in all.
    pub set_back_us: u64,
    /// By how much the log may be late, or early: zero where it carries the store's own time.
    pub off_by_us: u64,
}

/// Checks the admissions of one limit against the bound for such trouble. Concurrency is not judged
/// here, because the log does not say when places were released. Ceilings are not judged either:
/// they keep no count.
///
/// # Errors
/// The first admission that is too much.
pub fn check_bound(log: &[Entry], spec: &Spec, trouble: &Trouble) -> Result<(), Violation> {
    match spec {
        Spec::TokenBucket(spec) => bucket(log, spec, trouble),
        Spec::SlidingCounter(sliding_counter::Spec { limit, window_us }) => {
            let (count, burst) = (*limit, *limit);
            let shares = whole_shares(*limit, trouble);
            let spec = token_bucket::Spec { count, period_us: *window_us, burst };
            bucket_with(log, &spec, [shares, shares], trouble)
        }
        Spec::SlidingWindow(spec) => {
            let window_us = spec.window_us.saturating_sub(trouble.off_by_us).max(1);
            let limit = window_limit(spec.limit, spec.window_us, trouble);
            bounds::sliding_window(log, &sliding_window::Spec { limit, window_us })
        }
        Spec::FixedWindow(spec) => {
            let limit = window_limit(spec.limit, spec.window_us, trouble);
            let window = |time_us| time_us / spec.window_us.max(1);
            over_all_windows(log, limit, trouble, window)?;
            bounds::fixed_window(&sure(log, trouble, window), limit, spec.window_us)
        }
        Spec::Quota(spec) => {
            let turns_us = [spec.start_us, spec.end_us, spec.next_end_us];
            let window_us = spec.end_us.saturating_sub(spec.start_us);
            let limit = window_limit(spec.limit, window_us, trouble);
            let window = |time_us| turns_us.iter().map(|us| u64::from(*us <= time_us)).sum();
            over_all_windows(log, limit, trouble, window)?;
            bounds::quota(&sure(log, trouble, window), limit, &turns_us)
        }
        Spec::Total(spec) => bounds::total(log, window_limit(spec.limit, u64::MAX, trouble)),
        Spec::Concurrency(_) | Spec::Ceiling(_) => Ok(()),
    }
}

/// (1 + k/N) · (b + r · δ), a share below one counting as one.
fn bucket(log: &[Entry], spec: &token_bucket::Spec, trouble: &Trouble) -> Result<(), Violation> {
    let (nodes, cut_off) = (u128::from(trouble.nodes.max(1)), u128::from(trouble.cut_off));
    let shares =
        |amount| (micros(amount) * cut_off).div_ceil(nodes).max(micros(Amount::ONE) * cut_off);
    bucket_with(log, spec, [shares(spec.count), shares(spec.burst)], trouble)
}

fn bucket_with(
    log: &[Entry],
    spec: &token_bucket::Spec,
    [count, burst]: [u128; 2],
    trouble: &Trouble,
) -> Result<(), Violation> {
    let period_us = u128::from(spec.period_us.max(1));
    let refilled = |count: u128, us: u64| (count * u128::from(us)).div_ceil(period_us);
    let (own_count, one_burst) = (micros(spec.count), micros(spec.burst));
    let slack = u128::from(trouble.turned) * one_burst
        + u128::from(trouble.failovers) * (one_burst + refilled(own_count, trouble.lag_us))
        + refilled(own_count, trouble.set_back_us)
        + refilled(own_count + count, trouble.off_by_us);
    let larger = token_bucket::Spec {
        count: amount(own_count + count),
        burst: amount(one_burst + burst),
        ..*spec
    };
    bounds::token_bucket(log, &larger, amount(slack))
}

/// L + k · ⌈L/N⌉, and the allowance for failovers and clocks.
fn window_limit(limit: Amount, window_us: u64, trouble: &Trouble) -> Amount {
    let windows_in = |us: u64| u128::from(us.div_ceil(window_us.max(1)));
    let forgiven = u128::from(trouble.turned)
        + u128::from(trouble.failovers) * (1 + u128::from(trouble.lag_us / window_us.max(1)))
        + windows_in(trouble.set_back_us);
    amount(micros(limit) * (1 + forgiven) + whole_shares(limit, trouble))
}

fn whole_shares(limit: Amount, trouble: &Trouble) -> u128 {
    let share = limit.whole().div_ceil(u64::from(trouble.nodes.max(1))).max(1);
    u128::from(share) * micros(Amount::ONE) * u128::from(trouble.cut_off)
}

/// The entries that are certainly in their apparent window.
fn sure(log: &[Entry], trouble: &Trouble, window: impl Fn(u64) -> u64) -> Vec<Entry> {
    let is_sure = |entry: &&Entry| {
        let [first, last] = span_us(entry, trouble).map(&window);
        first == last
    };
    log.iter().filter(is_sure).cloned().collect()
}

/// At most the limit for each window in the log, wherever the edges were.
fn over_all_windows(
    log: &[Entry],
    limit: Amount,
    trouble: &Trouble,
    window: impl Fn(u64) -> u64,
) -> Result<(), Violation> {
    let spans_us = || log.iter().map(|entry| span_us(entry, trouble));
    let first_us = spans_us().map(|[first_us, _]| first_us).min().unwrap_or(0);
    let last_us = spans_us().map(|[_, last_us]| last_us).max().unwrap_or(0);
    let windows = u128::from(window(last_us) - window(first_us)) + 1;
    bounds::total(log, amount(micros(limit) * windows))
}

/// The earliest and the latest time of an entry.
fn span_us(entry: &Entry, trouble: &Trouble) -> [u64; 2] {
    let off_by_us = trouble.off_by_us;
    [entry.time_us.saturating_sub(off_by_us), entry.time_us.saturating_add(off_by_us)]
}

fn amount(micros: u128) -> Amount {
    u64::try_from(micros).ok().and_then(Amount::from_micros).unwrap_or(Amount::MAX)
}

#[cfg(test)]
mod tests {
    use tidegate::engine::algorithm::{calendar, fixed_window, quota, total};

    use super::*;

    const WINDOW_US: u64 = 1_000_000;

    fn units(units: u64) -> Amount {
        Amount::from_units(units).unwrap()
    }

    /// `count` admissions at one instant, in the middle of the second window.
    fn burst(count: usize) -> Vec<Entry> {
        vec![Entry::admitted("k", WINDOW_US * 3 / 2, Amount::ONE); count]
    }

    /// Each algorithm with a limit of this size.
    fn specs(limit: u64) -> [Spec; 6] {
        let (limit, window_us) = (units(limit), WINDOW_US);
        let (start_us, end_us, next_end_us) = (WINDOW_US, 2 * WINDOW_US, 3 * WINDOW_US);
        let unit = calendar::Unit::Day;
        [
            Spec::TokenBucket(token_bucket::Spec {
                count: limit,
                period_us: WINDOW_US,
                burst: limit,
            }),
            Spec::SlidingCounter(sliding_counter::Spec { limit, window_us }),
            Spec::SlidingWindow(sliding_window::Spec { limit, window_us }),
            Spec::FixedWindow(fixed_window::Spec { limit, window_us }),
            Spec::Quota(quota::Spec { limit, unit, previous_us: 0, start_us, end_us, next_end_us }),
            Spec::Total(total::Spec { limit }),
        ]
    }

    /// Asserts that `most` at once are within the bound, and that one more is not.
    fn assert_most(limit: u64, trouble: &Trouble, most: usize) {
        for spec in specs(limit) {
            assert_eq!(check_bound(&burst(most), &spec, trouble), Ok(()), "{spec}");
            let broken = check_bound(&burst(most + 1), &spec, trouble);
            assert!(broken.is_err(), "{spec}: {} of {most} went unseen", most + 1);
        }
    }

    #[test]
    fn without_trouble_the_limit_holds() {
        assert_most(8, &Trouble::default(), 8);
    }

    #[test]
    fn each_node_that_is_cut_off_has_its_share() {
        let trouble = Trouble { nodes: 4, cut_off: 2, ..Trouble::default() };
        assert_most(8, &trouble, 8 + 2 * 2);
        // A share below one counts as one.
        let many = Trouble { nodes: 10, cut_off: 3, ..Trouble::default() };
        assert_most(2, &many, 2 + 3);
    }

    #[test]
    fn a_share_that_is_not_whole_is_exact_for_a_bucket_and_rounded_up_for_a_window() {
        let trouble = Trouble { nodes: 4, cut_off: 2, ..Trouble::default() };
        let [bucket, counter, window, ..] = specs(10);
        for (spec, most) in [(bucket, 15), (counter, 16), (window, 16)] {
            assert_eq!(check_bound(&burst(most), &spec, &trouble), Ok(()), "{spec}");
            assert!(check_bound(&burst(most + 1), &spec, &trouble).is_err(), "{spec}");
        }
    }

    #[test]
    fn a_cut_or_a_return_allows_one_further_limit() {
        let trouble = Trouble { nodes: 4, cut_off: 1, turned: true, ..Trouble::default() };
        assert_most(8, &trouble, 8 + 2 + 8);
    }

    #[test]
    fn a_failover_allows_for_lost_writes() {
        let trouble = Trouble { failovers: 2, ..Trouble::default() };
        assert_most(8, &trouble, 8 + 2 * 8);
        let lag_us = WINDOW_US / 4;
        let trouble = Trouble { failovers: 1, lag_us, ..Trouble::default() };
        let [bucket, ..] = specs(8);
        assert_eq!(check_bound(&burst(8 + 8 + 2), &bucket, &trouble), Ok(()));
        assert!(check_bound(&burst(8 + 8 + 3), &bucket, &trouble).is_err());
    }

    #[test]
    fn a_clock_set_back_gives_as_much_again_as_it_went_back() {
        let trouble = Trouble { set_back_us: WINDOW_US / 2, ..Trouble::default() };
        let [bucket, _, window, ..] = specs(8);
        for (spec, most) in [(bucket, 12), (window, 16)] {
            assert_eq!(check_bound(&burst(most), &spec, &trouble), Ok(()), "{spec}");
            assert!(check_bound(&burst(most + 1), &spec, &trouble).is_err(), "{spec}");
        }
    }

    #[test]
    fn a_late_or_early_log_judges_only_certain_entries() {
        let trouble = Trouble { off_by_us: 1_000, ..Trouble::default() };
        let at = |time_us, count| vec![Entry::admitted("k", time_us, Amount::ONE); count];
        for spec in &specs(8)[3..5] {
            for near_the_edge_us in [2 * WINDOW_US - 1_000, 2 * WINDOW_US + 999] {
                let judge = |count| check_bound(&at(near_the_edge_us, count), spec, &trouble);
                assert_eq!(judge(2 * 8), Ok(()), "{spec}");
                assert!(judge(2 * 8 + 1).is_err(), "{spec}");
            }
            assert!(check_bound(&burst(9), spec, &trouble).is_err(), "{spec}");
        }
    }
}
