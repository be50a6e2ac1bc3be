//! A key as operators see it: numbers, and what they mean.

use serde::Serialize;
use tidegate::algorithm::{Pace, Spec};
use tidegate::policy::Algorithm;
use tidegate::units::{Amount, DAY_US, SECOND_US, duration_in_words};

use super::find::Entry;
use crate::wire::api::Number;

/// One key.
#[derive(Serialize)]
pub(super) struct Key<'e> {
    key: &'e str,
    /// Those of no limit in force have neither.
    policy: Option<&'e str>,
    limit: Option<&'e str>,
    /// What leaves the least, where it was charged under several.
    #[serde(flatten)]
    reading: Option<Reading>,
    /// How long until it is as good as never used.
    expires_ms: Option<u64>,
    meaning: String,
    /// The same for each pace that it was charged at, where these are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    paces: Vec<Reading>,
}

/// What a key shows under the numbers that it was charged with.
#[derive(Serialize)]
struct Reading {
    algorithm: &'static str,
    spec: String,
    capacity: Number,
    used: Number,
    available: Number,
    reset_ms: Option<u64>,
}

impl<'e> Key<'e> {
    pub(super) fn of(entry: &'e Entry) -> Self {
        let (policy, limit) = (entry.policy.as_deref(), entry.limit.as_deref());
        let counted = match &entry.counted {
            Ok(counted) => counted,
            Err(error) => {
                let meaning = format!("cannot be read: {error}");
                let (reading, expires_ms, paces) = (None, None, Vec::new());
                return Self {
                    key: &entry.name,
                    policy,
                    limit,
                    reading,
                    expires_ms,
                    meaning,
                    paces,
                };
            }
        };
        let strictest = counted.paces.first();
        let several = counted.paces.iter().filter(|_| counted.paces.len() > 1);
        Self {
            key: &entry.name,
            policy,
            limit,
            reading: strictest.map(Reading::of),
            expires_ms: counted.ends_in_us.map(|us| us.div_ceil(1_000)),
            meaning: strictest.map(meaning).unwrap_or_default(),
            paces: several.map(Reading::of).collect(),
        }
    }
}

impl Reading {
    fn of(pace: &Pace) -> Self {
        Self {
            algorithm: Algorithm::of(&pace.spec).name(),
            spec: pace.spec.to_string(),
            capacity: Number(pace.spec.capacity()),
            used: Number(used(pace)),
            available: Number(pace.reading.available),
            reset_ms: pace.reading.reset_us.map(|us| us.div_ceil(1_000)),
        }
    }
}

fn used(pace: &Pace) -> Amount {
    pace.spec.capacity().saturating_sub(pace.reading.available)
}

fn meaning(pace: &Pace) -> String {
    let (used, capacity) = (used(pace), pace.spec.capacity());
    let in_time = pace.reading.reset_us.map(|us| format!("in {}", rounded(us)));
    let in_time = in_time.unwrap_or_else(|| "never".to_owned());
    let per = pace.spec.window().map(|window| window.per()).unwrap_or_default();
    match pace.spec {
        Spec::TokenBucket(_) => format!("{used} of {capacity} spent; full again {in_time}"),
        Spec::SlidingWindow(_) => {
            format!("{used} of {capacity} used in the last {per}; all free again {in_time}")
        }
        Spec::SlidingCounter(_) => {
            format!("about {used} of {capacity} used in the last {per}; all free again {in_time}")
        }
        Spec::FixedWindow(_) | Spec::Quota(_) => {
            format!("{used} of {capacity} used, of each {per}; starts afresh {in_time}")
        }
        Spec::Concurrency(_) => {
            format!("{used} of {capacity} places held; the last lease ends {in_time}")
        }
        Spec::Total(_) => format!("{used} of {capacity} used, until it is given back or deleted"),
        Spec::Ceiling(_) => String::new(),
    }
}

/// A time in a unit that people would choose, rounded up.
fn rounded(us: u64) -> String {
    const MINUTE_US: u64 = 60 * SECOND_US;
    let unit_us = match us {
        0..SECOND_US => 1_000,
        us if us < 2 * MINUTE_US => SECOND_US,
        us if us < 120 * MINUTE_US => MINUTE_US,
        us if us < 2 * DAY_US => 60 * MINUTE_US,
        _ => DAY_US,
    };
    let units = us.div_ceil(unit_us).max(1);
    duration_in_words(units.saturating_mul(unit_us))
}

#[cfg(test)]
mod tests {
    use tidegate::algorithm::{Reading, sliding_window, token_bucket, total};

    use super::*;

    fn told(spec: Spec, available: u64, reset_us: Option<u64>) -> String {
        let available = Amount::from_units(available).unwrap();
        meaning(&Pace { spec, reading: Reading { available, reset_us } })
    }

    #[test]
    fn what_a_key_means_is_told_in_words() {
        let units = |units| Amount::from_units(units).unwrap();
        let bucket = token_bucket::Spec { count: units(5), period_us: SECOND_US, burst: units(10) };
        assert_eq!(
            told(Spec::TokenBucket(bucket), 4, Some(1_200_000)),
            "6 of 10 spent; full again in 2 seconds"
        );
        let window = sliding_window::Spec { limit: units(2), window_us: 60 * SECOND_US };
        assert_eq!(
            told(Spec::SlidingWindow(window), 0, Some(58_400_001)),
            "2 of 2 used in the last minute; all free again in 59 seconds"
        );
        let all = Spec::Total(total::Spec { limit: units(9) });
        assert_eq!(told(all, 8, None), "1 of 9 used, until it is given back or deleted");
    }

    #[test]
    fn times_are_rounded_up_to_a_unit_that_people_would_choose() {
        for (us, words) in [
            (0, "1 millisecond"),
            (1_500, "2 milliseconds"),
            (1_000_001, "2 seconds"),
            (119_000_000, "119 seconds"),
            (121_000_000, "3 minutes"),
            (7_200_000_001, "3 hours"),
            (3 * DAY_US + 1, "4 days"),
        ] {
            assert_eq!(rounded(us), words, "{us}");
        }
    }
}
