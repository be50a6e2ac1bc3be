//! Whether a run kept its promises.

use std::collections::BTreeSet;
use std::fmt;

use super::{DEADLINE_US, Run, Stretch};
use crate::checkers::liveness::{honoured_retries_get_in, nobody_is_denied_in_vain};
use crate::checkers::trouble::{Trouble, promise_is_kept};
use crate::checkers::{Entry, Violation};
use crate::log::Recorded;

/// A promise that a run broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Which promise.
    pub promise: &'static str,
    /// How.
    pub violation: Violation,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.violation)
    }
}

impl std::error::Error for Broken {}

impl Run {
    /// Judges everything that is promised for what went wrong.
    ///
    /// # Errors
    /// The first promise that was broken.
    pub fn judge(&self) -> Result<(), Broken> {
        let broke = |promise| move |violation| Broken { promise, violation };
        self.log.nobody_saw_an_error().map_err(broke("no caller sees an error"))?;
        let waits = self.log.nobody_waited_longer_than(DEADLINE_US);
        waits.map_err(broke("no caller waits longer than the deadline"))?;
        self.bounds().map_err(broke("never more than promised"))?;
        for stretch in &self.stretches {
            let kept = self.bounds_within(stretch);
            kept.map_err(broke("never more than promised while the same nodes are cut off"))?;
        }
        self.loans().map_err(broke("level and loans never exceed the burst"))?;
        let needed = self.degraded_only_if_cut_off();
        needed.map_err(broke("whoever reaches the store asks it"))?;
        self.liveness().map_err(broke("nobody is denied in vain"))
    }

    /// The whole run.
    fn bounds(&self) -> Result<(), Violation> {
        let ever: BTreeSet<u32> =
            self.stretches.iter().flat_map(|stretch| &stretch.cut_off).copied().collect();
        let turned = self.stretches.len() > 1;
        let cut_off = u32::try_from(ever.len()).unwrap_or(u32::MAX);
        promise_is_kept(&self.log.entries(), &self.spec, &self.with(cut_off, turned))
    }

    /// A stretch without a cut or a return: nothing is forgiven for one. Whoever was still waiting
    /// when it began is left out.
    fn bounds_within(&self, stretch: &Stretch) -> Result<(), Violation> {
        let from_us = stretch.from_us.saturating_add(DEADLINE_US);
        let entries: Vec<Entry> = self
            .completed()
            .filter(|(completed_us, _)| (from_us..stretch.until_us).contains(completed_us))
            .filter_map(|(_, recorded)| recorded.entry())
            .collect();
        let cut_off = u32::try_from(stretch.cut_off.len()).unwrap_or(u32::MAX);
        promise_is_kept(&entries, &self.spec, &self.with(cut_off, false))
    }

    fn with(&self, cut_off: u32, turned: bool) -> Trouble {
        // What a node decides by itself is logged as of when it was asked, and it may have waited
        // for the store until its deadline.
        let early_us = if cut_off > 0 { DEADLINE_US } else { 0 };
        let off_by_us = early_us + self.borrowed_blur_us();
        Trouble { cut_off, turned, off_by_us, ..self.trouble }
    }

    /// What is spent of a loan is logged as of the store's time when that was last heard, and the time
    /// since. Loans that count for less long, as the clock is set forth, are refilled so much earlier.
    fn borrowed_blur_us(&self) -> u64 {
        if self.leased { 2 * self.stepped_us + DEADLINE_US } else { 0 }
    }

    fn loans(&self) -> Result<(), Violation> {
        self.overlent.clone().map_or(Ok(()), |(time_us, detail)| {
            Err(Violation { key: "all".to_owned(), time_us, detail })
        })
    }

    fn degraded_only_if_cut_off(&self) -> Result<(), Violation> {
        let cut_off_at = |completed_us: u64, node: u32| {
            let met = |stretch: &&Stretch| {
                stretch.from_us <= completed_us
                    && completed_us <= stretch.until_us.saturating_add(DEADLINE_US)
            };
            self.stretches.iter().filter(met).any(|stretch| stretch.cut_off.contains(&node))
        };
        for (completed_us, recorded) in self.completed() {
            if recorded.degraded && !cut_off_at(completed_us, recorded.node) {
                let detail = format!("node {} decided without the store", recorded.node);
                return Err(Violation { key: recorded.key, time_us: recorded.at_us, detail });
            }
        }
        Ok(())
    }

    /// The store denies nobody in vain, by what it charged itself. What a lost write or another
    /// clock brings about is not in its history, so that such runs are not judged.
    fn liveness(&self) -> Result<(), Violation> {
        // What nodes hold of a leased limit is out of reach for the others.
        if self.leased || self.trouble.failovers > 0 || self.trouble.set_back_us > 0 {
            return Ok(());
        }
        let denied = |recorded: Recorded| {
            recorded.entry().filter(|entry| !recorded.degraded && !entry.admitted)
        };
        let mut log: Vec<Entry> = self.log.sorted().into_iter().filter_map(denied).collect();
        log.extend(self.charged.iter().cloned());
        // Nobody knows which of an instant came first.
        log.sort_by_key(|entry| (entry.time_us, entry.admitted));
        nobody_is_denied_in_vain(&log, &self.spec)?;
        honoured_retries_get_in(&log)
    }

    /// What was recorded, with when it was.
    fn completed(&self) -> impl Iterator<Item = (u64, Recorded)> {
        self.completed_us.iter().copied().zip(self.log.recorded())
    }
}
