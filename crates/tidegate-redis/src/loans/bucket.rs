//! What this node has borrowed of one bucket.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::Amount;
use tidegate::engine::algorithm::{Reading, Spec, token_bucket};
use tidegate::engine::plan::Level;

use super::demand::Demand;
use super::grant::Grant;
use super::{LoanReply, LoanReport, LoanRequest};

/// How long a node waits after a request that was refused or not answered.
const RETRY_US: u64 = 100_000;
/// Tokens of a bucket that nobody has asked for in this long are given back.
const IDLE_US: u64 = 1_000_000;
/// A node borrows at most a quarter of its share of what is available.
const PARTS: u64 = 4;

/// One bucket. Tokens of two grants may be held; the older ones are spent first.
#[derive(Debug)]
pub(super) struct BorrowedBucket {
    level: Level,
    name: Option<Arc<str>>,
    /// The older grant and the newer one.
    grants: [Grant; 2],
    /// What the next request reports.
    reports: Vec<LoanReport>,
    /// The size of the last grant.
    granted: u64,
    /// When it is time for another grant, however much is left.
    renew_at_us: u64,
    /// True while a request is under way.
    is_requesting: bool,
    retry_at_us: u64,
    demand: Demand,
    /// The store's last reply, and when this node received it.
    last_reply: LoanReply,
    replied_us: u64,
}

/// The result of spending locally.
pub(super) struct LocalSpend {
    /// The grant; zero where nothing was taken.
    pub(super) grant_id: u64,
    /// The store's time as far as this node knows it: never later than it is.
    pub(super) store_us: u64,
    pub(super) reading: Reading,
    /// True if it is time to borrow again.
    pub(super) is_due: bool,
}

/// What all loan requests of a table have in common.
#[derive(Debug)]
pub(super) struct LoanTerms<'t> {
    pub(super) nodes: u32,
    pub(super) may_borrow: bool,
    pub(super) grant_ids: &'t AtomicU64,
}

impl LoanTerms<'_> {
    fn next_grant_id(&self) -> u64 {
        self.grant_ids.fetch_add(1, Ordering::Relaxed)
    }
}

impl BorrowedBucket {
    pub(super) fn new(level: &Level, name: Option<Arc<str>>, now_us: u64) -> Self {
        Self {
            level: *level,
            name,
            grants: Default::default(),
            reports: Vec::new(),
            granted: 0,
            renew_at_us: 0,
            is_requesting: false,
            retry_at_us: 0,
            demand: Demand::new(now_us),
            last_reply: LoanReply::default(),
            replied_us: 0,
        }
    }

    /// What is left of all grants.
    pub(super) fn left(&self) -> u64 {
        self.grants.iter().map(|grant| grant.left).sum()
    }

    pub(super) fn spendable(&self, now_us: u64) -> u64 {
        self.live_grants(now_us).map(|grant| grant.left).sum()
    }

    /// Spends the level's cost, or only reads the bucket; `None` if no grant covers the cost.
    pub(super) fn spend(
        &mut self,
        level: &Level,
        holder: Option<u64>,
        now_us: u64,
    ) -> Option<LocalSpend> {
        if self.level.spec != level.spec {
            return None;
        }
        let cost = level.cost.micros();
        let covers = |grant: &&mut Grant| {
            !grant.is_none() && grant.left >= cost && grant.expires_us > now_us
        };
        let grant = self.grants.iter_mut().find(covers)?;
        let grant_id = grant.id;
        if let Some(holder) = holder {
            grant.spend(cost, level.is_given_back().then_some(holder));
            self.demand.note(cost, now_us);
        }
        let left = self.left();
        let is_low = left.saturating_mul(10) <= self.granted.saturating_mul(3);
        let is_due = (is_low || now_us >= self.renew_at_us) && self.may_request(now_us);
        self.is_requesting |= is_due;
        let store_us = self.store_us(now_us);
        Some(LocalSpend { grant_id, store_us, reading: self.reading(left, now_us), is_due })
    }

    /// Notes that a request goes to the store instead. Returns the loan request that must go before
    /// it, so that the store knows all that this node could still spend; and whether it is time to
    /// borrow.
    pub(super) fn note_exact(
        &mut self,
        level: &Level,
        name: Option<&Arc<str>>,
        now_us: u64,
        terms: &LoanTerms,
    ) -> (Option<LoanRequest>, bool) {
        if self.level.spec != level.spec {
            self.retire_all();
        }
        (self.level, self.name) = (*level, name.cloned());
        self.expire(now_us);
        self.demand.note(level.cost.micros(), now_us);
        if !self.may_request(now_us) {
            return (None, false);
        }
        if self.left() > 0 {
            self.retire_all();
            return (self.request(now_us, terms), false);
        }
        self.is_requesting = self.demand.wish(now_us) > 0;
        (None, self.is_requesting)
    }

    /// The next request to the store; `None` if there is nothing to ask for or to report.
    pub(super) fn request(&mut self, now_us: u64, terms: &LoanTerms) -> Option<LoanRequest> {
        let wish = if terms.may_borrow { self.demand.wish(now_us) } else { 0 };
        for grant in &mut self.grants {
            if grant.spent > 0 {
                add(&mut self.reports, grant.report(terms.next_grant_id()));
            }
        }
        let reports = std::mem::take(&mut self.reports);
        self.is_requesting = wish > 0 || !reports.is_empty();
        self.is_requesting.then(|| LoanRequest {
            level: self.level,
            name: self.name.clone(),
            wish,
            parts: PARTS * u64::from(terms.nodes.max(1)),
            least: self.demand.least(),
            reports,
            sent_us: now_us,
        })
    }

