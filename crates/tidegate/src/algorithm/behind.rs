//! How long a cost waits in a queue behind other costs of the same state.
//!
//! The result is never more than the true wait if the whole queue stays, so that no request is turned away that could
//! be served in time. For a bucket it is exact to the microsecond.

use super::{Amount, Reading, Spec, Verdict, calendar, saturate};
use crate::clock::micros;
use crate::units::DAY_US;

/// Microseconds until the cost would fit behind `ahead_micros` of others, at the least; `None`
/// where no waiting helps.
///
/// `verdict` and `reading` are what the state says of the cost alone.
pub(crate) fn behind_us(
    spec: &Spec,
    verdict: Verdict,
    reading: &Reading,
    ahead_micros: u128,
    cost: Amount,
) -> Option<u64> {
    let alone_us = match verdict {
        Verdict::Allowed => 0,
        Verdict::Denied { retry_after } => micros(retry_after?),
    };
    let wanted = ahead_micros + u128::from(cost.micros());
    let available = u128::from(reading.available.micros());
    let limit = u128::from(spec.capacity().micros().max(1));
    let windows = wanted.div_ceil(limit);
    let queued_us = match spec {
        Spec::TokenBucket(spec) => {
            let refill_us = |micros: u128| {
                micros * u128::from(spec.period_us) / u128::from(spec.count.micros().max(1))
            };
            match verdict {
                Verdict::Denied { .. } => u128::from(alone_us) + refill_us(ahead_micros),
                // The last millionth may be refilled in part already. Only the others need all of their refill.
                Verdict::Allowed => match wanted.saturating_sub(available) {
                    0 => 0,
                    missing => refill_us(missing - 1) + 1,
                },
            }
        }
        // Any window has room for one limit, also the window that ends with this cost.
        Spec::SlidingWindow(spec) => u128::from(spec.window_us) * windows.saturating_sub(1),
        // Each aligned window has room for one limit; the first and the last may be cut short.
        Spec::SlidingCounter(spec) => u128::from(spec.window_us) * windows.saturating_sub(2),
        Spec::FixedWindow(spec) => {
            aligned_us(wanted, available, limit, reading.reset_us, spec.window_us)
        }
        Spec::Quota(spec) => {
            aligned_us(wanted, available, limit, reading.reset_us, shortest_us(spec.unit))
        }
        // A place may be given back at any time.
        Spec::Concurrency(_) => 0,
        Spec::Total(_) | Spec::Ceiling(_) => return None,
    };
    Some(alone_us.max(saturate(queued_us)))
}

/// The rest of the present window, and a whole window for every further limit.
fn aligned_us(
    wanted: u128,
    available: u128,
    limit: u128,
    rest_us: Option<u64>,
    window_us: u64,
) -> u128 {
    match wanted.saturating_sub(available).div_ceil(limit) {
        0 => 0,
        windows => u128::from(rest_us.unwrap_or(0)) + u128::from(window_us) * (windows - 1),
    }
}

