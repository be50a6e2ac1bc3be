//! Decides plans with this node's tokens. Levels that they cover are spent here; the store decides the
//! others. A plan commits all levels or none: what the store then refuses is put back.

use std::sync::Arc;

use tidegate::clock::Now;
use tidegate::engine::algorithm::{Spec, Verdict, ceiling};
use tidegate::engine::plan::{Level, Mode, PerLevel, Plan};
use tidegate::engine::store::{Answer, Reply};

use super::LoanRequest;
use super::table::LoanTable;

/// A plan that is decided in part.
#[derive(Debug)]
pub struct PartialDecision {
    /// What each level was charged here; `None` for those that the store decides.
    local: PerLevel<Option<LocalCharge>>,
    /// The loan requests that must be sent before the plan.
    pub requests: Vec<LoanRequest>,
    /// The levels that the store decides; `None` where it decides the plan as it is.
    pub remainder: Option<Arc<Plan>>,
    /// The answer, where nothing is left to ask.
    pub answer: Option<Answer>,
}

#[derive(Clone, Copy, Debug)]
struct LocalCharge {
    /// Zero where no grant was spent from.
    grant_id: u64,
    store_us: u64,
    reply: Reply,
}

impl LoanTable {
    /// Decides a plan without the store, if this node's tokens cover all of it.
    #[must_use]
    pub fn decide(&self, plan: &Plan, now_us: u64) -> Option<Answer> {
        let may_cover = |level: &Level| self.is_lendable(level) || level.spec.is_stateless();
        if !plan.levels.iter().any(|level| level.leased) || !plan.levels.iter().all(may_cover) {
            return None;
        }
        let mut local = PerLevel::new();
        for level in &plan.levels {
            let Some(charge) = self.charge(level, plan, now_us) else {
                self.undo(plan, &local, now_us);
                return None;
            };
            local.push(Some(charge));
        }
        Some(answer(&local))
    }

    /// Begins to decide a plan for which the store may have to be asked.
    #[must_use]
    pub fn begin(&self, plan: &Plan, now_us: u64) -> PartialDecision {
        let (local, requests) = (PerLevel::new(), Vec::new());
        let mut partial = PartialDecision { local, requests, remainder: None, answer: None };
        if !plan.levels.iter().any(|level| self.is_lendable(level)) {
            return partial;
        }
        let mut remainder = Plan { levels: PerLevel::new(), names: Vec::new(), ..*plan };
        for (at, level) in plan.levels.iter().enumerate() {
            let is_lendable = self.is_lendable(level);
            let charge = self.charge(level, plan, now_us);
            if charge.is_none() {
                if is_lendable && plan.mode == Mode::Charge {
                    partial.requests.extend(self.note_exact(level, plan.names.get(at), now_us));
                }
                remainder.levels.push(*level);
                remainder.names.extend(plan.names.get(at).cloned());
            }
            partial.local.push(charge);
        }
        if remainder.levels.is_empty() {
            partial.answer = Some(answer(&partial.local));
        } else if remainder.levels.len() < plan.levels.len() {
            partial.remainder = Some(Arc::new(remainder));
        }
        partial
    }

    /// The answer to a plan, with the store's answer to the remainder.
    ///
    /// # Errors
    /// The store's own.
    pub fn finish<E>(
        &self,
        plan: &Plan,
        partial: &PartialDecision,
        answered: Result<Answer, E>,
        now_us: u64,
    ) -> Result<Answer, E> {
        if partial.remainder.is_none() {
            return answered;
        }
        let answered = answered.inspect_err(|_| self.undo(plan, &partial.local, now_us))?;
        let mut remote = answered.replies.iter();
        let reply = |local: &Option<LocalCharge>| match local {
            Some(charge) => Some(charge.reply),
            None => remote.next().copied(),
        };
        let mut replies: PerLevel<Reply> = partial.local.iter().filter_map(reply).collect();
        let verdicts: PerLevel<Verdict> = replies.iter().map(|reply| reply.verdict).collect();
        if !plan.commits(&verdicts) {
            self.undo(plan, &partial.local, now_us);
            for reply in &mut replies {
                reply.charged = false;
            }
        }
        Ok(Answer { now: answered.now, replies })
    }

    fn charge(&self, level: &Level, plan: &Plan, now_us: u64) -> Option<LocalCharge> {
        let charges = plan.mode == Mode::Charge;
        if let Spec::Ceiling(spec) = &level.spec {
            return check_ceiling(spec, level, charges);
        }
        if !self.is_lendable(level) {
            return None;
        }
        let spend = self.spend(level, charges.then_some(plan.holder), now_us)?;
        let charged = charges && !level.cost.is_zero();
        let reply = Reply {
            verdict: Verdict::Allowed,
            charged,
            charged_at_us: if charged { spend.store_us } else { 0 },
            reading: spend.reading,
        };
        let grant_id = if charges { spend.grant_id } else { 0 };
        Some(LocalCharge { grant_id, store_us: spend.store_us, reply })
    }

    fn undo(&self, plan: &Plan, local: &[Option<LocalCharge>], now_us: u64) {
        for (level, charge) in plan.levels.iter().zip(local) {
            if let Some(charge) = charge.filter(|charge| charge.grant_id > 0) {
                self.put_back(level, charge.grant_id, now_us);
            }
        }
    }
}

/// A ceiling has no state, so any node can allow it. Only the store refuses.
fn check_ceiling(spec: &ceiling::Spec, level: &Level, charges: bool) -> Option<LocalCharge> {
    let verdict = ceiling::evaluate(spec, level.cost);
    let reading = ceiling::reading(spec, level.cost);
    let charged = charges && !level.cost.is_zero();
    let reply = Reply { verdict, charged, charged_at_us: 0, reading };
    (verdict == Verdict::Allowed).then_some(LocalCharge { grant_id: 0, store_us: 0, reply })
}

fn answer(local: &[Option<LocalCharge>]) -> Answer {
    let now_us = local.iter().flatten().map(|charge| charge.store_us).max().unwrap_or_default();
    let replies = local.iter().flatten().map(|charge| charge.reply).collect();
    Answer { now: Now { steady_us: now_us, unix_us: now_us }, replies }
}
