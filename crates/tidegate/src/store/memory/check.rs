//! The shortest way: one bucket that is in its slot.

use std::sync::Arc;

use super::answer::{GLANCES, Step, answer};
use super::slot::Words;
use super::table::{AT_ONCE, Glance, Several, Table};
use crate::algorithm::{Spec, Verdict, token_bucket};
use crate::clock::Now;
use crate::key::Key;
use crate::plan::{Enforcement, Level, Mode, PerLevel, Plan};
use crate::store::Reply;
use crate::units::Amount;

/// What is to become of a bucket that was seen.
struct Draft {
    verdict: Verdict,
    /// What its slot says then.
    words: Words,
    writes: bool,
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
        for keys in keys.chunks(AT_ONCE) {
            let mut glances = Several::new();
            self.glance_all(keys, &mut glances);
            let mut drafts = Several::new();
            drafts
                .extend(glances.iter().map(|glance| self.draft(glance, spec, Amount::ONE, now_us)));
            let drawn_up = glances.iter().zip(&drafts);
            verdicts.extend(keys.iter().zip(drawn_up).map(|(key, (glance, draft))| match draft {
                Some(draft) if commit(glance, draft) => draft.verdict,
                _ => self.check(spec, *key, Amount::ONE, now_us),
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
    fn take(&self, key: Key, spec: &Spec, cost: Amount, now_us: u64) -> Option<Draft> {
        for _ in 0..GLANCES {
            let glance = self.glance(key);
            let draft = self.draft(&glance, spec, cost, now_us)?;
            if commit(&glance, &draft) {
                return Some(draft);
            }
        }
        None
    }

    /// What is to become of a bucket that is in its slot; `None` where it is not.
    #[inline(always)]
    fn draft(&self, glance: &Glance<'_>, spec: &Spec, cost: Amount, now_us: u64) -> Option<Draft> {
        let seen = glance.found?.words;
        let (known, Spec::TokenBucket(spec)) = (self.specs.get(seen.number())?, spec) else {
            return None;
        };
        if !matches!(&known.spec, Spec::TokenBucket(known) if known == spec) {
            return None;
        }
        let mut state = seen.reduced(known)?;
        let verdict = token_bucket::take(&mut state, &known.reduced, now_us, cost);
        let writes = verdict == Verdict::Allowed && !cost.is_zero();
        let words = if writes {
            Words::pack_reduced(&state, seen.number(), known)?.marked(self.is_tracked())
        } else {
            seen
        };
        Some(Draft { verdict, words, writes })
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

/// Does what was drawn up; false where the bucket has changed since it was seen.
#[inline(always)]
fn commit(glance: &Glance<'_>, draft: &Draft) -> bool {
    match glance.found {
        Some(found) if draft.writes => glance.segment.replace(glance.version, found, draft.words),
        _ => glance.segment.is_still(glance.version),
    }
}
