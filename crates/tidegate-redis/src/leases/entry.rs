//! What this node has borrowed of one bucket.

use std::sync::Arc;

use tidegate::algorithm::{Reading, Spec, token_bucket};
use tidegate::plan::Level;
use tidegate::units::Amount;

use super::batch::Batch;
use super::demand::Demand;
use super::loan::{Lent, Loan, Report};

/// How long it is until a bucket that lent nothing, or a store that did not answer, is asked again.
const RETRY_US: u64 = 100_000;
/// What nobody has asked for in this long is given back.
const IDLE_US: u64 = 1_000_000;
/// A node borrows at most a quarter of its share of what is there.
const PARTS: u64 = 4;

/// One bucket. Tokens of two grants may be held: the older are spent first.
#[derive(Debug)]
pub(super) struct Entry {
    level: Level,
    name: Option<Arc<str>>,
    older: Batch,
    newer: Batch,
    /// What is to be told with the next loan.
    reports: Vec<Report>,
    /// How much the last grant was.
    granted: u64,
    /// When it is time for another, whatever is left.
    renew_at_us: u64,
    /// Whether a loan is under way.
    asking: bool,
    retry_at_us: u64,
    demand: Demand,
    heard: Heard,
}

/// What the store last said.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    store_us: u64,
    at_us: u64,
    available: u64,
}

/// Something was spent.
pub(super) struct Spent {
    /// The batch; zero where nothing was taken.
    pub(super) batch: u64,
    /// The store's time, as far as this node knows: never later than it is.
    pub(super) store_us: u64,
    pub(super) reading: Reading,
    /// Whether it is time to borrow again.
    pub(super) due: bool,
}

impl Entry {
    pub(super) fn new(level: &Level, name: Option<Arc<str>>, now_us: u64) -> Self {
        Self {
            level: *level,
            name,
            older: Batch::default(),
            newer: Batch::default(),
            reports: Vec::new(),
            granted: 0,
            renew_at_us: 0,
            asking: false,
            retry_at_us: 0,
            demand: Demand::new(now_us),
            heard: Heard::default(),
        }
    }

    /// What may still be spent.
    pub(super) fn left(&self) -> u64 {
        self.older.left + self.newer.left
    }

    pub(super) fn spendable(&self, now_us: u64) -> u64 {
        let alive = |batch: &&Batch| !batch.is_over(now_us);
        [&self.older, &self.newer].into_iter().filter(alive).map(|batch| batch.left).sum()
    }

    /// Spends the level's cost, or only looks; `None` if that is not there.
    pub(super) fn spend(
        &mut self,
        level: &Level,
        holder: Option<u64>,
        now_us: u64,
    ) -> Option<Spent> {
        if self.level.spec != level.spec {
            return None;
        }
        let cost = level.cost.micros();
        let fits = |batch: &&mut Batch| {
            !batch.is_none() && batch.left >= cost && batch.expires_us > now_us
        };
        let batch = [&mut self.older, &mut self.newer].into_iter().find(fits)?;
        let id = batch.id;
        if let Some(holder) = holder {
            batch.take(cost, level.is_given_back().then_some(holder));
            self.demand.note(cost, now_us);
        }
        let left = self.older.left + self.newer.left;
        let low = left.saturating_mul(10) <= self.granted.saturating_mul(3);
        let due = (low || now_us >= self.renew_at_us) && self.may_ask(now_us);
        self.asking |= due;
        let store_us = self.store_us(now_us);
        Some(Spent { batch: id, store_us, reading: self.reading(left, now_us), due })
    }

