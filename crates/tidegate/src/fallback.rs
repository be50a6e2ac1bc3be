//! What each limit does while the shared store is lost. It stands above the stores, so that every
//! store fails the same way and policy tests can try it.
//!
//! `local` limits are counted in this node's memory with this node's share. A key starts there with
//! what the store last said of it, and what was admitted is [owed](debts) to the store until it is
//! back.

mod debts;
mod readings;

use crate::algorithm::{self, Reading, Spec, Verdict};
use crate::clock::Now;
use crate::plan::{Enforcement, Level, Mode, PerLevel, Plan};
use crate::policy::model::OnStoreFailure;
use crate::store::{
    Amendment, AmendmentResults, Answer, Change, ImmediateStore as _, Memory, Reply,
};
use crate::units::Amount;

pub(crate) use debts::Debts;
use readings::Readings;

/// How this node decides by itself.
#[derive(Debug)]
pub(crate) struct Fallback {
    memory: Memory,
    readings: Readings,
    pub(crate) debts: Debts,
}

impl Fallback {
    /// A fallback that counts at most `max_keys` keys.
    pub(crate) fn new(max_keys: usize) -> Self {
        let memory = Memory::with_max_keys(max_keys);
        Self { memory, readings: Readings::default(), debts: Debts::default() }
    }

    /// Remembers what the store said, for when it says nothing any more.
    pub(crate) fn note(&self, plan: &Plan, answer: &Answer, now: Now) {
        for (level, reply) in plan.levels.iter().zip(&answer.replies) {
            if counts(level) {
                self.readings.note(level, &reply.reading, now);
            }
        }
    }

    /// Decides a plan without the shared store. The plan's specs become this node's shares where they
    /// are counted here.
    pub(crate) fn decide(&self, plan: &mut Plan, nodes: u32) -> Answer {
        let whole: PerLevel<Level> = plan.levels.iter().copied().collect();
        for level in plan.levels.iter_mut().filter(|level| is_local(level)) {
            self.begin(level, nodes);
        }
        let refused = plan.levels.iter().any(|level| {
            refuses(level) && !is_local(level) && level.enforcement == Enforcement::Reject
        });
        let local = Plan {
            names: Vec::new(),
            mode: if refused { Mode::Peek } else { plan.mode },
            levels: plan.levels.iter().filter(|level| is_local(level)).copied().collect(),
            ..*plan
        };
        let answer = self.memory.answer(&local);
        let mut decided = answer.replies.into_iter();
        let reply = |level: &Level| match level.on_store_failure {
            _ if is_local(level) => decided.next().unwrap_or(denied()),
            OnStoreFailure::Deny => denied(),
            OnStoreFailure::Allow | OnStoreFailure::Local => passed(level, plan.now),
        };
        let replies: PerLevel<Reply> = plan.levels.iter().map(reply).collect();
        for (at, (level, reply)) in whole.iter().zip(&replies).enumerate() {
            if reply.charged && counts(level) {
                self.debts.add(level, plan.names.get(at), plan.now.steady_us);
            }
        }
        Answer { now: answer.now, replies }
    }

    /// Corrects what this node charged by itself.
    pub(crate) fn amend(&self, now: Now, amendments: &[Amendment]) -> AmendmentResults {
        for amendment in amendments {
            if amendment.change == Change::Reset {
                self.readings.forget(amendment.level.key);
            }
            self.debts.amend(amendment);
        }
        // Memory always answers.
        self.memory.amend_now(now, amendments).unwrap_or_default()
    }

    /// Tells which limits there are.
    pub(crate) fn announce(&self, families: &[u64]) {
        self.memory.announce_now(families);
    }

    /// How many keys are counted here.
    pub(crate) fn keys(&self) -> usize {
        self.memory.keys()
    }

    /// Gives a level this node's share, and starts its key with its share of what was left.
    fn begin(&self, level: &mut Level, nodes: u32) {
        let whole = level.spec;
        level.spec = whole.share_of(nodes);
        let Some(last) = self.readings.of(level.key).filter(|_| counts(level)) else { return };
        self.memory.raise_debt(level, last.at, share_of_owed(last.owed, &whole, &level.spec));
    }
}

/// This node's part of what a key owes. Windows are spent in whole units, and a share may be small: a
/// part of a unit that others have spent refuses nobody the whole one.
fn share_of_owed(owed: Amount, whole: &Spec, share: &Spec) -> Amount {
    let micros = |amount: Amount| u128::from(amount.micros());
    let capacity = micros(whole.capacity()).max(1);
    let part = micros(owed) * micros(share.capacity()) / capacity;
    let part = u64::try_from(part).ok().and_then(Amount::from_micros).unwrap_or(Amount::MAX);
    let part = if matches!(share, Spec::TokenBucket(_)) {
        part
    } else {
        Amount::from_units(part.whole()).unwrap_or(part)
    };
    part.min(share.capacity())
}

/// Whether its requests are counted here. Places are not: nobody could say whose are over by now.
fn counts(level: &Level) -> bool {
    let place = matches!(level.spec, Spec::Concurrency(_));
    level.on_store_failure == OnStoreFailure::Local && !place && !level.spec.is_stateless()
}

/// A ceiling keeps no state, so that it holds whatever the store does.
fn is_local(level: &Level) -> bool {
    level.on_store_failure == OnStoreFailure::Local || level.spec.is_stateless()
}

fn refuses(level: &Level) -> bool {
    level.on_store_failure == OnStoreFailure::Deny
}

fn denied() -> Reply {
    let reading = Reading { available: Amount::ZERO, reset_us: None };
    Reply {
        verdict: Verdict::Denied { retry_after: None },
        charged: false,
        charged_at_us: 0,
        reading,
    }
}

/// The reply of a limit that nobody has used, as far as this node knows.
fn passed(level: &Level, now: Now) -> Reply {
    let reading = match level.spec.new_state() {
        Some(state) => algorithm::reading(&state, &level.spec, level.time_us(now)),
        None => Reading { available: level.spec.capacity(), reset_us: None },
    };
    Reply { verdict: Verdict::Allowed, charged: false, charged_at_us: 0, reading }
}

#[cfg(test)]
mod tests;
