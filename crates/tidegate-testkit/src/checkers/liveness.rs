//! Liveness: no request is denied while the limit has room, and a client that waits as told gets in.

use tidegate::Amount;
use tidegate::engine::algorithm::{Spec, token_bucket};

use super::{Entry, Violation, by_key, micros, violation};

/// No request is denied while the reference has room for its cost. The reference is computed anew
/// from the admissions before each denial. Admissions of the same instant count as earlier, because
/// a log of several threads does not say which came first.
///
/// Concurrency is not judged here, because its log does not say when places were released. Ceilings
/// are not judged either: they admit by value alone.
///
/// # Errors
/// The first denial in vain.
pub fn check_no_denial_in_vain(log: &[Entry], spec: &Spec) -> Result<(), Violation> {
    for entries in by_key(log) {
        let mut admitted: Vec<&Entry> = Vec::new();
        let mut next = 0;
        for denied in entries.iter().filter(|entry| !entry.admitted) {
            while next < entries.len() && entries[next].time_us <= denied.time_us {
                admitted.extend(Some(entries[next]).filter(|entry| entry.admitted));
                next += 1;
            }
            if has_room(spec, &admitted, denied.time_us, denied.cost) {
                let detail = format!("{} were denied, but `{spec}` had room for them", denied.cost);
                return Err(violation(denied, detail));
            }
        }
    }
    Ok(())
}

/// A client that waits as long as it was told gets in, if no other request is admitted meanwhile.
///
/// Entries of one instant must be in the order of the decisions. Where several threads wrote the
/// log, put the admissions of that instant last: then nothing is promised for it.
///
/// # Errors
/// The first request that came back in time and was denied.
pub fn check_retries_admitted(log: &[Entry]) -> Result<(), Violation> {
    for entries in by_key(log) {
        for (index, denied) in entries.iter().enumerate().filter(|(_, entry)| !entry.admitted) {
            let Some(wait_us) = denied.retry_after_us else { continue };
            let due_us = denied.time_us.saturating_add(wait_us);
            let later = &entries[index + 1..];
            let next_admission = later.iter().find(|entry| entry.admitted);
            let contested_us = next_admission.map_or(u64::MAX, |entry| entry.time_us);
            let broken = |entry: &&&Entry| {
                (due_us..contested_us).contains(&entry.time_us) && entry.cost <= denied.cost
            };
            if let Some(refused) = later.iter().find(broken) {
                let told_us = denied.time_us;
                let detail = format!("told at {told_us} µs to come at {due_us} µs, and was denied");
                return Err(violation(refused, detail));
            }
        }
    }
    Ok(())
}

/// Whether the cost fits beside the earlier admissions, by the definition of the limit.
fn has_room(spec: &Spec, admitted: &[&Entry], now_us: u64, cost: Amount) -> bool {
    let since = |from_us: u64| {
        let seen = admitted.iter().rev().take_while(|entry| entry.time_us >= from_us);
        seen.map(|entry| micros(entry.cost)).sum::<u128>()
    };
    let used = match spec {
        Spec::TokenBucket(spec) => return bucket_has_room(spec, admitted, now_us, cost),
        Spec::SlidingWindow(spec) => {
            since(now_us.checked_sub(spec.window_us).map_or(0, |gone_us| gone_us + 1))
        }
        Spec::SlidingCounter(spec) => {
            let window_us = spec.window_us.max(1);
            let start_us = now_us - now_us % window_us;
            let current = since(start_us);
            let previous = since(start_us.saturating_sub(window_us)) - current;
            let seen = u128::from(window_us - (now_us - start_us));
            current + (previous * seen).div_ceil(u128::from(window_us))
        }
        Spec::FixedWindow(spec) => since(now_us - now_us % spec.window_us.max(1)),
        Spec::Quota(spec) => {
            let turned = [spec.next_end_us, spec.end_us, spec.start_us];
            since(turned.into_iter().find(|turn_us| *turn_us <= now_us).unwrap_or(0))
        }
        Spec::Total(_) => since(0),
        Spec::Concurrency(_) | Spec::Ceiling(_) => return false,
    };
    used + micros(cost) <= micros(spec.capacity())
}

