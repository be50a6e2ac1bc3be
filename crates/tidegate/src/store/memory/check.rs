//! The shortest way: one bucket that is in its slot.

use std::sync::Arc;

use super::answer::{GLANCES, Step, answer};
use super::segment::{Found, Segment};
use super::slot::Words;
use super::specs::Known;
use super::table::{AT_ONCE, Glance, Several, Table};
use crate::algorithm::{Spec, Verdict, token_bucket};
use crate::clock::Now;
use crate::key::Key;
use crate::plan::{Enforcement, Level, Mode, Plan};
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

    /// Charges one to each of some keys, if it fits.
    pub(crate) fn check_all(
        &self,
        spec: &Spec,
        keys: &[Key],
        now_us: u64,
        verdicts: &mut Vec<Verdict>,
    ) {
        let (cost, known) = (Amount::ONE, self.specs.find(spec));
        for keys in keys.chunks(AT_ONCE) {
            let ways = self.ways(keys);
            // Looked at behind the segments' numbers: whoever is told from now on changes these.
            let tracked = self.is_tracked();
            let charge =
                known.map(|(number, known)| Charge { known, number, cost, now_us, tracked });
            let mut drafts = Several::new();
            drafts.extend(
                keys.iter()
                    .zip(&ways)
                    .map(|(key, way)| charge?.draft(self.glance_at(way.as_ref()?, *key))),
            );
            verdicts.extend(keys.iter().zip(&drafts).map(|(key, draft)| {
                let verdict = draft.as_ref().and_then(|draft| {
                    draft.commit().or_else(|| {
                        // Most likely the key is there twice.
                        charge?.draft(draft.glance_again())?.commit()
                    })
                });
                verdict.unwrap_or_else(|| self.check(spec, *key, cost, now_us))
            }));
        }
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
        let mut steps = [Step::new(&level, Some(self))];
        plan.levels.push(level);
        answer(&plan, &mut steps).first().map_or(Verdict::Allowed, |reply| reply.verdict)
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

impl<'t> Draft<'t> {
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

    /// Looks at the bucket again where it was.
    fn glance_again(&self) -> Glance<'t> {
        let Self { segment, version, found, .. } = *self;
        Glance { segment, version, found: Some(Found { words: found.cell.words(), ..found }) }
    }
}
