//! One store, one clock, and the helpers of the behaviours.

use std::sync::Arc;

use tidegate::clock::{Now, micros};
use tidegate::engine::Key;
use tidegate::engine::algorithm::{
    Reading, Spec, Verdict, calendar, concurrency, fixed_window, quota, sliding_counter,
    sliding_window, token_bucket, total,
};
use tidegate::engine::plan::{Enforcement, Level, Mode, PerLevel, Plan};
use tidegate::engine::policy::OnStoreFailure;
use tidegate::engine::store::{Amendment, Answer, Change, Reply, Store};
use tidegate::engine::units::{Amount, SECOND_US};

use super::{Shown, StoreUnderTest};

/// The capacity of every spec of [`World::specs`].
pub(super) const CAPACITY: Amount = units(3);
/// The longest time until one of them owes nothing.
pub(super) const FORGOTTEN_US: u64 = 20 * SECOND_US;
const WINDOW_US: u64 = 10 * SECOND_US;

/// The holder that asks for a place when all places are taken.
const NOBODY: u64 = 99;

/// Limits that are announced to the store.
const LIMITS: u16 = 64;

/// A subject, and keys that no other behaviour uses even on a store that they share.
pub(super) struct World<S> {
    subject: S,
    salt: u64,
}

impl<S: StoreUnderTest> World<S> {
    pub(super) fn new(subject: S, behaviour: &str) -> Self {
        let world = Self { subject, salt: hash(behaviour) };
        let families: Vec<u64> = (0..LIMITS).map(|limit| world.family(limit)).collect();
        world.subject.store().announce(&families);
        world
    }

