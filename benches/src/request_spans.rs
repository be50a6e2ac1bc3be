//! Requests with their times, and the requests that no stall of the machine touched.
//!
//! A processor that the host takes away stands still in the middle of its work. Requests under way then
//! wait for it, and so do requests that come while the backlog is worked off, for as long again. Only the
//! due time of a request decides whether it is left out, not its latency: otherwise requests that are
//! slow by our own fault would be left out more often, because they meet more stalls.

use std::sync::LazyLock;

use tidegate::clock::SystemClock;

/// One request, by a clock that all processes of a benchmark share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestSpan {
    /// When the request was due.
    pub due_us: u64,
    /// When the request was answered.
    pub done_us: u64,
}

/// A time in which a processor did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The processor.
    pub processor: usize,
    /// When the stall began.
    pub begins_us: u64,
    /// How long it lasted.
    pub lasts_us: u64,
}

/// How long requests took, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latencies {
    /// The median.
    pub p50_us: u64,
    /// The p99.
    pub p99_us: u64,
    /// The longest.
    pub longest_us: u64,
}

impl Latencies {
    /// The latencies of these requests; `None` without requests.
    pub fn of(lives: impl IntoIterator<Item = RequestSpan>) -> Option<Self> {
        let lives = lives.into_iter();
        let mut took: Vec<u64> =
            lives.map(|life| life.done_us.saturating_sub(life.due_us)).collect();
        took.sort_unstable();
        let longest_us = *took.last()?;
        Some(Self { p50_us: at(&took, 50), p99_us: at(&took, 99), longest_us })
    }
}

/// The percentile of sorted latencies, of which there is at least one.
pub(crate) fn at(took: &[u64], per_cent: usize) -> u64 {
    took[took.len() * per_cent / 100]
}

/// The median of several values.
#[must_use]
pub fn middle(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

/// How long a request may have been under way when a stall begins. The stall does not excuse a request
/// that takes longer.
const UNDER_WAY_US: u64 = 1_000;

/// The requests that no stall touched.
#[must_use]
pub fn untouched(lives: &[RequestSpan], stalls: &[Stall]) -> Vec<RequestSpan> {
    let shadows = shadows(stalls);
    let is_touched = |life: &RequestSpan| {
        let first = shadows.partition_point(|(_, ends_us)| *ends_us < life.due_us);
        shadows.get(first).is_some_and(|(begins_us, _)| *begins_us <= life.due_us)
    };
    lives.iter().filter(|life| !is_touched(life)).copied().collect()
}

/// The spans in which due requests feel a stall, in order and without overlaps.
fn shadows(stalls: &[Stall]) -> Vec<(u64, u64)> {
    let felt = |stall: &Stall| {
        (stall.begins_us.saturating_sub(UNDER_WAY_US), stall.begins_us + 2 * stall.lasts_us)
    };
    let mut all: Vec<(u64, u64)> = stalls.iter().map(felt).collect();
    all.sort_unstable();
    all.dedup_by(|next, last| {
        let meets = next.0 <= last.1;
        if meets {
            last.1 = last.1.max(next.1);
        }
        meets
    });
    all
}

/// The time by the clock that all processes of a benchmark share: it starts at the Unix time.
pub(crate) fn now_us() -> u64 {
    static CLOCK: LazyLock<SystemClock> = LazyLock::new(SystemClock::new);
    CLOCK.steady_us()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(due_us: u64, done_us: u64) -> RequestSpan {
        RequestSpan { due_us, done_us }
    }

    fn stall(processor: usize, begins_us: u64, lasts_us: u64) -> Stall {
        Stall { processor, begins_us, lasts_us }
    }

    fn is_touched(life: RequestSpan, stalls: &[Stall]) -> bool {
        untouched(&[life], stalls).is_empty()
    }

    #[test]
    fn a_request_due_shortly_before_a_stall_is_touched_whatever_its_latency() {
        let stalls = [stall(0, 10_000, 100)];
        for due_us in [9_000, 9_999, 10_000, 10_099] {
            for took_us in [1, 50_000] {
                assert!(is_touched(life(due_us, due_us + took_us), &stalls), "{due_us}");
            }
        }
        assert!(!is_touched(life(8_999, 60_000), &stalls), "it is slow by itself");
    }

    #[test]
    fn a_request_within_as_long_again_after_a_stall_is_touched() {
        let stalls = [stall(0, 10_000, 100)];
        assert!(is_touched(life(10_200, 10_300), &stalls));
        assert!(!is_touched(life(10_201, 10_300), &stalls));
    }

    #[test]
    fn a_stall_of_any_processor_touches() {
        let stalls = [stall(1, 50_000, 10), stall(0, 10_000, 100)];
        assert!(is_touched(life(10_050, 10_060), &stalls));
        assert!(is_touched(life(50_005, 50_006), &stalls));
        assert!(!is_touched(life(30_000, 30_100), &stalls));
    }

    #[test]
    fn a_short_stall_within_a_long_one_does_not_end_it() {
        let stalls = [stall(0, 10_000, 1_000), stall(1, 10_100, 10)];
        assert_eq!(shadows(&stalls), [(9_000, 12_000)]);
        assert!(is_touched(life(11_500, 11_600), &stalls));
    }

    #[test]
    fn requests_between_two_stalls_are_kept_in_order() {
        let stalls = [stall(0, 10_000, 100), stall(0, 20_000, 100)];
        let lives = [
            life(18_900, 18_950),
            life(19_500, 20_000),
            life(13_000, 14_000),
            life(23_000, 23_001),
        ];
        assert_eq!(untouched(&lives, &stalls), [lives[0], lives[2], lives[3]]);
    }

    #[test]
    fn without_stalls_all_are_kept() {
        let lives = [life(1, 2), life(3, 9)];
        assert_eq!(untouched(&lives, &[]), lives);
    }

    #[test]
    fn latencies_are_those_of_a_hundred_in_order() {
        let lives = (0..100).rev().map(|took| life(1_000, 1_000 + took));
        let expected = Latencies { p50_us: 50, p99_us: 99, longest_us: 99 };
        assert_eq!(Latencies::of(lives), Some(expected));
        assert_eq!(Latencies::of([]), None);
    }

    #[test]
    fn the_middle_of_none_is_nothing() {
        assert_eq!(middle(vec![9, 1, 5]), Some(5));
        assert_eq!(middle(vec![]), None);
    }
}
