//! What one key owes, at every pace that it was charged at.
//!
//! A tier, a reload, a factor or an override may change the numbers of a limit from one request to the next. While only
//! the size of the limit changes, one state serves all of them. At another pace it cannot: what a fast limit has paid
//! back, a slow one still owes. So a ledger has an account for each pace, charges all accounts, and asks the one at the
//! request's pace. A subject that changes back finds its debt (rule 5). Nearly every key has one account: accounts that
//! owe nothing any more are closed.

use serde::{Deserialize, Serialize};

use super::{Amount, Reading, Spec, State, Verdict};
use super::{concurrency, dispatch, sliding_window};

/// The most accounts: when a further one opens, the one that expires first closes.
const ACCOUNTS_MAX: usize = 8;

/// What one key owes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ledger {
    first: Account,
    /// Empty, and so without an allocation, unless the pace has changed.
    others: Vec<Account>,
}

/// What is owed at one pace.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Account {
    /// The numbers that last held at this pace.
    spec: Spec,
    state: State,
}

/// What a key shows under numbers that it was charged with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// These numbers.
    pub spec: Spec,
    /// What they leave.
    pub reading: Reading,
}

impl Ledger {
    /// The ledger of a key that was never charged; `None` if nothing is stored.
    #[must_use]
    pub fn new(spec: &Spec) -> Option<Self> {
        let state = spec.new_state()?;
        Some(Self { first: Account { spec: *spec, state }, others: Vec::new() })
    }

    /// The ledger of a key that was charged under one spec only.
    pub(crate) fn of(spec: Spec, state: State) -> Self {
        Self { first: Account { spec, state }, others: Vec::new() }
    }

    /// The only account; `None` where there are several.
    pub(crate) fn only(&self) -> Option<(&Spec, &State)> {
        self.others.is_empty().then_some((&self.first.spec, &self.first.state))
    }

    /// Until when every cost of one is refused under the only spec; `None` if that is not known.
    pub(crate) fn full_until_us(&self) -> Option<(&Spec, u64)> {
        match self.only()? {
            (spec @ Spec::SlidingWindow(window), State::SlidingWindow(state)) => {
                Some((spec, sliding_window::full_until_us(state, window)?))
            }
            (spec @ Spec::Concurrency(places), State::Concurrency(state)) => {
                Some((spec, concurrency::full_until_us(state, places)?))
            }
            _ => None,
        }
    }

    /// Would this cost fit now, and if not, when?
    #[must_use]
    pub fn evaluate(&self, spec: &Spec, now_us: u64, cost: Amount) -> Verdict {
        dispatch::evaluate(&self.account(spec, now_us).state, spec, now_us, cost)
    }

    /// What could be spent now, and when nothing will be owed any more.
    #[must_use]
    pub fn reading(&self, spec: &Spec, now_us: u64) -> Reading {
        dispatch::reading(&self.account(spec, now_us).state, spec, now_us)
    }

    /// Whether there is an account at this pace.
    #[must_use]
    pub fn has_pace_of(&self, spec: &Spec) -> bool {
        self.accounts().any(|account| same_pace(&account.spec, spec))
    }

    /// Opens an account at this pace, if there is none. A refusal at a new pace needs one too, or
    /// the old pace would pay off what the caller was told to wait for.
    pub fn open(&mut self, spec: &Spec, now_us: u64) {
        let found = self.accounts_mut().find(|account| same_pace(&account.spec, spec));
        if let Some(account) = found {
            account.spec = *spec;
            return;
        }
        let state = self.account(spec, now_us).state.clone();
        while self.others.len() + 1 >= ACCOUNTS_MAX {
            self.close_where_first_over();
        }
        self.others.push(Account { spec: *spec, state });
    }

    /// Takes the cost at every pace. Under concurrency, `holder` holds the place.
    pub fn charge(&mut self, spec: &Spec, now_us: u64, holder: u64, cost: Amount) {
        self.open(spec, now_us);
        self.close_what_is_over(spec, now_us);
        for account in self.accounts_mut() {
            dispatch::charge(&mut account.state, &account.spec, now_us, holder, cost);
        }
    }

    /// Takes the amount at every pace, into debt of at most one further limit.
    pub fn debit(&mut self, spec: &Spec, now_us: u64, amount: Amount) {
        self.open(spec, now_us);
        self.close_what_is_over(spec, now_us);
        for account in self.accounts_mut() {
            dispatch::debit(&mut account.state, &account.spec, now_us, amount);
        }
    }

