//! Time, read once per decision and passed down. No other file reads a clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// One reading of both clocks, in microseconds since the Unix epoch.
///
/// `steady_us` never steps: it starts at the Unix time and then counts on its own. Buckets and
/// sliding windows use it, so that a corrected wall clock moves no limit. Windows that people see
/// on a calendar use `unix_us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Now {
    /// Microseconds that never step back or forth.
    pub steady_us: u64,
    /// Microseconds of wall-clock time.
    pub unix_us: u64,
}

/// Where the time comes from.
pub trait Clock: Send + Sync + 'static {
    /// Both clocks, read together.
    fn now(&self) -> Now;
}

/// An instant is a clock that stands still.
impl Clock for Now {
    fn now(&self) -> Now {
        *self
    }
}

/// How long the distance between wall clock and steady clock is used before it is measured again.
const WALL_OFFSET_TTL_US: u64 = 10_000;

/// The machine's own clocks. Clones share the distance between them.
///
/// A decision reads the steady clock alone. The distance of the wall clock is measured at most a
/// hundred times a second.
#[derive(Clone, Debug)]
pub struct SystemClock {
    started: Instant,
    started_unix_us: u64,
    wall: Arc<WallClockOffset>,
}

/// How far the wall clock is from the steady one.
#[derive(Debug, Default)]
struct WallClockOffset {
    ahead_us: AtomicI64,
    /// Until when that holds, on the steady clock.
    until_us: AtomicU64,
}

impl WallClockOffset {
    /// The wall clock's time at a steady time; `read` reads it.
    fn at(&self, steady_us: u64, read: impl FnOnce() -> u64) -> u64 {
        if steady_us < self.until_us.load(Ordering::Acquire) {
            return steady_us.saturating_add_signed(self.ahead_us.load(Ordering::Relaxed));
        }
        let unix_us = read();
        self.ahead_us.store(unix_us.wrapping_sub(steady_us).cast_signed(), Ordering::Relaxed);
        self.until_us.store(steady_us.saturating_add(WALL_OFFSET_TTL_US), Ordering::Release);
        unix_us
    }
}

impl SystemClock {
    /// The steady clock alone, for how long something took.
    #[must_use]
    pub fn steady_us(&self) -> u64 {
        self.started_unix_us.saturating_add(micros(self.started.elapsed()))
    }

    /// Starts counting steady time from now.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "this file is where time is read")]
    pub fn new() -> Self {
        Self { started: Instant::now(), started_unix_us: unix_us(), wall: Arc::default() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Now {
        let steady_us = self.steady_us();
        Now { steady_us, unix_us: self.wall.at(steady_us, unix_us) }
    }
}

/// Steady time by the counter of the processor, if that is even. It is for callers that need the time
/// every few nanoseconds: the system's clock is a barrier for the processor. The counter is compared
/// with the system's clock once, so that it may be off by some seconds a day.
#[derive(Clone, Debug)]
pub(crate) struct QuickClock {
    counter: quanta::Clock,
    started: u64,
    started_unix_us: u64,
    /// How long it takes to count one, in 2⁻⁶⁴ of a microsecond.
    tick: u64,
}

/// The number of ticks whose length is measured: minutes, so that no day is a microsecond off.
const TICKS: u64 = 1 << 40;

impl QuickClock {
    pub(crate) fn new() -> Self {
        let counter = quanta::Clock::new();
        let us_shifted = (u128::from(counter.delta_as_nanos(0, TICKS)) << 64) / 1_000;
        let tick = u64::try_from(us_shifted / u128::from(TICKS)).unwrap_or(u64::MAX);
        Self { started: counter.raw(), counter, started_unix_us: unix_us(), tick }
    }

    #[inline]
    pub(crate) fn steady_us(&self) -> u64 {
        let ticks = self.counter.raw().saturating_sub(self.started);
        self.started_unix_us + elapsed_us(ticks, self.tick)
    }
}

/// Ticks of `tick / 2^64` microseconds each.
#[allow(clippy::cast_possible_truncation, reason = "the upper half of 128 bits")]
const fn elapsed_us(ticks: u64, tick: u64) -> u64 {
    ((ticks as u128 * tick as u128) >> 64) as u64
}

#[allow(clippy::disallowed_methods, reason = "this file is where time is read")]
fn unix_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros)
}

