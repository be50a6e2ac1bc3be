//! A plan on this node's leases: what they cover is spent here, and only the rest is asked for. All or
//! nothing: what the store then refuses is put back.

use tidegate::algorithm::{Spec, Verdict, ceiling};
use tidegate::clock::Now;
use tidegate::plan::{Level, Mode, PerLevel, Plan};
use tidegate::store::{Answer, Reply};

use super::loan::Loan;
use super::table::Table;

/// A plan of which a part may be decided here.
#[derive(Debug)]
pub struct Begun {
    /// What each level was given here; `None` for those that the store decides.
    here: PerLevel<Option<Here>>,
    /// What to tell the store before.
    pub first: Vec<Loan>,
    /// What to ask of it: the plan as it is where no level of it was decided here.
    pub rest: Option<Plan>,
    /// The answer, where there is nothing left to ask.
    pub done: Option<Answer>,
}

#[derive(Clone, Copy, Debug)]
struct Here {
    batch: u64,
    store_us: u64,
    reply: Reply,
}

impl Table {
    /// Decides a plan without the store, if leases cover all of it.
    #[must_use]
    pub fn at_once(&self, plan: &Plan, now_us: u64) -> Option<Answer> {
        let covered = |level: &Level| self.lends(level) || level.spec.is_stateless();
        if !plan.levels.iter().any(|level| level.leased) || !plan.levels.iter().all(covered) {
            return None;
        }
        let mut here = PerLevel::new();
        for level in &plan.levels {
            let Some(one) = self.here(level, plan, now_us) else {
                self.undo(plan, &here, now_us);
                return None;
            };
            here.push(Some(one));
        }
        Some(answer(&here))
    }

    /// Begins to decide a plan for which the store must be asked.
    #[must_use]
    pub fn begin(&self, plan: &Plan, now_us: u64) -> Begun {
        let mut begun = Begun { here: PerLevel::new(), first: Vec::new(), rest: None, done: None };
        if !plan.levels.iter().any(|level| self.lends(level)) {
            return begun;
        }
        let mut rest = Plan { levels: PerLevel::new(), names: Vec::new(), ..*plan };
        for (at, level) in plan.levels.iter().enumerate() {
            let lends = self.lends(level);
            let here = self.here(level, plan, now_us);
            if here.is_none() {
                if lends && plan.mode == Mode::Charge {
                    begun.first.extend(self.asked(level, plan.names.get(at), now_us));
                }
                rest.levels.push(*level);
                rest.names.extend(plan.names.get(at).cloned());
            }
            begun.here.push(here);
        }
        if rest.levels.is_empty() {
            begun.done = Some(answer(&begun.here));
        } else if rest.levels.len() < plan.levels.len() {
            begun.rest = Some(rest);
        }
        begun
    }

    /// The answer to a plan, from what the store says to the rest of it.
    ///
    /// # Errors
    /// The store's own.
    pub fn finish<E>(
        &self,
        plan: &Plan,
        begun: &Begun,
        answered: Result<Answer, E>,
        now_us: u64,
    ) -> Result<Answer, E> {
        if begun.rest.is_none() {
            return answered;
        }
        let answered = answered.inspect_err(|_| self.undo(plan, &begun.here, now_us))?;
        let mut told = answered.replies.iter();
        let reply = |here: &Option<Here>| match here {
            Some(here) => Some(here.reply),
            None => told.next().copied(),
        };
        let mut replies: PerLevel<Reply> = begun.here.iter().filter_map(reply).collect();
        let verdicts: PerLevel<Verdict> = replies.iter().map(|reply| reply.verdict).collect();
        if !plan.commits(&verdicts) {
            self.undo(plan, &begun.here, now_us);
            for reply in &mut replies {
                reply.charged = false;
            }
        }
        Ok(Answer { now: answered.now, replies })
    }

    fn here(&self, level: &Level, plan: &Plan, now_us: u64) -> Option<Here> {
        let charges = plan.mode == Mode::Charge;
        if let Spec::Ceiling(spec) = &level.spec {
            return passed(spec, level, charges);
        }
        if !self.lends(level) {
            return None;
        }
        let spent = self.spend(level, charges.then_some(plan.holder), now_us)?;
        let charged = charges && !level.cost.is_zero();
        let reply = Reply {
            verdict: Verdict::Allowed,
            charged,
            charged_at_us: if charged { spent.store_us } else { 0 },
            reading: spent.reading,
        };
        let batch = if charges { spent.batch } else { 0 };
        Some(Here { batch, store_us: spent.store_us, reply })
    }

    fn undo(&self, plan: &Plan, here: &[Option<Here>], now_us: u64) {
        for (level, here) in plan.levels.iter().zip(here) {
            if let Some(here) = here.filter(|here| here.batch > 0) {
                self.put_back(level, here.batch, now_us);
            }
        }
    }
}

/// A ceiling keeps no state, so that anybody can say whether it is kept; one that is not is for
/// the store to refuse.
fn passed(spec: &ceiling::Spec, level: &Level, charges: bool) -> Option<Here> {
    let verdict = ceiling::evaluate(spec, level.cost);
    let reading = ceiling::reading(spec, level.cost);
    let charged = charges && !level.cost.is_zero();
    let reply = Reply { verdict, charged, charged_at_us: 0, reading };
    (verdict == Verdict::Allowed).then_some(Here { batch: 0, store_us: 0, reply })
}

fn answer(here: &[Option<Here>]) -> Answer {
    let now_us = here.iter().flatten().map(|one| one.store_us).max().unwrap_or_default();
    let replies = here.iter().flatten().map(|one| one.reply).collect();
    Answer { now: Now { steady_us: now_us, unix_us: now_us }, replies }
}
