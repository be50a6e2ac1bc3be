//! A key as JSON for operators: its numbers, and their meaning in words.

use serde::Serialize;
use tidegate::engine::algorithm::{Pace, Spec};
use tidegate::engine::policy::Algorithm;
use tidegate::engine::units::{Amount, DAY_US, SECOND_US, duration_in_words};

use super::lookup::KeyEntry;
use crate::wire::json::JsonNumber;

#[derive(Serialize)]
pub(super) struct KeyView<'e> {
    key: &'e str,
    /// A key of nothing in force has neither policy nor limit nor penalty.
    policy: Option<&'e str>,
    limit: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    penalty: Option<&'e str>,
    /// The pace that leaves the least.
    #[serde(flatten)]
    reading: Option<Reading>,
    /// How long until the key is as if never used.
    expires_ms: Option<u64>,
    meaning: String,
    /// Each pace that charged the key, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    paces: Vec<Reading>,
}

/// The state of a key at one pace.
#[derive(Serialize)]
struct Reading {
    algorithm: &'static str,
    spec: String,
    capacity: JsonNumber,
    used: JsonNumber,
    available: JsonNumber,
    reset_ms: Option<u64>,
}

impl<'e> KeyView<'e> {
    pub(super) fn of(entry: &'e KeyEntry) -> Self {
        let mut view = Self {
            key: &entry.name,
            policy: entry.policy.as_deref(),
            limit: entry.limit.as_deref(),
            penalty: entry.penalty.as_deref(),
            reading: None,
            expires_ms: None,
            meaning: String::new(),
            paces: Vec::new(),
        };
        match &entry.usage {
            Ok(usage) => {
                let strictest = usage.paces.first();
                view.reading = strictest.map(Reading::of);
                view.expires_ms = usage.ends_in_us.map(|us| us.div_ceil(1_000));
                view.meaning = strictest.map(meaning).unwrap_or_default();
                if usage.paces.len() > 1 {
                    view.paces = usage.paces.iter().map(Reading::of).collect();
                }
            }
            Err(error) => view.meaning = format!("cannot be read: {error}"),
        }
        view
    }
}

impl Reading {
    fn of(pace: &Pace) -> Self {
        Self {
            algorithm: Algorithm::of(&pace.spec).name(),
            spec: pace.spec.to_string(),
            capacity: JsonNumber(pace.spec.capacity()),
            used: JsonNumber(used(pace)),
            available: JsonNumber(pace.reading.available),
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
    use tidegate::engine::algorithm::{Reading, sliding_window, token_bucket, total};

    use super::*;

    fn meaning_of(spec: Spec, available: u64, reset_us: Option<u64>) -> String {
        let available = Amount::from_units(available).unwrap();
        meaning(&Pace { spec, reading: Reading { available, reset_us } })
    }

    #[test]
    fn what_a_key_means_is_told_in_words() {
        let units = |units| Amount::from_units(units).unwrap();
        let bucket = token_bucket::Spec { count: units(5), period_us: SECOND_US, burst: units(10) };
        assert_eq!(
            meaning_of(Spec::TokenBucket(bucket), 4, Some(1_200_000)),
            "6 of 10 spent; full again in 2 seconds"
        );
        let window = sliding_window::Spec { limit: units(2), window_us: 60 * SECOND_US };
        assert_eq!(
            meaning_of(Spec::SlidingWindow(window), 0, Some(58_400_001)),
            "2 of 2 used in the last minute; all free again in 59 seconds"
        );
        let all = Spec::Total(total::Spec { limit: units(9) });
        assert_eq!(meaning_of(all, 8, None), "1 of 9 used, until it is given back or deleted");
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
