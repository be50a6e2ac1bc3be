//! The shortest way: one bucket that is in its slot.

use std::cell::LazyCell;
use std::sync::Arc;

use super::answer::{GLANCES, Step, answer};
use super::segment::{Found, Segment};
use super::slot::Words;
use super::specs::Known;
use super::table::{AT_ONCE, Glance, Several, Start, Table, Way};
use crate::algorithm::{Spec, Verdict, token_bucket};
use crate::clock::Now;
use crate::key::Key;
use crate::plan::{Enforcement, Level, Mode, PerLevel, Plan};
use crate::store::Reply;
use crate::units::Amount;

/// What is charged to buckets.
#[derive(Clone, Copy)]
struct Charge<'t> {
    known: &'t Known,
    /// Of the spec.
    number: u8,
    cost: Amount,
    now_us: u64,
    /// Whether somebody is told of changes.
    tracked: bool,
}

/// What is to become of a bucket that was seen.
struct Draft<'t> {
    segment: &'t Segment,
    version: u32,
    found: Found<'t>,
    verdict: Verdict,
    /// What its slot says then.
    words: Words,
}

impl Table {
    /// A table of no store.
    pub(crate) fn alone(max_keys: usize) -> Self {
        Self::new(max_keys, Arc::default(), Arc::default(), Arc::default())
    }

    /// Charges a key, if the cost fits.
    #[inline]
    pub(crate) fn check(&self, spec: &Spec, key: Key, cost: Amount, now_us: u64) -> Verdict {
        match self.take(key, spec, cost, now_us) {
            Some(draft) => draft.verdict,
            None => self.check_level(spec, key, cost, now_us),
        }
    }

    /// Charges one to each of some keys, if it fits. The clock is read once, when the memory of the first
    /// is on its way.
    #[inline(always)]
    pub(crate) fn check_all<K>(
        &self,
        spec: &Spec,
        keys: &[K],
        key_of: impl Fn(&K) -> Key,
        now_us: impl FnOnce() -> u64,
        verdicts: &mut Vec<Verdict>,
    ) {
        let now_us = LazyCell::new(now_us);
        for keys in keys.chunks(AT_ONCE) {
            let (extent, mut starts) = (self.extent(), Several::new());
            starts.extend(keys.iter().map(|key| self.start(extent, key_of(key))));
            self.check_several(spec, &starts, &now_us, verdicts);
        }
    }

