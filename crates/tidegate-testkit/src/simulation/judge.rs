//! Whether a run kept its promises.

use std::collections::BTreeSet;
use std::fmt;

use super::{DEADLINE_US, Run, Stretch};
use crate::checkers::liveness::{check_no_denial_in_vain, check_retries_admitted};
use crate::checkers::trouble::{Trouble, check_bound};
use crate::checkers::{Entry, Violation};
use crate::log::CallRecord;

/// A promise that a run broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenPromise {
    /// Which promise.
    pub promise: &'static str,
    /// How.
    pub violation: Violation,
}

impl fmt::Display for BrokenPromise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.violation)
    }
}

impl std::error::Error for BrokenPromise {}

impl Run {
    /// Checks every promise that holds for the faults of this run.
    ///
    /// # Errors
    /// The first promise that was broken.
    pub fn judge(&self) -> Result<(), BrokenPromise> {
        let broke = |promise| move |violation| BrokenPromise { promise, violation };
        self.log.check_no_errors().map_err(broke("no caller sees an error"))?;
        let waits = self.log.check_longest_wait(DEADLINE_US);
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
        check_bound(&self.log.entries(), &self.spec, &self.with(cut_off, turned))
    }

    /// Checks a stretch without a cut or a return, for which nothing further is allowed. Requests that
    /// were still waiting when it began are left out.
    fn bounds_within(&self, stretch: &Stretch) -> Result<(), Violation> {
        let from_us = stretch.from_us.saturating_add(DEADLINE_US);
        let entries: Vec<Entry> = self
            .completed()
            .filter(|(completed_us, _)| (from_us..stretch.until_us).contains(completed_us))
            .filter_map(|(_, recorded)| recorded.entry())
            .collect();
        let cut_off = u32::try_from(stretch.cut_off.len()).unwrap_or(u32::MAX);
        check_bound(&entries, &self.spec, &self.with(cut_off, false))
    }

    fn with(&self, cut_off: u32, turned: bool) -> Trouble {
        // A node logs its own decision with the time of the request, and may have waited for the store
        // until the deadline.
        let early_us = if cut_off > 0 { DEADLINE_US } else { 0 };
        let off_by_us = early_us + self.borrowed_blur_us();
        Trouble { cut_off, turned, off_by_us, ..self.trouble }
    }

    /// A charge of a loan is logged with the store's last known time and the time since. When the clock is
    /// set forward, loans count for less long and the refill comes earlier.
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

    /// The store denies no request while it has room, by its own charges. The effects of lost writes and
    /// of another clock are not in its history, so such runs are not judged.
    fn liveness(&self) -> Result<(), Violation> {
        // A node cannot reach the tokens of a leased limit that another node holds.
        if self.leased || self.trouble.failovers > 0 || self.trouble.set_back_us > 0 {
            return Ok(());
        }
        let denied = |recorded: CallRecord| {
            recorded.entry().filter(|entry| !recorded.degraded && !entry.admitted)
        };
        let mut log: Vec<Entry> = self.log.sorted().into_iter().filter_map(denied).collect();
        log.extend(self.charged.iter().cloned());
        // The order within one instant is unknown.
        log.sort_by_key(|entry| (entry.time_us, entry.admitted));
        check_no_denial_in_vain(&log, &self.spec)?;
        check_retries_admitted(&log)
    }

    /// The records, with their true times.
    fn completed(&self) -> impl Iterator<Item = (u64, CallRecord)> {
        self.completed_us.iter().copied().zip(self.log.records())
    }
}