    /// Gives back what is left of a charge made at `charged_at_us` under this spec.
    pub fn refund(&mut self, spec: &Spec, now_us: u64, charged_at_us: u64, cost: Amount) {
        for account in self.accounts_mut() {
            let spec = *account.spec_for(spec);
            dispatch::refund(&mut account.state, &spec, now_us, charged_at_us, cost);
        }
    }

    /// Adds to a charge made at `charged_at_us` under this spec, while it still has an effect.
    pub fn surcharge(&mut self, spec: &Spec, now_us: u64, charged_at_us: u64, extra: Amount) {
        for account in self.accounts_mut() {
            let spec = *account.spec_for(spec);
            dispatch::surcharge(&mut account.state, &spec, now_us, charged_at_us, extra);
        }
    }

    /// Gives a held place back; false if there is none. Places have one pace, hence one account.
    pub fn release(&mut self, holder: u64) -> bool {
        dispatch::release(&mut self.first.state, holder)
    }

    /// Starts a holder's lease anew; false if its place has been lost.
    pub fn renew(&mut self, spec: &Spec, now_us: u64, holder: u64) -> bool {
        dispatch::renew(&mut self.first.state, spec, now_us, holder)
    }

    /// The instant from which the ledger equals a new one; `None` if that never comes by itself.
    #[must_use]
    pub fn meaningless_at_us(&self) -> Option<u64> {
        self.accounts()
            .map(Account::meaningless_at_us)
            .try_fold(0, |latest, at_us| Some(at_us?.max(latest)))
    }

    /// How much of its limit is used, of 255, by the account that is nearest to its own.
    pub(crate) fn fullness(&self, now_us: u64) -> u8 {
        let fullness =
            |account: &Account| dispatch::fullness(&account.state, &account.spec, now_us);
        self.accounts().map(fullness).max().unwrap_or(0)
    }

    /// What each account shows under its own numbers.
    pub(crate) fn paces(&self, now_us: u64) -> Vec<Pace> {
        let pace = |Account { spec, state }: &Account| Pace {
            spec: *spec,
            reading: dispatch::reading(state, spec, now_us),
        };
        self.accounts().map(pace).collect()
    }

    /// Whether it runs on the wall clock; all its accounts are of one algorithm.
    pub(crate) fn uses_wall_clock(&self) -> bool {
        self.first.spec.uses_wall_clock()
    }

    /// Keeps only the size of a bucket's debt, so that a refund gives back only what the refill cannot have paid yet.
    pub(crate) fn doubt(&mut self) {
        for account in self.accounts_mut() {
            if let State::TokenBucket(state) = &mut account.state {
                (state.owing_since_us, state.low_micros) = (0, 0);
            }
        }
    }

    /// Moves every instant of steady time; instants of the wall clock stay.
    pub(crate) fn shift(&mut self, by_us: i64) {
        for account in self.accounts_mut() {
            dispatch::shift(&mut account.state, by_us);
        }
    }

    fn accounts(&self) -> impl Iterator<Item = &Account> {
        std::iter::once(&self.first).chain(&self.others)
    }

    fn accounts_mut(&mut self) -> impl Iterator<Item = &mut Account> {
        std::iter::once(&mut self.first).chain(&mut self.others)
    }

    /// The account of this pace or, where there is none yet, the one that leaves the least to it.
    fn account(&self, spec: &Spec, now_us: u64) -> &Account {
        if self.others.is_empty() {
            return &self.first;
        }
        let left = |account: &&Account| dispatch::reading(&account.state, spec, now_us).available;
        let own = self.accounts().find(|account| same_pace(&account.spec, spec));
        own.or_else(|| self.accounts().min_by_key(left)).unwrap_or(&self.first)
    }

    /// Closes the accounts of other paces that owe nothing any more.
    fn close_what_is_over(&mut self, spec: &Spec, now_us: u64) {
        if self.others.is_empty() {
            return;
        }
        let live = |account: &Account| {
            same_pace(&account.spec, spec)
                || account.meaningless_at_us().is_none_or(|at_us| at_us > now_us)
        };
        self.others.retain(live);
        if !live(&self.first)
            && let Some(account) = self.others.pop()
        {
            self.first = account;
        }
    }

