//! The fast path: one bucket that fits its slot, charged without locking its segment.

use arrayvec::ArrayVec;

use super::decide::{ATTEMPTS, Step, decide};
use super::table::{Lookup, Table};
use crate::algorithm::{Spec, Verdict, token_bucket};
use crate::clock::Now;
use crate::key::Key;
use crate::plan::{Enforcement, Level, Mode, PerLevel, Plan};
use crate::store::Reply;
use crate::units::Amount;

/// How many keys of a batch are hashed, then located, then looked up, and then charged. Each step is done for all of
/// them, so that they come from memory together.
const BATCH: usize = 32;

/// A bucket after a check.
struct CheckedBucket {
    verdict: Verdict,
    charged: bool,
    state: token_bucket::State,
    /// The spec in lowest terms that the state is counted in.
    spec: token_bucket::Spec,
}

impl Table {
    /// Charges a key if the cost fits.
    #[inline(always)]
    pub(crate) fn check(&self, spec: &Spec, key: Key, cost: Amount, now_us: u64) -> Verdict {
        self.check_found(self.lookup(key), spec, key, cost, now_us)
    }

    /// Charges one to each key if it fits; appends the verdicts.
    pub(crate) fn check_all(
        &self,
        spec: &Spec,
        mut keys: impl ExactSizeIterator<Item = Key>,
        now_us: u64,
        verdicts: &mut Vec<Verdict>,
    ) {
        verdicts.reserve(keys.len());
        while keys.len() > 0 {
            let some: ArrayVec<Key, BATCH> = keys.by_ref().take(BATCH).collect();
            let located: ArrayVec<_, BATCH> = some.iter().map(|key| self.locate(*key)).collect();
            let found = located.into_iter().zip(&some);
            let lookups: ArrayVec<_, BATCH> =
                found.map(|(located, key)| self.lookup_in(located, *key)).collect();
            for (key, lookup) in some.iter().zip(&lookups) {
                verdicts.push(self.check_found(*lookup, spec, *key, Amount::ONE, now_us));
            }
        }
    }

    #[inline(always)]
    fn check_found(
        &self,
        lookup: Lookup<'_>,
        spec: &Spec,
        key: Key,
        cost: Amount,
        now_us: u64,
    ) -> Verdict {
        match self.try_check_bucket(lookup, spec, cost, now_us) {
            Some((bucket, true)) => bucket.verdict,
            _ => self.check_level(spec, key, cost, now_us),
        }
    }

    /// Checks a key as a plan of one level.
    #[cold]
    fn check_level(&self, spec: &Spec, key: Key, cost: Amount, now_us: u64) -> Verdict {
        let mut plan = Plan::new(Mode::Charge);
        plan.now = Now { steady_us: now_us, unix_us: now_us };
        let level = Level::of_key(0, key, *spec);
        let level = Level { cost, enforcement: Enforcement::Reject, ..level };
        let (mut steps, mut replies) = ([Step::new(&level, Some(self))], PerLevel::new());
        plan.levels.push(level);
        decide(&plan, &mut steps, &mut replies);
        replies.first().map_or(Verdict::Allowed, |reply| reply.verdict)
    }

    /// Decides a plan of one level; `None` if that is no bucket in its slot, or if other threads were faster again and
    /// again.
    pub(super) fn decide_bucket<'t>(
        &'t self,
        plan: &Plan,
        level: &Level,
        mut lookup: Lookup<'t>,
    ) -> Option<Reply> {
        if plan.mode == Mode::Peek || level.is_given_back() {
            return None;
        }
        let now_us = plan.now.steady_us;
        for _ in 0..ATTEMPTS {
            let (bucket, is_done) =
                self.try_check_bucket(lookup, &level.spec, level.cost, now_us)?;
            if is_done {
                let CheckedBucket { verdict, charged, state, spec } = bucket;
                let reading = token_bucket::settled_reading(&state, &spec, now_us);
                let charged_at_us = if charged { state.at_us } else { 0 };
                return Some(Reply { verdict, charged, charged_at_us, reading });
            }
            lookup = self.lookup(level.key);
        }
        None
    }

    /// Charges a bucket if the cost fits; `None` if the key is no such bucket. The flag is false if another thread was
    /// faster, and then nothing is written.
    #[inline(always)]
    fn try_check_bucket(
        &self,
        Lookup { segment, version, hit }: Lookup<'_>,
        spec: &Spec,
        cost: Amount,
        now_us: u64,
    ) -> Option<(CheckedBucket, bool)> {
        // Read after the version: a journal that begins now changes the version first.
        let is_journaling = self.is_journaling();
        let hit = hit.filter(|hit| hit.state.is_bucket())?;
        let registered = self.specs.get(hit.state.spec_number())?;
        if !registered.is(spec) {
            return None;
        }
        let bucket = &registered.bucket;
        let mut state = bucket.unpack(hit.state.payload, hit.state.at_us());
        let verdict = token_bucket::take(&mut state, &bucket.spec, now_us, cost);
        let charged = verdict == Verdict::Allowed && !cost.is_zero();
        let after = if charged {
            let after = hit.state.charged(state.at_us, bucket.pack(&state)?)?;
            Some(after.with_dirty(is_journaling))
        } else {
            None
        };
        let is_done = segment.try_replace(version, hit, after);
        Some((CheckedBucket { verdict, charged, state, spec: bucket.spec }, is_done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            table.check_all(&bucket(), keys.into_iter(), now_us, &mut verdicts);
        }
        verdicts
    }

    #[test]
    fn a_batch_answers_as_single_checks_do() {
        let [batched, single] = [(); 2].map(|()| Table::standalone(KEYS as usize * 2));
        let check = |now_us, key| single.check(&bucket(), key, Amount::ONE, now_us);
        let singly: Vec<Verdict> = batches()
            .flat_map(|(now_us, keys)| keys.into_iter().map(move |key| check(now_us, key)))
            .collect();
        assert!(singly.iter().any(|verdict| *verdict != Verdict::Allowed));
        assert_eq!(in_batches(&batched), singly);
    }
}
