//! Where calendar windows begin and end.
//!
//! A window turns at the first instant of the local date: where daylight saving skips midnight that
//! is later than 00:00, where midnight comes twice it is the first of the two. A date that a zone
//! skipped altogether has no window. Times beyond what a calendar can say are clamped.

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, ToSpan};
use serde::{Deserialize, Serialize};

/// The last instant with a window of its own, in the year 9900: later ones are taken as this one,
/// so that the windows after it can still be said.
const UNIX_US_MAX: u64 = 250_000_000_000 * 1_000_000;

/// What a quota counts by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
// A whole word, for two reasons. The unused values tell the variants of a spec apart. And a spec without gaps is copied
// in pieces that do not overlap, so that a read soon after does not stall.
#[repr(u64)]
pub enum Unit {
    /// A local date.
    Day,
    /// Seven local dates from a Monday on.
    Week,
    /// A month of local dates.
    Month,
}

/// The window that an instant lies in, the start of the one before and the end of the one after it,
/// in Unix microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundaries {
    /// The first instant of the window before, at least zero.
    pub previous_us: u64,
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
        previous_us: unix_micros(previous_start(unit, zone, first, start)),
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

/// Where the window before the one that starts at `start` begins; dates that the zone skipped are
/// passed over.
fn previous_start(unit: Unit, zone: &TimeZone, first: Date, start: Timestamp) -> Timestamp {
    let mut date = first;
    loop {
        let before = preceding_date(unit, date);
        let begins = first_instant(zone, before);
        if begins < start || before == date {
            return begins;
        }
        date = before;
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

fn preceding_date(unit: Unit, first: Date) -> Date {
    match unit {
        Unit::Day => first.saturating_sub(1.day()),
        Unit::Week => first.saturating_sub(1.week()),
        Unit::Month => first.saturating_sub(1.month()),
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ZONES: [&str; 14] = [
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "America/Sao_Paulo",
        "America/Havana",
        "America/St_Johns",
        "Africa/Cairo",
        "Asia/Kolkata",
        "Asia/Beirut",
        "Australia/Lord_Howe",
        "Pacific/Apia",
        "Pacific/Kwajalein",
        "Pacific/Chatham",
        "America/Scoresbysund",
    ];

    fn zone(name: &str) -> TimeZone {
        TimeZone::get(name).unwrap()
    }

    fn us(text: &str) -> u64 {
        let instant: Timestamp = text.parse().unwrap();
        u64::try_from(instant.as_microsecond()).unwrap()
    }

    /// Every instant named lies in the window, which runs from the first to the second boundary.
    fn assert_window(unit: Unit, name: &str, within: &[&str], turns: [&str; 3]) {
        let expected = turns.map(us);
        let [start_us, end_us, _] = expected;
        for now_us in within.iter().map(|text| us(text)).chain([start_us, end_us - 1]) {
            let found = boundaries(unit, &zone(name), now_us);
            let found = [found.start_us, found.end_us, found.next_end_us];
            assert_eq!(found, expected, "{name} at {now_us}");
        }
    }

    #[test]
    fn days_are_an_hour_shorter_or_longer_when_clocks_change() {
        let spring =
            ["2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00", "2026-03-31T00:00:00+02:00"];
        assert_window(Unit::Day, "Europe/Berlin", &["2026-03-29T03:00:00+02:00"], spring);
        let autumn =
            ["2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00", "2026-10-27T00:00:00+01:00"];
        let twice = ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"];
        assert_window(Unit::Day, "Europe/Berlin", &twice, autumn);
        let spring =
            ["2026-03-08T00:00:00-05:00", "2026-03-09T00:00:00-04:00", "2026-03-10T00:00:00-04:00"];
        assert_window(Unit::Day, "America/New_York", &["2026-03-08T03:00:00-04:00"], spring);
        let autumn =
            ["2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00", "2026-11-03T00:00:00-05:00"];
        assert_window(Unit::Day, "America/New_York", &["2026-11-01T01:30:00-05:00"], autumn);
    }

    #[test]
    fn a_day_without_midnight_begins_where_the_clock_jumps() {
        let turns =
            ["2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00", "2018-11-06T00:00:00-02:00"];
        assert_window(Unit::Day, "America/Sao_Paulo", &["2018-11-04T12:00:00-02:00"], turns);
        let turns =
            ["2024-04-26T01:00:00+03:00", "2024-04-27T00:00:00+03:00", "2024-04-28T00:00:00+03:00"];
        assert_window(Unit::Day, "Africa/Cairo", &["2024-04-26T12:00:00+03:00"], turns);
    }

    #[test]
    fn a_jump_that_begins_before_midnight_ends_the_day_at_once() {
        // Nuuk's clocks go from 23:00 to 00:00 of the next date.
        let turns =
            ["2024-03-30T00:00:00-02:00", "2024-03-31T00:00:00-01:00", "2024-04-01T00:00:00-01:00"];
        assert_window(Unit::Day, "America/Nuuk", &["2024-03-30T22:59:59-02:00"], turns);
        // Toronto's went from 23:30 to 00:30 in 1919: the date begins with the jump.
        let toronto = first_instant(&zone("America/Toronto"), jiff::civil::date(1919, 3, 31));
        assert_eq!(toronto, "1919-03-31T00:30:00-04:00".parse().unwrap());
    }

    #[test]
    fn where_midnight_comes_twice_the_first_one_counts() {
        let turns =
            ["2025-11-02T00:00:00-04:00", "2025-11-03T00:00:00-05:00", "2025-11-04T00:00:00-05:00"];
        let second_midnight = ["2025-11-02T00:00:00-05:00", "2025-11-02T00:30:00-04:00"];
        assert_window(Unit::Day, "America/Havana", &second_midnight, turns);
    }

    #[test]
    fn a_date_that_comes_back_after_midnight_opens_no_earlier_window() {
        // At 00:01 of the 29th clocks went back to 23:01 of the 28th.
        let turns =
            ["2006-10-29T00:00:00-02:30", "2006-10-30T00:00:00-03:30", "2006-10-31T00:00:00-03:30"];
        let saturday_again = ["2006-10-28T23:01:00-03:30", "2006-10-28T23:59:59-03:30"];
        assert_window(Unit::Day, "America/St_Johns", &saturday_again, turns);
    }

    #[test]
    fn a_skipped_date_has_no_window() {
        let before =
            ["2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"];
        assert_window(Unit::Day, "Pacific/Apia", &["2011-12-29T23:59:59-10:00"], before);
        let two_before =
            ["2011-12-28T00:00:00-10:00", "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00"];
        assert_window(Unit::Day, "Pacific/Apia", &["2011-12-28T12:00:00-10:00"], two_before);
    }

    #[test]
    fn leap_days_month_ends_and_year_ends_are_dates_like_any_other() {
        let leap = ["2028-02-29T00:00:00Z", "2028-03-01T00:00:00Z", "2028-03-02T00:00:00Z"];
        assert_window(Unit::Day, "UTC", &["2028-02-29T12:00:00Z"], leap);
        let february = ["2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z", "2028-04-01T00:00:00Z"];
        assert_window(Unit::Month, "UTC", &["2028-02-29T23:59:59Z"], february);
        let january = ["2027-01-01T00:00:00Z", "2027-02-01T00:00:00Z", "2027-03-01T00:00:00Z"];
        assert_window(Unit::Month, "UTC", &["2027-01-31T12:00:00Z"], january);
        let december =
            ["2026-12-01T00:00:00+05:30", "2027-01-01T00:00:00+05:30", "2027-02-01T00:00:00+05:30"];
        assert_window(Unit::Month, "Asia/Kolkata", &["2026-12-31T18:29:59Z"], december);
    }

    #[test]
    fn weeks_start_on_monday_also_across_new_year() {
        let turns =
            ["2026-12-28T00:00:00+01:00", "2027-01-04T00:00:00+01:00", "2027-01-11T00:00:00+01:00"];
        let within = ["2026-12-31T23:00:00+01:00", "2027-01-03T23:59:59+01:00"];
        assert_window(Unit::Week, "Europe/Berlin", &within, turns);
    }

    #[test]
    fn times_beyond_the_calendar_are_clamped() {
        for name in ZONES {
            for unit in [Unit::Day, Unit::Week, Unit::Month] {
                let last = boundaries(unit, &zone(name), UNIX_US_MAX);
                assert_eq!(boundaries(unit, &zone(name), u64::MAX), last);
                assert!(last.start_us <= UNIX_US_MAX && UNIX_US_MAX < last.end_us);
                assert!(last.end_us < last.next_end_us);
                assert_eq!(boundaries(unit, &zone(name), 0).start_us, 0);
            }
        }
    }

    fn units() -> impl Strategy<Value = Unit> {
        prop_oneof![Just(Unit::Day), Just(Unit::Week), Just(Unit::Month)]
    }

    /// Any instant, or one within two days of a change of the zone's clocks.
    fn instants() -> impl Strategy<Value = (&'static str, u64)> {
        let near = (0..4_102_444_800_u64, 0..4 * 86_400_u64, any::<bool>());
        (prop::sample::select(ZONES.as_slice()), near).prop_map(|(name, (second, shift, near))| {
            let drawn = second * 1_000_000;
            let zone = zone(name);
            let change = zone.following(instant(drawn)).next().filter(|_| near);
            let around = change.map_or(drawn, |change| unix_micros(change.timestamp()));
            (name, (around + shift * 1_000_000).saturating_sub(2 * 86_400 * 1_000_000))
        })
    }

    proptest! {
        #[test]
        fn windows_hold_their_instants_meet_and_stay_put(
            unit in units(), (name, now_us) in instants(), share in 0..=1_000_u64,
        ) {
            let zone = zone(name);
            let this = boundaries(unit, &zone, now_us);
            prop_assert!(this.start_us <= now_us && now_us < this.end_us);
            prop_assert!(this.end_us < this.next_end_us);
            let inside = this.start_us + (this.end_us - 1 - this.start_us) / 1_000 * share;
            for same_us in [this.start_us, inside, this.end_us - 1] {
                prop_assert_eq!(boundaries(unit, &zone, same_us), this);
            }
            let next = boundaries(unit, &zone, this.end_us);
            prop_assert_eq!((next.start_us, next.end_us), (this.end_us, this.next_end_us));
            prop_assert_eq!(next.previous_us, this.start_us);
        }
    }
}