    /// Charges one to each of some keys whose segments are on their way.
    fn check_several(
        &self,
        spec: &Spec,
        starts: &[Start<'_>],
        now_us: &LazyCell<u64, impl FnOnce() -> u64>,
        verdicts: &mut Vec<Verdict>,
    ) {
        let (mut ways, mut cells) = (Several::new(), Several::new());
        self.ways(starts, &mut ways);
        // Looked at behind the segments' numbers: whoever is told from now on changes these.
        let (now_us, tracked) = (**now_us, self.is_tracked());
        let (cost, known) = (Amount::ONE, self.specs.find(spec));
        let charge = known.map(|(number, known)| Charge { known, number, cost, now_us, tracked });
        let cell_of = |(start, way): (&Start<'_>, _)| self.cell_at(Option::as_ref(way)?, start.key);
        cells.extend(starts.iter().zip(&ways).map(cell_of));
        verdicts.extend(starts.iter().zip(&ways).zip(&cells).map(|((start, way), cell)| {
            let in_its_slot = || {
                let (charge, Way { segment, version, .. }) = (charge?, way.as_ref()?);
                let found = match *cell {
                    Some(cell) => Found { cell, words: cell.words() },
                    None => self.find_behind(way.as_ref()?, start.key)?,
                };
                let glance = Glance { segment, version: *version, found: Some(found) };
                charge.draft(glance)?.commit()
            };
            in_its_slot().unwrap_or_else(|| self.check(spec, start.key, cost, now_us))
        }));
    }

    /// Answers a plan of one level; `None` where that is no bucket in its slot.
    pub(super) fn answer_bucket(&self, plan: &Plan, level: &Level) -> Option<Reply> {
        if plan.mode == Mode::Peek || level.is_given_back() {
            return None;
        }
        let now_us = plan.now.steady_us;
        let Draft { verdict, words, .. } = self.take(level.key, &level.spec, level.cost, now_us)?;
        let known = self.specs.get(words.number())?;
        let reading = token_bucket::reading(&words.reduced(known)?, &known.reduced, now_us);
        let charged = verdict == Verdict::Allowed && !level.cost.is_zero();
        let charged_at_us = if charged { words.at_us() } else { 0 };
        Some(Reply { verdict, charged, charged_at_us, reading })
    }

    /// Charges a bucket that is in its slot; `None` where it is not, or where others were faster again
    /// and again, so that its segment must be held.
    #[inline(always)]
    fn take(&self, key: Key, spec: &Spec, cost: Amount, now_us: u64) -> Option<Draft<'_>> {
        for _ in 0..GLANCES {
            let glance = self.glance(key);
            // Looked at behind the segment's number: whoever is told from now on changes that.
            let tracked = self.is_tracked();
            let number = glance.found?.words.number();
            let known = self.specs.get(number)?;
            if !known.is_bucket(spec) {
                return None;
            }
            let draft = Charge { known, number, cost, now_us, tracked }.draft(glance)?;
            if draft.commit().is_some() {
                return Some(draft);
            }
        }
        None
    }

    /// Charges a key, whatever it is.
    #[cold]
    fn check_level(&self, spec: &Spec, key: Key, cost: Amount, now_us: u64) -> Verdict {
        let mut plan = Plan::new(Mode::Charge);
        plan.now = Now { steady_us: now_us, unix_us: now_us };
        let level = Level::of_key(0, key, *spec);
        let level = Level { cost, enforcement: Enforcement::Reject, ..level };
        let (mut steps, mut replies) = ([Step::new(&level, Some(self))], PerLevel::new());
        plan.levels.push(level);
        answer(&plan, &mut steps, &mut replies);
        replies.first().map_or(Verdict::Allowed, |reply| reply.verdict)
    }
}

impl Charge<'_> {
    /// What is to become of a bucket that is in its slot, with this spec; `None` where it is not.
    #[inline(always)]
    fn draft<'t>(&self, glance: Glance<'t>) -> Option<Draft<'t>> {
        let Self { known, number, cost, now_us, tracked } = *self;
        let Glance { segment, version, found: Some(found) } = glance else { return None };
        if found.words.number() != number {
            return None;
        }
        let mut state = found.words.reduced(known)?;
        let verdict = token_bucket::take(&mut state, &known.reduced, now_us, cost);
        let words = if verdict == Verdict::Allowed && !cost.is_zero() {
            Words::pack_reduced(&state, number, known)?.marked(tracked)
        } else {
            found.words
        };
        Some(Draft { segment, version, found, verdict, words })
    }
}

impl Draft<'_> {
    /// Does it; `None` where the bucket has changed since it was seen.
    #[inline(always)]
    fn commit(&self) -> Option<Verdict> {
        let is_done = if self.words == self.found.words {
            self.segment.is_still(self.version)
        } else {
            self.segment.replace(self.version, self.found, self.words)
        };
        is_done.then_some(self.verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefetch::twin;

    const KEYS: u128 = 5_000;

    fn bucket() -> Spec {
        let amount = |units| Amount::from_units(units).unwrap();
        let (count, burst) = (amount(7), amount(3));
        Spec::TokenBucket(token_bucket::Spec { count, period_us: 1_000_000, burst })
    }

    /// Keys at several instants, some of them several times in a batch, while the table grows.
    fn batches() -> impl Iterator<Item = (u64, Vec<Key>)> {
        (1..2_000_u64).map(|turn| {
            let some = u128::from(turn) * 37..u128::from(turn) * 37 + u128::from(turn % 100);
            let again = [1, 2, 1].map(|key| Key(key << 64));
            let keys = some.map(|key| Key(((key * key % KEYS) << 64) | (key % 2))).chain(again);
            (1_000_000 + turn * 900, keys.collect())
        })
    }

    fn in_batches(table: &Table) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        for (now_us, keys) in batches() {
            table.check_all(&bucket(), &keys, |key| *key, || now_us, &mut verdicts);
        }
        verdicts
    }

    #[test]
    fn a_batch_answers_as_single_checks_do_whether_memory_is_asked_for_or_not() {
        let [one, other, single] = [(); 3].map(|()| Table::alone(KEYS as usize * 2));
        let check = |now_us, key| single.check(&bucket(), key, Amount::ONE, now_us);
        let singly: Vec<Verdict> = batches()
            .flat_map(|(now_us, keys)| keys.into_iter().map(move |key| check(now_us, key)))
            .collect();
        assert!(singly.iter().any(|verdict| *verdict != Verdict::Allowed));
        assert_eq!(in_batches(&one), singly);
        assert_eq!(twin::instead(|| in_batches(&other)), singly);
    }
}
