//! One shard of the negative cache. It is bounded: the refusals that end first are evicted first.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use tidegate::clock::Now;
use tidegate::engine::algorithm::{Reading, Verdict};
use tidegate::engine::plan::{Level, Plan};
use tidegate::engine::store::{Answer, Reply};

use super::invalidation::Invalidation;
use super::is_cacheable;
use crate::keys;

/// How many refusals a table holds.
pub(super) const REFUSALS_MAX: usize = 1024;

/// Refusals by the id of their plan, with an index by end and an index by the names of their states.
#[derive(Debug, Default)]
pub(super) struct RefusalTable {
    refusals: HashMap<u128, Refusal>,
    by_end: BTreeSet<(u64, u128)>,
    by_name: BTreeSet<(u64, u128)>,
}

/// The answer to a plan that was refused.
#[derive(Debug)]
pub(super) struct Refusal {
    until_us: u64,
    /// When this node received the answer.
    received_us: u64,
    /// The store's time in the answer.
    now: Now,
    levels: Box<[RefusedLevel]>,
}

/// One level of a refused plan, and the reply to it.
#[derive(Debug)]
struct RefusedLevel {
    level: Level,
    name_hash: u64,
    reply: Reply,
}

/// Plans of the same keys have the same id. Keys are keyed hashes, so nobody outside can force two
/// plans onto one id.
pub(super) fn plan_id(plan: &Plan) -> u128 {
    plan.levels.iter().fold(0, |id: u128, level| id.rotate_left(9) ^ level.key.0)
}

impl RefusalTable {
    pub(super) fn len(&self) -> usize {
        self.refusals.len()
    }

    pub(super) fn find(&self, id: u128, plan: &Plan, now_us: u64) -> Option<Answer> {
        let refusal = self.refusals.get(&id)?;
        (now_us < refusal.until_us && refusal.applies_to(plan)).then(|| refusal.answer_at(now_us))
    }

    pub(super) fn insert(&mut self, id: u128, refusal: Refusal, now_us: u64) {
        self.remove(id);
        while let Some(&(until_us, first)) = self.by_end.first()
            && (until_us <= now_us || self.refusals.len() >= REFUSALS_MAX)
        {
            self.remove(first);
        }
        self.by_end.insert((refusal.until_us, id));
        self.by_name.extend(refusal.levels.iter().map(|level| (level.name_hash, id)));
        self.refusals.insert(id, refusal);
    }

    pub(super) fn forget(&mut self, change: &Invalidation) {
        let ids: Vec<u128> = match change {
            Invalidation::Key(name) => {
                let hash = hash(name);
                self.by_name.range((hash, 0)..=(hash, u128::MAX)).map(|(_, id)| *id).collect()
            }
            // A full scan: only operators change a whole limit.
            Invalidation::Family(family) => {
                let is_touched = |refused: &RefusedLevel| refused.level.family == *family;
                let refusals = self.refusals.iter();
                let touched = refusals.filter(|(_, refusal)| refusal.levels.iter().any(is_touched));
                touched.map(|(id, _)| *id).collect()
            }
            Invalidation::All => return *self = Self::default(),
        };
        ids.into_iter().for_each(|id| self.remove(id));
    }

    fn remove(&mut self, id: u128) {
        if let Some(refusal) = self.refusals.remove(&id) {
            self.by_end.remove(&(refusal.until_us, id));
            for level in &refusal.levels {
                self.by_name.remove(&(level.name_hash, id));
            }
        }
    }
}

impl Refusal {
    pub(super) fn new(plan: &Plan, answer: &Answer, until_us: u64, received_us: u64) -> Self {
        let levels = plan.levels.iter().zip(&answer.replies).enumerate();
        let refused = |(at, (level, reply)): (usize, (&Level, &Reply))| RefusedLevel {
            level: *level,
            name_hash: hash(&keys::state_name(plan.names.get(at), level)),
            reply: *reply,
        };
        Self { until_us, received_us, now: answer.now, levels: levels.map(refused).collect() }
    }

    /// True if the store would give a plan the same answer.
    fn applies_to(&self, plan: &Plan) -> bool {
        self.levels.len() == plan.levels.len()
            && self
                .levels
                .iter()
                .zip(&plan.levels)
                .all(|(refused, level)| refused.applies_to(level))
    }