    fn close_where_first_over(&mut self) {
        let ends = |account: &Account| account.meaningless_at_us().unwrap_or(u64::MAX);
        let soonest = (0..self.others.len()).min_by_key(|index| ends(&self.others[*index]));
        let Some(soonest) = soonest else { return };
        let closed = self.others.swap_remove(soonest);
        if ends(&self.first) < ends(&closed) {
            self.first = closed;
        }
    }
}

impl Account {
    /// The spec that was charged, if it was at this pace; else the account's own.
    fn spec_for<'s>(&'s self, charged: &'s Spec) -> &'s Spec {
        if same_pace(&self.spec, charged) { charged } else { &self.spec }
    }

    fn meaningless_at_us(&self) -> Option<u64> {
        dispatch::meaningless_at_us(&self.state, &self.spec)
    }
}

/// Whether one state can serve both: what is owed fades alike under either. A bucket's debt is cut
/// to twice its burst, so its burst belongs to its pace.
pub(crate) fn same_pace(one: &Spec, other: &Spec) -> bool {
    match (one, other) {
        (Spec::TokenBucket(one), Spec::TokenBucket(other)) => one == other,
        (Spec::SlidingWindow(one), Spec::SlidingWindow(other)) => one.window_us == other.window_us,
        (Spec::SlidingCounter(one), Spec::SlidingCounter(other)) => {
            one.window_us == other.window_us
        }
        (Spec::FixedWindow(one), Spec::FixedWindow(other)) => one.window_us == other.window_us,
        (Spec::Quota(one), Spec::Quota(other)) => one.unit == other.unit,
        _ => std::mem::discriminant(one) == std::mem::discriminant(other),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::reference::{Admission, UNIT, amount, leaky_level, spent};
    use super::super::{
        calendar, fixed_window, quota, sliding_counter, sliding_window, token_bucket,
    };
    use super::*;

    /// A limit of an algorithm that fades, by its kind, size and length.
    fn spec(kind: usize, units: u64, window_us: u64, now_us: u64) -> Spec {
        let limit = amount(units * UNIT);
        let start_us = now_us - now_us % window_us;
        let end_us = start_us + window_us;
        match kind {
            0 => Spec::TokenBucket(token_bucket::Spec {
                count: limit,
                period_us: window_us,
                burst: limit,
            }),
            1 => Spec::SlidingWindow(sliding_window::Spec { limit, window_us }),
            2 => Spec::SlidingCounter(sliding_counter::Spec { limit, window_us }),
            3 => Spec::FixedWindow(fixed_window::Spec { limit, window_us }),
            _ => Spec::Quota(quota::Spec {
                limit,
                unit: if window_us > 100 { calendar::Unit::Month } else { calendar::Unit::Day },
                previous_us: start_us.saturating_sub(window_us),
                start_us,
                end_us,
                next_end_us: end_us + window_us,
            }),
        }
    }

    const KINDS: std::ops::Range<usize> = 0..5;

    /// Asserts the bound that one spec promises for its admissions: N in a window, or burst plus refill.
    fn assert_promise(kind: usize, log: &[Admission], units: u64, window_us: u64) {
        let limit = units * UNIT;
        for (index, last) in log.iter().enumerate() {
            let so_far = &log[..=index];
            let fits = match kind {
                0 => {
                    leaky_level(so_far, limit, window_us, last.at_us)
                        <= u128::from(limit) * u128::from(window_us)
                }
                1 => spent(so_far, |at_us| at_us + window_us > last.at_us) <= limit,
                2 => so_far.iter().all(|first| {
                    let span_us = u128::from(last.at_us - first.at_us);
                    let within = spent(so_far, |at_us| at_us >= first.at_us);
                    let more = u128::from(limit) * span_us / u128::from(window_us);
                    u128::from(within) <= u128::from(limit) * 2 + more
                }),
                _ => spent(so_far, |at_us| at_us / window_us == last.at_us / window_us) <= limit,
            };
            assert!(fits, "more than {units} per {window_us} at {}: {so_far:?}", last.at_us);
        }
    }

    proptest! {
        #[test]
        fn no_change_of_pace_admits_more_under_one_spec_than_that_spec_allows(
            kind in KINDS,
            sizes in (1..6_u64, 1..6_u64),
            windows in (1..=100_u64, 101..2_000_u64),
            steps in prop::collection::vec((0..150_u64, any::<bool>()), 1..80),
        ) {
            let numbers = [(sizes.0, windows.0), (sizes.1, windows.1)];
            let mut ledger = Ledger::new(&spec(kind, sizes.0, windows.0, 0)).unwrap();
            let mut logs = [Vec::new(), Vec::new()];
            let mut now_us = 0;
            for (step_us, second) in steps {
                now_us += step_us;
                let row = usize::from(second);
                let (units, window_us) = numbers[row];
                let spec = spec(kind, units, window_us, now_us);
                if ledger.evaluate(&spec, now_us, Amount::ONE) == Verdict::Allowed {
                    ledger.charge(&spec, now_us, 0, Amount::ONE);
                    logs[row].push(Admission { at_us: now_us, cost: UNIT });
                } else {
                    ledger.open(&spec, now_us);
                }
            }
            for (log, (units, window_us)) in logs.iter().zip(numbers) {
                assert_promise(kind, log, units, window_us);
            }
        }
    }

    #[test]
    fn whoever_changes_back_finds_what_they_owe() {
        for kind in KINDS {
            let (slow, fast) =
                (|now_us| spec(kind, 3, 1_000, now_us), |now_us| spec(kind, 2, 10, now_us));
            let mut ledger = Ledger::new(&slow(0)).unwrap();
            for spec in [fast(0), slow(0), slow(0)] {
                ledger.charge(&spec, 0, 0, Amount::ONE);
            }
            assert_eq!(ledger.evaluate(&fast(50), 50, Amount::ONE), Verdict::Allowed, "{kind}");
            ledger.charge(&fast(50), 50, 0, Amount::ONE);
            assert_ne!(ledger.evaluate(&slow(60), 60, Amount::ONE), Verdict::Allowed, "{kind}");
        }
    }

    #[test]
    fn a_smaller_bucket_in_between_cuts_no_debt() {
        let rate =
            token_bucket::Spec { count: amount(10 * UNIT), period_us: 1_000, burst: Amount::ONE };
        let large = Spec::TokenBucket(token_bucket::Spec { burst: amount(10 * UNIT), ..rate });
        let mut ledger = Ledger::new(&large).unwrap();
        ledger.charge(&large, 0, 0, amount(10 * UNIT));
        ledger.charge(&Spec::TokenBucket(rate), 400, 0, Amount::ONE);
        assert_eq!(ledger.reading(&large, 400).available, amount(3 * UNIT));
    }

    #[test]
    fn a_refusal_at_a_new_pace_is_remembered() {
        for kind in [0, 1, 3, 4] {
            let (slow, fast) =
                (|now_us| spec(kind, 3, 1_000, now_us), |now_us| spec(kind, 3, 10, now_us));
            let mut ledger = Ledger::new(&fast(0)).unwrap();
            for _ in 0..3 {
                ledger.charge(&fast(0), 0, 0, Amount::ONE);
            }
            ledger.open(&slow(1), 1);
            ledger.charge(&fast(100), 100, 0, Amount::ONE);
            assert_ne!(ledger.evaluate(&slow(101), 101, Amount::ONE), Verdict::Allowed, "{kind}");
        }
    }

    #[test]
    fn accounts_close_when_they_owe_nothing_and_are_bounded() {
        let mut ledger = Ledger::new(&spec(3, 9, 10, 0)).unwrap();
        for window_us in 10..100 {
            ledger.charge(&spec(3, 9, window_us, 0), 0, 0, Amount::ONE);
            assert!(ledger.accounts().count() <= ACCOUNTS_MAX);
        }
        assert!(ledger.has_pace_of(&spec(3, 9, 99, 0)), "the longest stays");
        ledger.charge(&spec(3, 9, 10, 500), 500, 0, Amount::ONE);
        assert_eq!(ledger.accounts().count(), 1);
        assert_eq!(ledger.meaningless_at_us(), Some(510));
    }

    #[test]
    fn a_refund_reaches_every_account() {
        for kind in KINDS {
            let (slow, fast) = (spec(kind, 1, 1_000, 0), spec(kind, 1, 10, 0));
            let mut ledger = Ledger::new(&slow).unwrap();
            ledger.open(&fast, 0);
            ledger.charge(&slow, 0, 0, Amount::ONE);
            assert_ne!(ledger.evaluate(&fast, 0, Amount::ONE), Verdict::Allowed, "{kind}");
            ledger.refund(&slow, 0, 0, Amount::ONE);
            for spec in [slow, fast] {
                assert_eq!(ledger.evaluate(&spec, 0, Amount::ONE), Verdict::Allowed, "{kind}");
            }
        }
    }
}