    /// Gives everything back, and borrows nothing instead.
    pub(super) fn give_back(&mut self, now_us: u64, terms: &LoanTerms) -> Option<LoanRequest> {
        self.retire_all();
        self.request(now_us, &LoanTerms { may_borrow: false, ..*terms })
    }

    pub(super) fn apply_reply(
        &mut self,
        request: &LoanRequest,
        reply: &LoanReply,
        now_us: u64,
        terms: &LoanTerms,
    ) {
        self.is_requesting = false;
        (self.last_reply, self.replied_us) = (*reply, now_us);
        if reply.granted == 0 {
            self.retry_at_us = now_us.saturating_add(RETRY_US);
            return;
        }
        let grant = Grant::new(terms.next_grant_id(), request.sent_us, reply);
        // A grant of another spec than is in force by now is not spent.
        let is_useless = request.level.spec != self.level.spec || grant.is_over(now_us);
        if is_useless || !terms.may_borrow {
            let report = LoanReport { returned: grant.left, epoch: grant.epoch, spent: 0 };
            add(&mut self.reports, report);
            return;
        }
        let [older, newer] = &mut self.grants;
        add(&mut self.reports, older.retire());
        *older = std::mem::replace(newer, grant);
        self.granted = reply.granted;
        self.renew_at_us = request.sent_us.saturating_add(reply.lasts_us / 3 * 2);
    }

    /// A request failed. It is unknown whether the store received its reports, so they are not repeated.
    pub(super) fn note_failure(&mut self, now_us: u64) {
        self.is_requesting = false;
        self.retry_at_us = now_us.saturating_add(RETRY_US);
    }

    /// Drops expired grants; returns how much that is. The store may still count it, and is told.
    pub(super) fn expire(&mut self, now_us: u64) -> u64 {
        let mut expired = 0;
        for grant in self.grants.iter_mut().filter(|grant| grant.is_over(now_us)) {
            expired += grant.left;
            add(&mut self.reports, grant.retire());
        }
        expired
    }

    /// Puts tokens back into a grant, if the bucket still holds it.
    pub(super) fn put_back(&mut self, grant_id: u64, cost: Amount) {
        let is_same = |grant: &&mut Grant| grant.id == grant_id && !grant.is_none();
        if let Some(grant) = self.grants.iter_mut().find(is_same) {
            grant.put_back(cost.micros());
        }
    }

    /// True if [`refund`](Self::refund) could give something back to this holder.
    pub(super) fn has_holder(&self, holder: u64, now_us: u64) -> bool {
        self.live_grants(now_us).any(|grant| grant.has_holder(holder))
    }

    /// True if one grant covers this amount.
    pub(super) fn has_tokens(&self, amount: Amount, now_us: u64) -> bool {
        self.live_grants(now_us).any(|grant| grant.left >= amount.micros())
    }

    /// Gives back what a holder spent from a grant; false if no grant knows the holder.
    pub(super) fn refund(&mut self, holder: u64, amount: Amount, now_us: u64) -> bool {
        self.expire(now_us);
        self.grants.iter_mut().any(|grant| grant.refund(holder, amount.micros()))
    }

    /// Spends more for an earlier charge; false if no grant covers it.
    pub(super) fn surcharge(&mut self, level: &Level, extra: Amount, now_us: u64) -> bool {
        let extra = Level { cost: extra, refundable: false, reserved: false, ..*level };
        self.spend(&extra, Some(0), now_us).is_some()
    }

    /// True if nobody has asked for a while, so that the tokens should be given back.
    pub(super) fn is_idle(&self, now_us: u64) -> bool {
        !self.is_requesting && self.demand.idle_us(now_us) >= IDLE_US
    }

    fn live_grants(&self, now_us: u64) -> impl Iterator<Item = &Grant> {
        self.grants.iter().filter(move |grant| !grant.is_over(now_us))
    }

    fn may_request(&self, now_us: u64) -> bool {
        !self.is_requesting && now_us >= self.retry_at_us
    }

    fn retire_all(&mut self) {
        for grant in &mut self.grants {
            add(&mut self.reports, grant.retire());
        }
    }

    fn store_us(&self, now_us: u64) -> u64 {
        self.last_reply.now_us.saturating_add(now_us.saturating_sub(self.replied_us))
    }

    /// The bucket as this node knows it: what the node holds, what the store last had, and the refill
    /// since then.
    fn reading(&self, left: u64, now_us: u64) -> Reading {
        let Spec::TokenBucket(token_bucket::Spec { count, period_us, burst }) = &self.level.spec
        else {
            return Reading { available: Amount::ZERO, reset_us: None };
        };
        let (count, period_us) = (u128::from(count.micros()), u128::from((*period_us).max(1)));
        let elapsed_us = u128::from(now_us.saturating_sub(self.replied_us));
        let last_seen = u128::from(left) + u128::from(self.last_reply.available);
        let refilled = last_seen + elapsed_us * count / period_us;
        let available = refilled.min(u128::from(burst.micros()));
        let missing = u128::from(burst.micros()) - available;
        let reset_us = (missing * period_us).div_ceil(count.max(1));
        let available = u64::try_from(available).ok().and_then(Amount::from_micros);
        Reading {
            available: available.unwrap_or(*burst),
            reset_us: (count > 0 || missing == 0)
                .then(|| u64::try_from(reset_us).unwrap_or(u64::MAX)),
        }
    }
}

/// Adds a report to those of the same epoch.
fn add(reports: &mut Vec<LoanReport>, report: LoanReport) {
    if report.spent == 0 && report.returned == 0 {
        return;
    }
    match reports.iter_mut().find(|known| known.epoch == report.epoch) {
        Some(known) => {
            known.spent += report.spent;
            known.returned += report.returned;
        }
        None => reports.push(report),
    }
}