    /// The answer as the store would give it now, if no other request came in between. Waiting times
    /// count from when the answer was received, so that no client is told to come back too early.
    fn answer_at(&self, now_us: u64) -> Answer {
        let age_us = now_us.saturating_sub(self.received_us);
        let Now { steady_us, unix_us } = self.now;
        let now = Now {
            steady_us: steady_us.saturating_add(age_us),
            unix_us: unix_us.saturating_add(age_us),
        };
        Answer { now, replies: self.levels.iter().map(|level| level.reply_after(age_us)).collect() }
    }
}

impl RefusedLevel {
    /// True if a level gets the same verdict: a denied level with any larger cost, an allowed level with
    /// any smaller one.
    fn applies_to(&self, level: &Level) -> bool {
        let is_same = self.level.key == level.key
            && self.level.spec == level.spec
            && self.level.enforcement == level.enforcement;
        let is_same_verdict = match self.reply.verdict {
            Verdict::Denied { .. } => is_cacheable(level) && level.cost >= self.level.cost,
            Verdict::Allowed => level.cost <= self.level.cost,
        };
        is_same && is_same_verdict
    }

    fn reply_after(&self, age_us: u64) -> Reply {
        let verdict = match self.reply.verdict {
            Verdict::Denied { retry_after: Some(wait) } => {
                let rest = wait.saturating_sub(Duration::from_micros(age_us));
                Verdict::Denied { retry_after: Some(rest.max(Duration::from_micros(1))) }
            }
            verdict => verdict,
        };
        let Reading { available, reset_us } = self.reply.reading;
        let reset_us = reset_us.map(|us| us.saturating_sub(age_us));
        Reply { verdict, reading: Reading { available, reset_us }, ..self.reply }
    }
}

/// Two names with the same hash are forgotten together, which does no harm.
fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use tidegate::Amount;
    use tidegate::engine::Key;
    use tidegate::engine::algorithm::Spec;
    use tidegate::engine::plan::{Enforcement, Mode};
    use tidegate::engine::policy::OnStoreFailure;

    use super::*;

    fn refusal(names: &[&str], until_us: u64) -> Refusal {
        let now = Now { steady_us: 0, unix_us: 0 };
        let level = Level {
            limit: 0,
            family: 7,
            key: Key(1),
            spec: Spec::Ceiling(tidegate::engine::algorithm::ceiling::Spec { limit: Amount::ONE }),
            cost: Amount::ONE,
            refundable: false,
            reserved: false,
            leased: false,
            enforcement: Enforcement::Reject,
            on_store_failure: OnStoreFailure::Local,
        };
        let reading = Reading { available: Amount::ZERO, reset_us: None };
        let verdict = Verdict::Denied { retry_after: None };
        let reply = Reply { verdict, charged: false, charged_at_us: 0, reading };
        let plan = Plan {
            mode: Mode::Charge,
            now,
            holder: 0,
            levels: names.iter().map(|_| level).collect(),
            names: names.iter().map(|name| (*name).into()).collect(),
        };
        let answer = Answer { now, replies: names.iter().map(|_| reply).collect() };
        Refusal::new(&plan, &answer, until_us, 0)
    }

    fn sizes(table: &RefusalTable) -> [usize; 3] {
        [table.len(), table.by_end.len(), table.by_name.len()]
    }

    #[test]
    fn a_refusal_is_found_by_each_of_its_names_and_leaves_nothing_behind() {
        for name in ["a", "b"] {
            let mut table = RefusalTable::default();
            table.insert(1, refusal(&["old", "a"], 10), 0);
            table.insert(1, refusal(&["a", "b"], 20), 0);
            table.insert(2, refusal(&["c", "c"], 30), 0);
            assert_eq!(sizes(&table), [2, 2, 3]);
            table.forget(&Invalidation::Key("old".into()));
            assert_eq!(sizes(&table), [2, 2, 3], "it has no such state any more");
            table.forget(&Invalidation::Key(name.into()));
            assert_eq!(sizes(&table), [1, 1, 1]);
            table.insert(3, refusal(&["d"], 50), 40);
            assert_eq!(sizes(&table), [1, 1, 1], "what is over goes");
            table.forget(&Invalidation::Family(7));
            assert_eq!(sizes(&table), [0, 0, 0]);
        }
    }
}
