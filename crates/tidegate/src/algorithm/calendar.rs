//! Where calendar windows begin and end.
//!
//! A window turns at the first instant of the local date: where daylight saving skips midnight that
//! is later than 00:00, where midnight comes twice it is the first of the two. A date that a zone
//! skipped altogether has no window. Times beyond what a calendar can say are clamped.

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, ToSpan};

/// The last instant with a window of its own, in the year 9900: later ones are taken as this one,
/// so that the windows after it can still be said.
const UNIX_US_MAX: u64 = 250_000_000_000 * 1_000_000;

/// What a quota counts by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A local date.
    Day,
    /// Seven local dates from a Monday on.
    Week,
    /// A month of local dates.
    Month,
}

/// The window that an instant lies in and the end of the one after it, in Unix microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundaries {
    /// The first instant of the window, at least zero.
    pub start_us: u64,
    /// The first instant of the next window.
    pub end_us: u64,
    /// The first instant of the one after that.
    pub next_end_us: u64,
}

/// The calendar window of an instant. It is the same for every instant of that window.
#[must_use]
pub fn boundaries(unit: Unit, zone: &TimeZone, unix_us: u64) -> Boundaries {
    let now = instant(unix_us.min(UNIX_US_MAX));
    let mut first = first_date(unit, zone.to_datetime(now).date());
    let mut start = first_instant(zone, first);
    let (mut end, mut end_date) = next_window(unit, zone, first, start);
    // Where clocks go back from after midnight to before it, the old date comes once more although
    // the next one's window has begun.
    while end <= now && end_date > first {
        (first, start) = (end_date, end);
        (end, end_date) = next_window(unit, zone, first, start);
    }
    let (next_end, _) = next_window(unit, zone, end_date, end);
    Boundaries {
        start_us: unix_micros(start),
        end_us: unix_micros(end),
        next_end_us: unix_micros(next_end),
    }
}

/// Where the window after the one that starts at `start` begins, and its first date. Dates that the
/// zone skipped begin at the same instant as the date after them, and are passed over.
fn next_window(unit: Unit, zone: &TimeZone, first: Date, start: Timestamp) -> (Timestamp, Date) {
    let mut date = first;
    loop {
        let next = following_date(unit, date);
        let begins = first_instant(zone, next);
        if begins > start || next == date {
            return (begins, next);
        }
        date = next;
    }
}

fn first_date(unit: Unit, date: Date) -> Date {
    match unit {
        Unit::Day => date,
        Unit::Week => date.saturating_sub(i64::from(date.weekday().to_monday_zero_offset()).days()),
        Unit::Month => date.first_of_month(),
    }
}

fn following_date(unit: Unit, first: Date) -> Date {
    match unit {
        Unit::Day => first.saturating_add(1.day()),
        Unit::Week => first.saturating_add(1.week()),
        Unit::Month => first.saturating_add(1.month()),
    }
}

/// The first instant at which clocks in the zone show this date, or a later one.
fn first_instant(zone: &TimeZone, date: Date) -> Timestamp {
    let midnight = DateTime::from_parts(date, Time::midnight());
    let ambiguous = zone.to_ambiguous_timestamp(midnight);
    let beyond = if date.year() < 0 { Timestamp::MIN } else { Timestamp::MAX };
    let AmbiguousOffset::Gap { after, .. } = ambiguous.offset() else {
        return ambiguous.compatible().unwrap_or(beyond);
    };
    // Midnight falls into a gap, which need not begin at midnight: the date begins where the gap
    // is jumped. Read with the offset after the gap, midnight lies before that instant.
    let before_gap = after.to_timestamp(midnight).unwrap_or(beyond);
    let jump = zone.following(before_gap).next();
    jump.map_or(before_gap, |transition| transition.timestamp())
}

fn instant(unix_us: u64) -> Timestamp {
    let us = i64::try_from(unix_us).unwrap_or(i64::MAX);
    Timestamp::from_microsecond(us).unwrap_or(Timestamp::MAX)
}

/// An instant before the epoch counts as the epoch.
fn unix_micros(instant: Timestamp) -> u64 {
    u64::try_from(instant.as_microsecond()).unwrap_or(0)
}