/// A duration in microseconds, the unit of [`Now`].
#[must_use]
pub fn micros(duration: Duration) -> u64 {
    let whole_us = duration.as_secs().saturating_mul(1_000_000);
    whole_us.saturating_add(u64::from(duration.subsec_micros()))
}

/// A clock for tests that moves only on command. Clones share their time.
///
/// ```
/// use std::time::Duration;
/// use tidegate::clock::{Clock, FakeClock};
///
/// let clock = FakeClock::at_unix_seconds(1_767_603_600);
/// let before = clock.now();
/// clock.advance(Duration::from_secs(60));
/// assert_eq!(clock.now().unix_us - before.unix_us, 60_000_000);
/// ```
#[derive(Clone, Debug)]
pub struct FakeClock {
    times: Arc<[AtomicU64; 2]>,
}

impl FakeClock {
    /// A clock that stands at this Unix time.
    #[must_use]
    pub fn at_unix_seconds(seconds: u64) -> Self {
        Self::at_unix(Duration::from_secs(seconds))
    }

    /// A clock that stands at this time after the Unix epoch.
    #[must_use]
    pub fn at_unix(since_epoch: Duration) -> Self {
        let us = micros(since_epoch);
        Self { times: Arc::new([AtomicU64::new(us), AtomicU64::new(us)]) }
    }

    /// Moves both clocks forward.
    pub fn advance(&self, by: Duration) {
        for time in self.times.iter() {
            time.fetch_add(micros(by), Ordering::SeqCst);
        }
    }

    /// Sets the wall clock alone to a time after the Unix epoch, as an operator or NTP would; steady time
    /// does not change.
    pub fn step_wall_clock(&self, since_epoch: Duration) {
        self.times[1].store(micros(since_epoch), Ordering::SeqCst);
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Now {
        let [steady, unix] = &*self.times;
        Now { steady_us: steady.load(Ordering::SeqCst), unix_us: unix.load(Ordering::SeqCst) }
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Now {
        (**self).now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_time_ignores_a_stepped_wall_clock() {
        let clock = FakeClock::at_unix_seconds(100);
        clock.step_wall_clock(Duration::from_micros(5));
        clock.advance(Duration::from_micros(2));
        assert_eq!(clock.now(), Now { steady_us: 100_000_002, unix_us: 7 });
    }

    #[test]
    fn a_stepped_wall_clock_is_noticed_within_ten_milliseconds() {
        let (wall, start) = (WallClockOffset::default(), 1_000_000);
        assert_eq!(wall.at(start, || start), start);
        assert_eq!(wall.at(start + 9_999, || 5), start + 9_999);
        assert_eq!(wall.at(start + 10_000, || 5), 5);
        assert_eq!(wall.at(start + 10_007, || 0), 12);
        assert_eq!(wall.at(start + 20_000, || u64::MAX), u64::MAX);
    }

    #[test]
    fn the_quick_clock_counts_as_its_counter_does() {
        let clock = QuickClock::new();
        for ticks in (0..56).map(|bits| 1_u64 << bits) {
            let elapsed_us = elapsed_us(ticks, clock.tick);
            let expected_us = clock.counter.delta_as_nanos(0, ticks) / 1_000;
            // As exact as the counter's own scale, which is a whole number.
            let within_us = 1 + expected_us / 1_000_000_000;
            assert!(elapsed_us.abs_diff(expected_us) <= within_us, "{ticks}");
        }
    }

    #[test]
    fn the_system_clock_moves_forward() {
        let clock = SystemClock::new();
        let first = clock.now();
        assert!(clock.now().steady_us >= first.steady_us);
    }
}
