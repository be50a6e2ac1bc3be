//! The shortest way: one bucket that is in its slot.

use std::cell::LazyCell;
use std::sync::Arc;

use super::answer::{GLANCES, Step, answer};
use super::rate::{Rate, Taken};
use super::segment::Found;
use super::slot::Words;
use super::table::{AT_ONCE, Glance, Several, Sought, Table};
use crate::algorithm::{Spec, Verdict, token_bucket};
use crate::clock::Now;
use crate::key::Key;
use crate::plan::{Enforcement, Level, Mode, PerLevel, Plan};
use crate::store::Reply;
use crate::units::Amount;

/// How many keys of a batch are looked for before they are charged. While the first of them are, the
/// memory of the last is still on its way.
const LOOKED_AT_ONCE: usize = 4;

impl Table {
    /// A table of no store.
    pub(crate) fn alone(max_keys: usize) -> Self {
        Self::new(max_keys, Arc::default(), Arc::default(), Arc::default())
    }

    /// Charges a key, if the cost fits. Its lines are asked for before the clock is read: that takes a third
    /// of a check, in which they come nearer, and little else is begun.
    #[inline(always)]
    pub(crate) fn check(
        &self,
        spec: &Spec,
        key: Key,
        cost: Amount,
        now_us: impl FnOnce() -> u64,
    ) -> Verdict {
        let whereabouts = self.ask_for(key);
        let now_us = now_us();
        let glance = whereabouts.and_then(|there| there.glance(key));
        let glance = glance.unwrap_or_else(|| self.glance(key));
        match self.take(glance, key, spec, cost, now_us) {
            Some((taken, _)) => taken.verdict,
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
            let mut sought = Several::new();
            self.seek(keys.iter().map(&key_of), &mut sought);
            self.check_sought(spec, &mut sought, *now_us, verdicts);
        }
    }

    /// Charges one to each of some keys whose memory is on its way.
    fn check_sought<'t>(
        &'t self,
        spec: &Spec,
        keys: &mut [Sought<'t>],
        now_us: u64,
        verdicts: &mut Vec<Verdict>,
    ) {
        // Looked at behind the segments' numbers: whoever is told from now on changes these.
        let tracked = self.is_tracked();
        let alone = |key: &Sought<'t>| self.check_alone(spec, key.key, now_us);
        // What all keys have in common is looked at here, and not for every key.
        let known = self.specs.find(spec).filter(|_| Words::fits(now_us));
        let common = known.and_then(|(number, known)| {
            Some((number, known.rate, known.rate.room_for(Amount::ONE)?))
        });
        let Some((number, rate, room)) = common else {
            return verdicts.extend(keys.iter().map(alone));
        };
        let charge = |key: &Sought<'t>| {
            let cell = key.cell?;
            let words = cell.seen();
            if !words.is_bucket_of(number) {
                return None;
            }
            let Some(then) = rate.charged(words, now_us, Amount::ONE, room) else {
                return key.refuse(number, &rate, now_us);
            };
            let (found, then) = (Found { cell, words }, then.marked(tracked));
            key.segment.replace(key.version, found, then).then_some(Verdict::Allowed)
        };
        for keys in keys.chunks_mut(LOOKED_AT_ONCE) {
            keys.iter_mut().for_each(|key| key.look(self));
            verdicts.extend(keys.iter().map(|key| charge(key).unwrap_or_else(|| alone(key))));
        }
    }

    /// Charges one to a key of a batch that takes more.
    #[cold]
    fn check_alone(&self, spec: &Spec, key: Key, now_us: u64) -> Verdict {
        self.check(spec, key, Amount::ONE, || now_us)
    }

    /// Answers a plan of one level; `None` where that is no bucket in its slot.
    pub(super) fn answer_bucket(
        &self,
        plan: &Plan,
        level: &Level,
        glance: Glance<'_>,
    ) -> Option<Reply> {
        if plan.mode == Mode::Peek || level.is_given_back() {
            return None;
        }
        let now_us = plan.now.steady_us;
        let (taken, rate) = self.take(glance, level.key, &level.spec, level.cost, now_us)?;
        let Taken { verdict, words, state } = taken;
        let reading = token_bucket::reading_taken(&state, &rate.spec, now_us);
        let (charged, charged_at_us) = (words.is_some(), words.map_or(0, Words::at_us));
        Some(Reply { verdict, charged, charged_at_us, reading })
    }

    /// Charges a bucket that was seen in its slot; `None` where it was not, or where others were faster
    /// again and again, so that its segment must be held.
    #[inline(always)]
    fn take(
        &self,
        glance: Glance<'_>,
        key: Key,
        spec: &Spec,
        cost: Amount,
        now_us: u64,
    ) -> Option<(Taken, &Rate)> {
        let (taken, is_done) = self.try_to_take(glance, spec, cost, now_us)?;
        if is_done { Some(taken) } else { self.take_again(key, spec, cost, now_us) }
    }

    #[cold]
    fn take_again(
        &self,
        key: Key,
        spec: &Spec,
        cost: Amount,
        now_us: u64,
    ) -> Option<(Taken, &Rate)> {
        for _ in 1..GLANCES {
            let (taken, is_done) = self.try_to_take(self.glance(key), spec, cost, now_us)?;
            if is_done {
                return Some(taken);
            }
        }
        None
    }

    /// The same; says whether nobody was faster.
    #[inline(always)]
    fn try_to_take(
        &self,
        Glance { segment, version, found }: Glance<'_>,
        spec: &Spec,
        cost: Amount,
        now_us: u64,
    ) -> Option<((Taken, &Rate), bool)> {
        // Looked at behind the segment's number: whoever is told from now on changes that.
        let tracked = self.is_tracked();
        let found = found.filter(|found| found.words.is_bucket())?;
        let known = self.specs.get(found.words.number()).filter(|known| known.is_bucket(spec))?;
        let taken = known.rate.take(found.words, now_us, cost)?;
        let words = taken.words.map(|words| words.marked(tracked));
        Some(((taken, &known.rate), segment.follow(version, found, words)))
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

impl Sought<'_> {
    /// The denial, if its bucket refuses one; `None` where it does not, or something has changed. Out of
    /// the way of those that are allowed.
    #[inline(never)]
    fn refuse(&self, number: u8, rate: &Rate, now_us: u64) -> Option<Verdict> {
        let words = Some(self.cell?.words()).filter(|words| words.is_bucket_of(number))?;
        let Taken { verdict, .. } = rate.take(words, now_us, Amount::ONE)?;
        (verdict != Verdict::Allowed && self.segment.is_still(self.version)).then_some(verdict)
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
            let again = [1, 2, 1].map(Key::counted);
            // Some have half of their key in common with another.
            let some =
                some.map(|key| Key(Key::counted(key * key % KEYS).0 ^ u128::from(turn % 2) << 63));
            let keys = some.chain(again);
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
        let check = |now_us, key| single.check(&bucket(), key, Amount::ONE, || now_us);
        let singly: Vec<Verdict> = batches()
            .flat_map(|(now_us, keys)| keys.into_iter().map(move |key| check(now_us, key)))
            .collect();
        assert!(singly.iter().any(|verdict| *verdict != Verdict::Allowed));
        assert_eq!(in_batches(&one), singly);
        assert_eq!(twin::instead(|| in_batches(&other)), singly);
    }
}