    /// Somebody goes to the store instead. What is left here goes before: the store shall know all
    /// that this node could spend. Also whether it is time to borrow.
    pub(super) fn asked(
        &mut self,
        level: &Level,
        name: Option<&Arc<str>>,
        now_us: u64,
        loans: &Loans,
    ) -> (Option<Loan>, bool) {
        if self.level.spec != level.spec {
            self.retire_all();
        }
        (self.level, self.name) = (*level, name.cloned());
        self.expire(now_us);
        self.demand.note(level.cost.micros(), now_us);
        if !self.may_ask(now_us) {
            return (None, false);
        }
        if self.left() > 0 {
            self.retire_all();
            return (self.loan(now_us, loans), false);
        }
        self.asking = self.demand.wish(now_us) > 0;
        (None, self.asking)
    }

    /// What to ask of the store and tell it; `None` if nothing.
    pub(super) fn loan(&mut self, now_us: u64, loans: &Loans) -> Option<Loan> {
        let wish = if loans.may_borrow { self.demand.wish(now_us) } else { 0 };
        for batch in [&mut self.older, &mut self.newer] {
            if batch.spent > 0 {
                let report = batch.report(loans.id());
                add(&mut self.reports, report);
            }
        }
        let reports = std::mem::take(&mut self.reports);
        self.asking = wish > 0 || !reports.is_empty();
        self.asking.then(|| Loan {
            level: self.level,
            name: self.name.clone(),
            wish,
            parts: PARTS * u64::from(loans.nodes.max(1)),
            least: self.demand.least(),
            reports,
            sent_us: now_us,
        })
    }

    /// Everything back, with nothing borrowed instead.
    pub(super) fn give_back(&mut self, now_us: u64, loans: &Loans) -> Option<Loan> {
        self.retire_all();
        self.loan(now_us, &Loans { may_borrow: false, ..*loans })
    }

    /// The store's word on a loan.
    pub(super) fn lent(&mut self, loan: &Loan, lent: &Lent, now_us: u64, loans: &Loans) {
        self.asking = false;
        let Lent { now_us: store_us, available, .. } = *lent;
        self.heard = Heard { store_us, at_us: now_us, available };
        if lent.granted == 0 {
            self.retry_at_us = now_us.saturating_add(RETRY_US);
            return;
        }
        let batch = Batch::new(loans.id(), loan.sent_us, lent);
        // Of another spec than is in force by now, it is not spent.
        if loan.level.spec != self.level.spec || batch.is_over(now_us) || !loans.may_borrow {
            add(&mut self.reports, Report { returned: batch.left, epoch: batch.epoch, spent: 0 });
            return;
        }
        if !self.older.is_none() {
            let report = self.older.retire();
            add(&mut self.reports, report);
        }
        self.older = std::mem::replace(&mut self.newer, batch);
        self.granted = lent.granted;
        self.renew_at_us = loan.sent_us.saturating_add(lent.lasts_us / 3 * 2);
    }

    /// A loan failed. Whether the store heard its reports is unknown, so they are not repeated.
    pub(super) fn failed(&mut self, now_us: u64) {
        self.asking = false;
        self.retry_at_us = now_us.saturating_add(RETRY_US);
    }

    /// What ran out is not spent any more; how much that is. The store may still count it, and is told.
    pub(super) fn expire(&mut self, now_us: u64) -> u64 {
        let mut expired = 0;
        for batch in [&mut self.older, &mut self.newer] {
            if batch.is_over(now_us) {
                expired += batch.left;
                let report = batch.retire();
                add(&mut self.reports, report);
            }
        }
        expired
    }

    /// Gives back to a batch, if it is still that one.
    pub(super) fn put_back(&mut self, batch: u64, cost: Amount) {
        let same = |one: &&mut Batch| one.id == batch && !one.is_none();
        if let Some(batch) = [&mut self.older, &mut self.newer].into_iter().find(same) {
            batch.put_back(cost.micros());
        }
    }

    /// Whether [`refund`](Self::refund) could give something back to this holder.
    pub(super) fn knows(&self, holder: u64, now_us: u64) -> bool {
        let alive = |batch: &&Batch| !batch.is_over(now_us);
        [&self.older, &self.newer].into_iter().filter(alive).any(|batch| batch.knows(holder))
    }

