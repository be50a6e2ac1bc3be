//! Some of the refusals that are known, bounded in number: those that end first go first.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use tidegate::Key;
use tidegate::algorithm::{Reading, Spec, Verdict};
use tidegate::clock::Now;
use tidegate::plan::{Enforcement, Level, Plan};
use tidegate::store::{Answer, Reply};
use tidegate::units::Amount;

use super::changed::Changed;
use super::holds;

/// How many refusals a table holds.
pub(super) const REFUSALS_MAX: usize = 1024;

/// Refusals by their plan, also in the order in which they end, and by the names of their states.
#[derive(Debug, Default)]
pub(super) struct Table {
    refusals: HashMap<u128, Refusal>,
    by_end: BTreeSet<(u64, u128)>,
    by_name: BTreeSet<(u64, u128)>,
}

/// Which refusals a change ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ended {
    /// Those with a state whose name has this hash.
    Name(u64),
    Family(u64),
    All,
}

impl Ended {
    pub(super) fn by(changed: &Changed) -> Self {
        match changed {
            Changed::Key(name) => Self::Name(hash(name)),
            Changed::Family(family) => Self::Family(*family),
            Changed::Everything => Self::All,
        }
    }
}

/// A plan that was refused.
#[derive(Debug)]
pub(super) struct Refusal {
    until_us: u64,
    /// When this node had the answer.
    heard_us: u64,
    /// The store's time in it.
    now: Now,
    levels: Box<[Said]>,
}

/// What one level had to say.
#[derive(Debug)]
struct Said {
    key: Key,
    family: u64,
    name: u64,
    spec: Spec,
    cost: Amount,
    enforcement: Enforcement,
    reply: Reply,
}

/// Plans of the same keys are known by the same number. Keys are keyed hashes, which nobody outside
/// can make meet.
pub(super) fn id_of(plan: &Plan) -> u128 {
    plan.levels.iter().fold(0, |id: u128, level| id.rotate_left(9) ^ level.key.0)
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.refusals.len()
    }

    pub(super) fn recall(&self, id: u128, plan: &Plan, now_us: u64) -> Option<Answer> {
        let refusal = self.refusals.get(&id)?;
        (now_us < refusal.until_us && refusal.is_of(plan)).then(|| refusal.answer(now_us))
    }

    pub(super) fn insert(&mut self, id: u128, refusal: Refusal, now_us: u64) {
        self.remove(id);
        while let Some(&(until_us, first)) = self.by_end.first()
            && (until_us <= now_us || self.refusals.len() >= REFUSALS_MAX)
        {
            self.remove(first);
        }
        self.by_end.insert((refusal.until_us, id));
        self.by_name.extend(refusal.levels.iter().map(|said| (said.name, id)));
        self.refusals.insert(id, refusal);
    }

    pub(super) fn forget(&mut self, ended: Ended) {
        let ids: Vec<u128> = match ended {
            Ended::Name(name) => {
                self.by_name.range((name, 0)..=(name, u128::MAX)).map(|(_, id)| *id).collect()
            }
            // Only operators change a whole limit: nobody waits for this walk often.
            Ended::Family(family) => {
                let touched = |said: &Said| said.family == family;
                let refusals = self.refusals.iter();
                let ended = refusals.filter(|(_, refusal)| refusal.levels.iter().any(touched));
                ended.map(|(id, _)| *id).collect()
            }
            Ended::All => return *self = Self::default(),
        };
        ids.into_iter().for_each(|id| self.remove(id));
    }

    fn remove(&mut self, id: u128) {
        if let Some(refusal) = self.refusals.remove(&id) {
            self.by_end.remove(&(refusal.until_us, id));
            for said in &refusal.levels {
                self.by_name.remove(&(said.name, id));
            }
        }
    }
}

impl Refusal {
    pub(super) fn new(plan: &Plan, answer: &Answer, until_us: u64, heard_us: u64) -> Self {
        let levels = plan.levels.iter().zip(&answer.replies).enumerate();
        let said = |(at, (level, reply)): (usize, (&Level, &Reply))| Said {
            key: level.key,
            family: level.family,
            name: name_of(plan.names.get(at), level),
            spec: level.spec,
            cost: level.cost,
            enforcement: level.enforcement,
            reply: *reply,
        };
        Self { until_us, heard_us, now: answer.now, levels: levels.map(said).collect() }
    }