    fn family(&self, limit: u16) -> u64 {
        self.salt.wrapping_add(u64::from(limit).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(super) fn now(&self) -> Now {
        self.subject.now()
    }

    pub(super) async fn advance(&self, us: u64) {
        self.subject.advance(us).await;
    }

    /// A level that refuses and costs 1, with a key of its own.
    pub(super) fn level(&self, limit: u16, spec: Spec) -> Level {
        let family = self.family(limit);
        Level {
            limit,
            family,
            key: Key(u128::from(family) << 64 | u128::from(self.salt)),
            spec,
            cost: Amount::ONE,
            refundable: false,
            reserved: false,
            leased: false,
            enforcement: Enforcement::Reject,
            on_store_failure: OnStoreFailure::Local,
        }
    }

    /// One level for each algorithm that keeps a state, each holding [`CAPACITY`].
    pub(super) fn levels(&self) -> Vec<Level> {
        let specs = self.specs();
        (0..).zip(specs).map(|(limit, spec)| self.level(limit, spec)).collect()
    }

    /// Those that empty themselves in time.
    pub(super) fn passing_levels(&self) -> Vec<Level> {
        self.levels().into_iter().filter(|level| !matches!(level.spec, Spec::Total(_))).collect()
    }

    /// Those that take refunds; a place is released instead.
    pub(super) fn refundable_levels(&self) -> Vec<Level> {
        let place = |level: &Level| matches!(level.spec, Spec::Concurrency(_));
        self.levels().into_iter().filter(|level| !place(level)).collect()
    }

    /// One spec of each algorithm that keeps a state.
    pub(super) fn specs(&self) -> [Spec; 7] {
        let (limit, window_us) = (CAPACITY, WINDOW_US);
        let unix_us = self.now().unix_us;
        let (start_us, end_us) = (unix_us - SECOND_US, unix_us + 9 * SECOND_US);
        let (unit, next_end_us) = (calendar::Unit::Day, end_us + 10 * SECOND_US);
        let previous_us = start_us - 10 * SECOND_US;
        [
            bucket(3, WINDOW_US),
            Spec::SlidingWindow(sliding_window::Spec { limit, window_us }),
            Spec::SlidingCounter(sliding_counter::Spec { limit, window_us }),
            Spec::FixedWindow(fixed_window::Spec { limit, window_us }),
            Spec::Quota(quota::Spec { limit, unit, previous_us, start_us, end_us, next_end_us }),
            places(3),
            Spec::Total(total::Spec { limit }),
        ]
    }

    /// The level with the numbers of this moment, at the start of a window aligned to the epoch: a
    /// behaviour that takes a part of a window then stays within it.
    pub(super) async fn at_window_start(&self, level: &Level) -> Level {
        let gone_us = level.time_us(self.now()) % WINDOW_US;
        self.advance(WINDOW_US - gone_us).await;
        let same =
            |spec: &Spec| std::mem::discriminant(spec) == std::mem::discriminant(&level.spec);
        let spec = self.specs().into_iter().find(same).unwrap_or(level.spec);
        Level { spec, ..*level }
    }

    pub(super) async fn charge(&self, levels: &[Level], holder: u64) -> Result<Answer, String> {
        let answer = self.decide(Mode::Charge, self.now(), levels, holder).await?;
        equal("the store's time", answer.now, self.now())?;
        Ok(answer)
    }

    pub(super) async fn decide(
        &self,
        mode: Mode,
        now: Now,
        levels: &[Level],
        holder: u64,
    ) -> Result<Answer, String> {
        let levels: PerLevel<Level> = levels.iter().copied().collect();
        let names = levels.iter().map(name).collect();
        let plan = Plan { mode, now, holder, levels, names };
        let answer = self.subject.store().decide(&plan).await.map_err(|error| error.to_string())?;
        equal("replies", answer.replies.len(), plan.levels.len())?;
        Ok(answer)
    }

    /// Charges one level.
    pub(super) async fn take(&self, level: &Level) -> Result<Reply, String> {
        self.take_as(level, 1).await
    }

    pub(super) async fn take_as(&self, level: &Level, holder: u64) -> Result<Reply, String> {
        Ok(self.charge(std::slice::from_ref(level), holder).await?.replies[0])
    }

    /// Charges one level that must have room.
    pub(super) async fn admit(&self, level: &Level) -> Shown {
        self.admit_as(level, 1).await
    }

    pub(super) async fn admit_as(&self, level: &Level, holder: u64) -> Shown {
        let reply = self.take_as(level, holder).await?;
        equal(&format!("verdict of `{}`", level.spec), reply.verdict, Verdict::Allowed)?;
        equal(&format!("charged by `{}`", level.spec), reply.charged, true)
    }

    /// Fills a level to its capacity.
    pub(super) async fn fill(&self, level: &Level) -> Shown {
        self.admit(&Level { cost: level.spec.capacity(), ..*level }).await
    }

    /// Charges one level that must refuse; how long to wait.
    pub(super) async fn refused(&self, level: &Level) -> Result<Option<u64>, String> {
        let reply = self.take_as(level, NOBODY).await?;
        equal(&format!("charged by `{}`", level.spec), reply.charged, false)?;
        match reply.verdict {
            Verdict::Denied { retry_after } => Ok(retry_after.map(micros)),
            Verdict::Allowed => Err(format!("`{}` admitted {}", level.spec, level.cost)),
        }
    }

    pub(super) async fn peek(&self, level: &Level) -> Result<Reply, String> {
        let levels = std::slice::from_ref(level);
        Ok(self.decide(Mode::Peek, self.now(), levels, 0).await?.replies[0])
    }

    pub(super) async fn reading(&self, level: &Level) -> Result<Reading, String> {
        Ok(self.peek(level).await?.reading)
    }

    /// Asserts the spendable amount.
    pub(super) async fn available(&self, level: &Level, expected: Amount) -> Shown {
        let found = self.reading(level).await?.available;
        equal(&format!("available of `{}`", level.spec), found, expected)
    }

    pub(super) async fn amend(&self, amendments: &[Amendment]) -> Result<Vec<bool>, String> {
        let amended = self.subject.store().amend(self.now(), amendments).await;
        let amended = amended.map_err(|error| error.to_string())?;
        equal("results of corrections", amended.len(), amendments.len())?;
        Ok(amended.to_vec())
    }

    /// Corrects what was charged at an instant of the clock that the level runs on.
    pub(super) async fn correct(
        &self,
        level: &Level,
        charged_at: Now,
        change: Change,
    ) -> Result<bool, String> {
        let charged_at_us = level.time_us(charged_at);
        let amendment =
            Amendment { level: *level, name: Some(name(level)), charged_at_us, holder: 1, change };
        Ok(self.amend(&[amendment]).await?[0])
    }

    pub(super) async fn hold(
        &self,
        level: &Level,
        holder: u64,
        change: Change,
    ) -> Result<bool, String> {
        let amendment =
            Amendment { level: *level, name: Some(name(level)), charged_at_us: 0, holder, change };
        Ok(self.amend(&[amendment]).await?[0])
    }
}

/// The name of a level's key.
pub(super) fn name(level: &Level) -> Arc<str> {
    format!("behaviours:{}:{}", level.limit, level.key).into()
}

pub(super) const fn units(units: u64) -> Amount {
    match Amount::from_units(units) {
        Some(amount) => amount,
        None => Amount::MAX,
    }
}

/// A bucket of 3 that refills `count` in a period.
pub(super) const fn bucket(count: u64, period_us: u64) -> Spec {
    Spec::TokenBucket(token_bucket::Spec { count: units(count), period_us, burst: CAPACITY })
}

pub(super) const fn places(count: u64) -> Spec {
    Spec::Concurrency(concurrency::Spec { places: units(count), lease_us: WINDOW_US })
}

#[allow(clippy::needless_pass_by_value, reason = "callers read better without references")]
pub(super) fn equal<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Shown {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: found {found:?}, expected {expected:?}"))
}

/// FNV-1a: keys need to differ, not to be secret.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
