//! The calendar windows that requests lie in, as they were last found: to find one takes nearly as long
//! as to decide a request of one limit.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use jiff::tz::TimeZone;

use crate::algorithm::calendar::{Boundaries, Unit, boundaries};

/// The windows of one zone.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    day: ArcSwapOption<Boundaries>,
    week: ArcSwapOption<Boundaries>,
    month: ArcSwapOption<Boundaries>,
}

impl Windows {
    /// The window of an instant, which is the same for every instant of that window.
    pub(crate) fn at(&self, unit: Unit, zone: &TimeZone, unix_us: u64) -> Boundaries {
        let last = match unit {
            Unit::Day => &self.day,
            Unit::Week => &self.week,
            Unit::Month => &self.month,
        };
        if let Some(known) = &*last.load()
            && (known.start_us..known.end_us).contains(&unix_us)
        {
            return **known;
        }
        let found = boundaries(unit, zone, unix_us);
        last.store(Some(Arc::new(found)));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_those_of_the_calendar_in_whatever_order_instants_come() {
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        let (windows, hour_us) = (Windows::default(), 3_600_000_000);
        let start_us = 1_774_652_400_000_000;
        for hour in (0..24 * 70).step_by(5).chain((0..24 * 70).rev().step_by(7)) {
            let now_us = start_us + hour * hour_us;
            for unit in [Unit::Day, Unit::Week, Unit::Month] {
                assert_eq!(windows.at(unit, &zone, now_us), boundaries(unit, &zone, now_us));
            }
        }
    }
}