    /// Whether a plan would be answered in the same way.
    fn is_of(&self, plan: &Plan) -> bool {
        let same = |(said, level): (&Said, &Level)| said.is_of(level);
        self.levels.len() == plan.levels.len() && self.levels.iter().zip(&plan.levels).all(same)
    }

    /// The answer as it would be now, if nobody else came. What is told counts from when the answer
    /// was here, so that nobody is told to come back too early.
    fn answer(&self, now_us: u64) -> Answer {
        let gone_us = now_us.saturating_sub(self.heard_us);
        let Now { steady_us, unix_us } = self.now;
        let now = Now {
            steady_us: steady_us.saturating_add(gone_us),
            unix_us: unix_us.saturating_add(gone_us),
        };
        let later = |said: &Said| said.later(gone_us);
        Answer { now, replies: self.levels.iter().map(later).collect() }
    }
}

impl Said {
    /// Whether a level fares in the same way: one that is denied does so with any larger cost, one
    /// that is not with any smaller one.
    fn is_of(&self, level: &Level) -> bool {
        let same = self.key == level.key
            && self.spec == level.spec
            && self.enforcement == level.enforcement;
        let fares = match self.reply.verdict {
            Verdict::Denied { .. } => holds(level) && level.cost >= self.cost,
            Verdict::Allowed => level.cost <= self.cost,
        };
        same && fares
    }

    fn later(&self, gone_us: u64) -> Reply {
        let verdict = match self.reply.verdict {
            Verdict::Denied { retry_after_us: Some(us) } => {
                Verdict::Denied { retry_after_us: Some(us.saturating_sub(gone_us).max(1)) }
            }
            verdict => verdict,
        };
        let Reading { available, reset_us } = self.reply.reading;
        let reset_us = reset_us.map(|us| us.saturating_sub(gone_us));
        Reply { verdict, reading: Reading { available, reset_us }, ..self.reply }
    }
}

fn name_of(name: Option<&Arc<str>>, level: &Level) -> u64 {
    match Changed::of(name, level) {
        Changed::Key(name) => hash(&name),
        Changed::Family(_) | Changed::Everything => 0,
    }
}

/// Two names that meet are forgotten together, which does no harm.
fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use tidegate::plan::Mode;
    use tidegate::policy::OnStoreFailure;

    use super::*;

    fn refusal(names: &[&str], until_us: u64) -> Refusal {
        let now = Now { steady_us: 0, unix_us: 0 };
        let level = Level {
            limit: 0,
            family: 7,
            key: Key(1),
            spec: Spec::Ceiling(tidegate::algorithm::ceiling::Spec { limit: Amount::ONE }),
            cost: Amount::ONE,
            refundable: false,
            reserved: false,
            leased: false,
            enforcement: Enforcement::Reject,
            on_store_failure: OnStoreFailure::Local,
        };
        let reading = Reading { available: Amount::ZERO, reset_us: None };
        let verdict = Verdict::Denied { retry_after_us: None };
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

    fn sizes(table: &Table) -> [usize; 3] {
        [table.len(), table.by_end.len(), table.by_name.len()]
    }

    #[test]
    fn a_refusal_is_found_by_each_of_its_names_and_leaves_nothing_behind() {
        for name in ["a", "b"] {
            let mut table = Table::default();
            table.insert(1, refusal(&["old", "a"], 10), 0);
            table.insert(1, refusal(&["a", "b"], 20), 0);
            table.insert(2, refusal(&["c", "c"], 30), 0);
            assert_eq!(sizes(&table), [2, 2, 3]);
            table.forget(Ended::by(&Changed::Key("old".into())));
            assert_eq!(sizes(&table), [2, 2, 3], "it has no such state any more");
            table.forget(Ended::by(&Changed::Key(name.into())));
            assert_eq!(sizes(&table), [1, 1, 1]);
            table.insert(3, refusal(&["d"], 50), 40);
            assert_eq!(sizes(&table), [1, 1, 1], "what is over goes");
            table.forget(Ended::by(&Changed::Family(7)));
            assert_eq!(sizes(&table), [0, 0, 0]);
        }
    }
}
