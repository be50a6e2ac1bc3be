//! A log of the answers that callers received, for the checkers.
//!
//! Clients on many threads write the log. It is sorted by the time of each answer: the store's time
//! where the caller knows it, else the caller's own. Then the log is late by the callers' waits, and
//! [`latest_us`](Log::latest_us) is the longest of them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate::Amount;

use crate::checkers::{Entry, Violation};

/// One answer, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRecord {
    /// The time of the decision, by the store's clock if that is known.
    pub at_us: u64,
    /// The node that decided.
    pub node: u32,
    /// The key of the limit.
    pub key: String,
    /// The cost of the request.
    pub cost: Amount,
    /// Whether the request was admitted.
    pub admitted: bool,
    /// Whether the node decided without the store.
    pub degraded: bool,
    /// The wait that a denied caller was told; `None` where no waiting helps.
    pub retry_after_us: Option<u64>,
    /// How long the caller waited for the answer.
    pub waited_us: u64,
    /// The error that the caller saw instead of an answer: a status of 500 and above, or a failed
    /// connection.
    pub error: Option<String>,
}

impl CallRecord {
    /// The entry for the checkers; `None` for an error, which neither admits nor denies.
    #[must_use]
    pub fn entry(&self) -> Option<Entry> {
        let (key, cost) = (&*self.key, self.cost);
        match (&self.error, self.admitted) {
            (Some(_), _) => None,
            (None, true) => Some(Entry::admitted(key, self.at_us, cost)),
            (None, false) => Some(Entry::denied(key, self.at_us, cost, self.retry_after_us)),
        }
    }
}

/// All answers. Threads may share the log.
#[derive(Debug, Default)]
pub struct Log {
    recorded: Mutex<Vec<CallRecord>>,
}

impl Log {
    /// An empty log.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an answer.
    pub fn record(&self, recorded: CallRecord) {
        self.lock().push(recorded);
    }

    /// All records, in the order of recording.
    #[must_use]
    pub fn records(&self) -> Vec<CallRecord> {
        self.lock().clone()
    }

    /// All records by time; records of one instant in the order of recording.
    #[must_use]
    pub fn sorted(&self) -> Vec<CallRecord> {
        let mut recorded = self.lock().clone();
        recorded.sort_by_key(|recorded| recorded.at_us);
        recorded
    }