    /// Whether so much could be spent at once.
    pub(super) fn has(&self, amount: Amount, now_us: u64) -> bool {
        let fits = |batch: &&Batch| batch.left >= amount.micros() && !batch.is_over(now_us);
        [&self.older, &self.newer].into_iter().any(|batch| fits(&batch))
    }

    /// Gives back what a holder spent from here; whether it could.
    pub(super) fn refund(&mut self, holder: u64, amount: Amount, now_us: u64) -> bool {
        self.expire(now_us);
        let mut batches = [&mut self.older, &mut self.newer].into_iter();
        batches.any(|batch| batch.refund(holder, amount.micros()))
    }

    /// Spends more for something spent before; whether it could.
    pub(super) fn surcharge(&mut self, level: &Level, extra: Amount, now_us: u64) -> bool {
        let extra = Level { cost: extra, refundable: false, reserved: false, ..*level };
        self.spend(&extra, Some(0), now_us).is_some()
    }

    /// Whether nobody has asked for a while, so that it should be given back.
    pub(super) fn is_idle(&self, now_us: u64) -> bool {
        !self.asking && self.demand.idle_us(now_us) >= IDLE_US
    }

    /// Whether there is something to tell the store.
    pub(super) fn owes_report(&self) -> bool {
        let holds = |batch: &Batch| batch.left > 0 || batch.spent > 0;
        !self.reports.is_empty() || holds(&self.older) || holds(&self.newer)
    }

    fn may_ask(&self, now_us: u64) -> bool {
        !self.asking && now_us >= self.retry_at_us
    }

    fn retire_all(&mut self) {
        for batch in [&mut self.older, &mut self.newer] {
            if !batch.is_none() {
                let report = batch.retire();
                add(&mut self.reports, report);
            }
        }
    }

    fn store_us(&self, now_us: u64) -> u64 {
        self.heard.store_us.saturating_add(now_us.saturating_sub(self.heard.at_us))
    }

    /// What this node knows: what it holds, what the store last had, and the refill since.
    fn reading(&self, left: u64, now_us: u64) -> Reading {
        let Spec::TokenBucket(token_bucket::Spec { count, period_us, burst }) = &self.level.spec
        else {
            return Reading { available: Amount::ZERO, reset_us: None };
        };
        let (count, period_us) = (u128::from(count.micros()), u128::from((*period_us).max(1)));
        let elapsed_us = u128::from(now_us.saturating_sub(self.heard.at_us));
        let known = u128::from(left) + u128::from(self.heard.available);
        let available = (known + elapsed_us * count / period_us).min(u128::from(burst.micros()));
        let missing = u128::from(burst.micros()) - available;
        let reset_us = (missing * period_us).div_ceil(count.max(1));
        Reading {
            available: u64::try_from(available)
                .ok()
                .and_then(Amount::from_micros)
                .unwrap_or(*burst),
            reset_us: (count > 0 || missing == 0)
                .then(|| u64::try_from(reset_us).unwrap_or(u64::MAX)),
        }
    }
}

/// What all loans of a table have in common.
#[derive(Debug)]
pub(super) struct Loans<'t> {
    pub(super) nodes: u32,
    pub(super) may_borrow: bool,
    /// Where ids of batches come from.
    pub(super) ids: &'t std::sync::atomic::AtomicU64,
}

impl Loans<'_> {
    fn id(&self) -> u64 {
        self.ids.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }
}

/// Adds up what is told of one epoch.
fn add(reports: &mut Vec<Report>, report: Report) {
    if report.spent == 0 && report.returned == 0 {
        return;
    }
    match reports.iter_mut().find(|one| one.epoch == report.epoch) {
        Some(one) => {
            one.spent += report.spent;
            one.returned += report.returned;
        }
        None => reports.push(report),
    }
}