fn bucket_has_room(
    spec: &token_bucket::Spec,
    admitted: &[&Entry],
    now_us: u64,
    cost: Amount,
) -> bool {
    let period = u128::from(spec.period_us.max(1));
    let (mut level, mut last_us) = (0_u128, 0_u64);
    let admissions = admitted.iter().map(|entry| (entry.time_us, entry.cost));
    for (time_us, cost) in admissions.chain([(now_us, cost)]) {
        level = level.saturating_sub(micros(spec.count) * u128::from(time_us - last_us));
        level += micros(cost) * period;
        last_us = time_us;
    }
    level <= micros(spec.burst) * period
}

#[cfg(test)]
mod tests {
    use tidegate::engine::algorithm::{
        calendar, fixed_window, quota, sliding_counter, sliding_window, total,
    };

    use super::*;

    const LIMIT: Amount = Amount::ONE;
    const WINDOW_US: u64 = 100;

    /// One admitted at 150, and one denied at `denied_us`.
    fn denied_at(denied_us: u64) -> Vec<Entry> {
        vec![
            Entry::denied("k", denied_us, Amount::ONE, None),
            Entry::admitted("k", 150, Amount::ONE),
        ]
    }

    /// Asserts that a denial at `busy_us` passes, and that one at `free_us` is caught.
    fn assert_caught(spec: Spec, busy_us: u64, free_us: u64) {
        assert_eq!(check_no_denial_in_vain(&denied_at(busy_us), &spec), Ok(()), "{spec}");
        let broken = check_no_denial_in_vain(&denied_at(free_us), &spec).unwrap_err();
        assert_eq!(broken.time_us, free_us, "{spec}: {broken}");
    }

    #[test]
    fn a_denial_in_vain_is_caught_to_the_microsecond_for_each_algorithm() {
        let bucket = token_bucket::Spec { count: LIMIT, period_us: WINDOW_US, burst: LIMIT };
        assert_caught(Spec::TokenBucket(bucket), 249, 250);
        let sliding = sliding_window::Spec { limit: LIMIT, window_us: WINDOW_US };
        assert_caught(Spec::SlidingWindow(sliding), 249, 250);
        let counter = sliding_counter::Spec { limit: LIMIT, window_us: WINDOW_US };
        assert_caught(Spec::SlidingCounter(counter), 299, 300);
        let fixed = fixed_window::Spec { limit: LIMIT, window_us: WINDOW_US };
        assert_caught(Spec::FixedWindow(fixed), 199, 200);
        let unit = calendar::Unit::Day;
        let (previous_us, start_us, end_us, next_end_us) = (0, 100, 210, 300);
        let quota = quota::Spec { limit: LIMIT, unit, previous_us, start_us, end_us, next_end_us };
        assert_caught(Spec::Quota(quota), 209, 210);
        assert_caught(Spec::Total(total::Spec { limit: LIMIT }), u64::MAX, 149);
    }

    #[test]
    fn a_denial_at_the_promised_instant_is_caught() {
        let denied = |time_us, wait_us| Entry::denied("k", time_us, Amount::ONE, Some(wait_us));
        let kept = [denied(0, 100), denied(99, 1), Entry::admitted("k", 100, Amount::ONE)];
        assert_eq!(check_retries_admitted(&kept), Ok(()));
        let broken = check_retries_admitted(&[denied(0, 100), denied(100, 5)]).unwrap_err();
        assert_eq!(broken.time_us, 100);
    }

    #[test]
    fn a_promise_is_void_after_another_admission_or_for_a_larger_cost() {
        let denied = |time_us, cost| Entry::denied("k", time_us, cost, Some(10));
        let taken =
            [denied(0, LIMIT), Entry::admitted("k", 9, Amount::ONE), denied(10, Amount::ONE)];
        assert_eq!(check_retries_admitted(&taken), Ok(()));
        let at_once =
            [denied(0, LIMIT), denied(10, Amount::ONE), Entry::admitted("k", 10, Amount::ONE)];
        assert_eq!(check_retries_admitted(&at_once), Ok(()), "the order of an instant is unknown");
        let more = [denied(0, LIMIT), denied(10, Amount::MAX)];
        assert_eq!(check_retries_admitted(&more), Ok(()));
    }
}