    /// The entries for the checkers of bounds.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.sorted().iter().filter_map(CallRecord::entry).collect()
    }

    /// The entries for the checkers of liveness. Only the store promises liveness: a decision without
    /// the store denies nobody there. The store may have charged it before the answer was lost, so it
    /// counts as spent.
    #[must_use]
    pub fn store_entries(&self) -> Vec<Entry> {
        let entry = |recorded: &CallRecord| {
            if recorded.degraded {
                Some(Entry::admitted(&*recorded.key, recorded.at_us, recorded.cost))
            } else {
                recorded.entry()
            }
        };
        self.sorted().iter().filter_map(entry).collect()
    }

    /// How many callers saw an error instead of an answer.
    #[must_use]
    pub fn errors(&self) -> usize {
        self.lock().iter().filter(|recorded| recorded.error.is_some()).count()
    }

    /// How many decisions were made without the store.
    #[must_use]
    pub fn degraded(&self) -> usize {
        self.lock().iter().filter(|recorded| recorded.degraded).count()
    }

    /// The longest wait of a caller.
    #[must_use]
    pub fn latest_us(&self) -> u64 {
        self.lock().iter().map(|recorded| recorded.waited_us).max().unwrap_or(0)
    }

    /// No caller sees an error because the store is lost.
    ///
    /// # Errors
    /// The first error that a caller saw.
    pub fn check_no_errors(&self) -> Result<(), Violation> {
        self.nobody(|recorded| Some(format!("saw an error: {}", recorded.error.as_ref()?)))
    }

    /// No caller waits longer for an answer than this.
    ///
    /// # Errors
    /// The first answer that came later.
    pub fn check_longest_wait(&self, us: u64) -> Result<(), Violation> {
        self.nobody(|recorded| {
            let waited_us = recorded.waited_us;
            (waited_us > us).then(|| format!("waited for {waited_us} µs, not for {us} at most"))
        })
    }

    /// Nodes decide without the store only when they must.
    ///
    /// # Errors
    /// The first unnecessary decision without the store.
    pub fn check_degraded_only_if(
        &self,
        necessary: impl Fn(&CallRecord) -> bool,
    ) -> Result<(), Violation> {
        self.nobody(|recorded| {
            let needless = recorded.degraded && !necessary(recorded);
            needless.then(|| format!("node {} decided without the store", recorded.node))
        })
    }

    fn nobody(&self, broke: impl Fn(&CallRecord) -> Option<String>) -> Result<(), Violation> {
        for recorded in self.sorted() {
            if let Some(detail) = broke(&recorded) {
                return Err(Violation { key: recorded.key, time_us: recorded.at_us, detail });
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<CallRecord>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tidegate::engine::algorithm::{Spec, sliding_window};

    use super::*;
    use crate::checkers::liveness;
    use crate::checkers::trouble::{Trouble, check_bound};

    const SPEC: Spec =
        Spec::SlidingWindow(sliding_window::Spec { limit: Amount::ONE, window_us: 100 });

    fn answer(at_us: u64, admitted: bool) -> CallRecord {
        CallRecord {
            at_us,
            node: 0,
            key: "k".to_owned(),
            cost: Amount::ONE,
            admitted,
            degraded: false,
            retry_after_us: None,
            waited_us: 5,
            error: None,
        }
    }

    fn log(recorded: impl IntoIterator<Item = CallRecord>) -> Log {
        Log { recorded: Mutex::new(recorded.into_iter().collect()) }
    }

    #[test]
    fn a_log_that_admits_too_many_is_found_in_whatever_order_it_was_written() {
        let kept = log([answer(150, true), answer(50, true), answer(60, false)]);
        let judge = |log: &Log| check_bound(&log.entries(), &SPEC, &Trouble::default());
        assert_eq!(judge(&kept), Ok(()));
        let broken = log([answer(149, true), answer(50, true)]);
        assert_eq!(judge(&broken).unwrap_err().time_us, 149);
    }

    #[test]
    fn an_error_is_found_and_is_no_admission() {
        let failed = CallRecord { error: Some("503".to_owned()), ..answer(60, true) };
        let log = log([answer(50, true), failed]);
        assert_eq!(check_bound(&log.entries(), &SPEC, &Trouble::default()), Ok(()));
        assert_eq!(log.errors(), 1);
        let broken = log.check_no_errors().unwrap_err();
        assert_eq!(broken.to_string(), "key `k` at 60 µs: saw an error: 503");
    }

    #[test]
    fn a_too_long_wait_is_found() {
        let log = log([answer(50, true), CallRecord { waited_us: 21, ..answer(60, false) }]);
        assert_eq!(log.latest_us(), 21);
        assert_eq!(log.check_longest_wait(21), Ok(()));
        assert_eq!(log.check_longest_wait(20).unwrap_err().time_us, 60);
    }

    #[test]
    fn a_decision_without_the_store_needs_a_reason() {
        let log = log([answer(50, true), CallRecord { degraded: true, ..answer(60, true) }]);
        assert_eq!(log.degraded(), 1);
        assert_eq!(log.check_degraded_only_if(|recorded| recorded.at_us >= 60), Ok(()));
        assert_eq!(log.check_degraded_only_if(|_| false).unwrap_err().time_us, 60);
    }

    #[test]
    fn a_decision_without_the_store_counts_as_spent_and_is_no_denial() {
        let lost = CallRecord { degraded: true, ..answer(50, false) };
        let judge = |log: &Log| liveness::check_no_denial_in_vain(&log.store_entries(), &SPEC);
        assert_eq!(judge(&log([lost.clone(), answer(149, false)])), Ok(()));
        assert_eq!(judge(&log([lost, answer(150, false)])).unwrap_err().time_us, 150);
    }
}