/// No calendar window is shorter, whatever a time zone does to its clocks.
const fn shortest_us(unit: calendar::Unit) -> u64 {
    match unit {
        calendar::Unit::Day => DAY_US / 2,
        calendar::Unit::Week => 6 * DAY_US,
        calendar::Unit::Month => 27 * DAY_US,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{
        charge, concurrency, evaluate, fixed_window, quota, reading, sliding_counter,
        sliding_window, token_bucket, total,
    };
    use super::*;

    fn amount(units: u64) -> Amount {
        Amount::from_units(units).unwrap()
    }

    fn specs() -> impl Strategy<Value = Spec> {
        let numbers = (1..6_u64, 1..2_000_u64, 1..6_u64);
        (0..5_usize, numbers).prop_map(|(kind, (count, span_us, burst))| {
            let limit = amount(count);
            match kind {
                0 => Spec::TokenBucket(token_bucket::Spec {
                    count: limit,
                    period_us: span_us,
                    burst: amount(burst),
                }),
                1 => Spec::SlidingWindow(sliding_window::Spec { limit, window_us: span_us }),
                2 => Spec::SlidingCounter(sliding_counter::Spec { limit, window_us: span_us }),
                3 => Spec::FixedWindow(fixed_window::Spec { limit, window_us: span_us }),
                _ => Spec::Concurrency(concurrency::Spec { places: limit, lease_us: span_us }),
            }
        })
    }

    /// Serves costs one after the other, each as soon as it fits; returns when the last was.
    fn served_at_us(
        spec: &Spec,
        mut state: super::super::State,
        from_us: u64,
        costs: &[u64],
    ) -> u64 {
        let mut now_us = from_us;
        for (holder, cost) in costs.iter().enumerate() {
            while let Verdict::Denied { retry_after } =
                evaluate(&state, spec, now_us, amount(*cost))
            {
                now_us += micros(retry_after.unwrap());
            }
            charge(&mut state, spec, now_us, 100 + holder as u64, amount(*cost));
        }
        now_us
    }

    proptest! {
        #[test]
        fn nobody_is_told_a_longer_wait_than_the_queue_takes(
            spec in specs(),
            spent in prop::collection::vec(1..3_u64, 0..6),
            ahead in prop::collection::vec(1..4_u64, 0..8),
            cost in 1..4_u64,
            gap_us in 0..500_u64,
        ) {
            let fits = |cost: &u64| amount(*cost) <= spec.capacity();
            prop_assume!(fits(&cost) && ahead.iter().all(fits));
            let mut state = spec.new_state().unwrap();
            let start_us = 1_000_000;
            for (holder, cost) in spent.iter().filter(|cost| fits(cost)).enumerate() {
                if evaluate(&state, &spec, start_us, amount(*cost)) == Verdict::Allowed {
                    charge(&mut state, &spec, start_us, holder as u64, amount(*cost));
                }
            }
            let now_us = start_us + gap_us;
            let verdict = evaluate(&state, &spec, now_us, amount(cost));
            let seen = reading(&state, &spec, now_us);
            let ahead_micros: u128 = ahead.iter().map(|cost| u128::from(amount(*cost).micros())).sum();
            let told = behind_us(&spec, verdict, &seen, ahead_micros, amount(cost)).unwrap();
            let costs: Vec<u64> = ahead.iter().copied().chain([cost]).collect();
            let true_us = served_at_us(&spec, state, now_us, &costs) - now_us;
            prop_assert!(told <= true_us, "told {told}, took {true_us}");
            if matches!(spec, Spec::TokenBucket(_)) {
                // Each of those ahead is served at a whole microsecond.
                let slack = costs.len() as u64;
                prop_assert!(told + slack >= true_us, "told {told}, took {true_us}");
            }
        }
    }

    #[test]
    fn a_day_that_is_used_up_ends_and_then_whole_days_pass() {
        let spec = Spec::Quota(quota::Spec {
            limit: amount(2),
            unit: calendar::Unit::Day,
            previous_us: 0,
            start_us: 0,
            end_us: DAY_US,
            next_end_us: 2 * DAY_US,
        });
        let seen = Reading { available: amount(1), reset_us: Some(5) };
        let wait = |ahead: u64| {
            behind_us(&spec, Verdict::Allowed, &seen, u128::from(ahead) * 1_000_000, amount(1))
        };
        assert_eq!((wait(0), wait(1), wait(2)), (Some(0), Some(5), Some(5)));
        assert_eq!(wait(3), Some(5 + DAY_US / 2));
    }

    #[test]
    fn where_no_waiting_helps_none_is_told() {
        let never = Verdict::Denied { retry_after: None };
        let seen = Reading { available: Amount::ZERO, reset_us: None };
        let total = Spec::Total(total::Spec { limit: amount(5) });
        assert_eq!(behind_us(&total, Verdict::Allowed, &seen, 1, amount(1)), None);
        let places = Spec::Concurrency(concurrency::Spec { places: amount(1), lease_us: 9 });
        assert_eq!(behind_us(&places, never, &seen, 1, amount(2)), None);
        assert_eq!(behind_us(&places, Verdict::Allowed, &seen, 1, amount(1)), Some(0));
    }
}
