//! The shortest way: one bucket that is in its slot.

use std::hint::black_box;
use std::sync::Arc;

use super::answer::{Step, answer};
use super::slot::Words;
use super::table::{Glance, Table};
use crate::algorithm::{Spec, Verdict, token_bucket};
use crate::clock::Now;
use crate::key::Key;
use crate::plan::{Enforcement, Level, Mode, PerLevel, Plan};
use crate::store::Reply;
use crate::units::Amount;

impl Table {
    /// A table of no store.
    pub(crate) fn alone(max_keys: usize) -> Self {
        Self::new(max_keys, Arc::default(), Arc::default(), Arc::default())
    }

    /// Charges a key, if the cost fits.
    #[inline]
    pub(crate) fn check(&self, spec: &Spec, key: Key, cost: Amount, now_us: u64) -> Verdict {
        match self.take_bucket(&self.glance(key), spec, cost, now_us) {
            Some((verdict, _)) => verdict,
            None => self.check_level(spec, key, cost, now_us),
        }
    }

    /// Charges one to each of some keys, if it fits. The lines that they are in are read first, all of
    /// them and nothing else, so that they come from memory together.
    pub(crate) fn check_all(
        &self,
        spec: &Spec,
        keys: &[Key],
        now_us: u64,
        verdicts: &mut Vec<Verdict>,
    ) {
        let touched = keys.iter().fold(0, |read, key| read ^ self.touch_segment(*key));
        black_box(touched);
        let touched = keys.iter().fold(0, |read, key| read ^ self.touch_slot(*key));
        black_box(touched);
        let check = |key: &Key| self.check(spec, *key, Amount::ONE, now_us);
        verdicts.extend(keys.iter().map(check));
    }

    /// Answers a plan of one level; `None` where that is no bucket in its slot.
    pub(super) fn answer_bucket(&self, plan: &Plan, level: &Level) -> Option<Reply> {
        let Spec::TokenBucket(spec) = &level.spec else { return None };
        if plan.mode == Mode::Peek || level.is_given_back() {
            return None;
        }
        let now_us = plan.now.steady_us;
        let glance = self.glance(level.key);
        let (verdict, state) = self.take_bucket(&glance, &level.spec, level.cost, now_us)?;
        let charged = verdict == Verdict::Allowed && !level.cost.is_zero();
        let charged_at_us = if charged { state.at_us } else { 0 };
        let reading = token_bucket::reading(&state, spec, now_us);
        Some(Reply { verdict, charged, charged_at_us, reading })
    }

    /// Charges a bucket that is in its slot, by what was seen of it, and returns what it is then;
    /// `None` where it is not, or has changed since.
    #[inline(always)]
    fn take_bucket(
        &self,
        glance: &Glance<'_>,
        spec: &Spec,
        cost: Amount,
        now_us: u64,
    ) -> Option<(Verdict, token_bucket::State)> {
        let (found, Spec::TokenBucket(spec)) = (glance.found?, spec) else { return None };
        let words = found.words;
        let known = self.specs.get(words.number())?;
        if !matches!(&known.spec, Spec::TokenBucket(known) if known == spec) {
            return None;
        }
        let mut state = words.bucket(known)?;
        let verdict = token_bucket::take(&mut state, spec, now_us, cost);
        if verdict != Verdict::Allowed || cost.is_zero() {
            return glance.segment.is_still(glance.version).then_some((verdict, state));
        }
        let words = Words::pack_bucket(&state, words.number(), known)?;
        let held = glance.segment.hold_from(glance.version)?;
        self.set(&held, found, words);
        Some((verdict, state))
    }

    /// Charges a key, whatever it is.
    #[cold]
    fn check_level(&self, spec: &Spec, key: Key, cost: Amount, now_us: u64) -> Verdict {
        let mut plan = Plan::new(Mode::Charge);
        plan.now = Now { steady_us: now_us, unix_us: now_us };
        let level = Level::of_key(0, key, *spec);
        let level = Level { cost, enforcement: Enforcement::Reject, ..level };
        let steps = PerLevel::from_iter([Step::new(&level, Some(self))]);
        plan.levels.push(level);
        answer(&plan, steps).first().map_or(Verdict::Allowed, |reply| reply.verdict)
    }
}
