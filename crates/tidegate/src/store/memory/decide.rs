//! Deciding a plan: every level is charged, or none.
//!
//! 1. Look up all keys, without a lock.
//! 2. If every cost fits and every new state fits a slot: lock the slots of known keys and the segments of new keys,
//!    without waiting, and write.
//! 3. Else, if nothing is to be written (a refusal, a peek): validate the versions, and answer.
//! 4. Else, or if other threads were faster too often, or if a record stands in the overflow: lock all segments, in
//!    the order of their addresses, and decide again.

use arrayvec::ArrayVec;

use super::level::{self, preview_charge, view};
use super::packed_state::PackedState;
use super::segment::{LookupHit, Segment, SegmentGuard};
use super::table::{Lookup, Table};
use crate::algorithm::{Spec, Verdict};
use crate::plan::{LEVELS_MAX, Level, Mode, PerLevel, Plan};
use crate::store::Reply;

/// How often a plan is tried without locking its segments.
pub(super) const ATTEMPTS: usize = 8;

/// A level on its way through the store.
pub(super) struct Step<'t> {
    level: &'t Level,
    /// The table of the level's limit; `None` if there is none and nothing will be stored.
    table: Option<&'t Table>,
    lookup: Option<Lookup<'t>>,
}

impl<'t> Step<'t> {
    pub(super) fn new(level: &'t Level, table: Option<&'t Table>) -> Self {
        // A ceiling stores nothing.
        let table = table.filter(|_| !matches!(level.spec, Spec::Ceiling(_)));
        Self { level, table, lookup: None }
    }

    fn hit(&self) -> Option<LookupHit<'t>> {
        self.lookup.as_ref().and_then(|lookup| lookup.hit)
    }

    fn shares_table_with(&self, other: &Step<'_>) -> bool {
        self.table.zip(other.table).is_some_and(|(one, other)| std::ptr::eq(one, other))
    }

    /// True if both levels have the same key.
    fn shares_slot_with(&self, other: &Step<'_>) -> bool {
        let hits = self.hit().zip(other.hit());
        hits.is_some_and(|(one, other)| std::ptr::eq(one.slot.0, other.slot.0))
    }
}

/// The result of an attempt to decide without locking the segments.
enum Attempt {
    Decided,
    /// Another thread was faster.
    Conflict,
    /// Only the holder of the segments can decide.
    NeedsLock,
}

/// Decides a plan, whose levels these are. The replies are written in place: they are too large to be moved.
pub(super) fn decide(plan: &Plan, steps: &mut [Step<'_>], replies: &mut PerLevel<Reply>) {
    replies.clear();
    if let [Step { level, table: Some(table), lookup }] = steps {
        let found = table.lookup(level.key);
        if let Some(reply) = table.decide_bucket(plan, level, found) {
            replies.push(reply);
            return;
        }
        *lookup = Some(found);
    } else {
        look_up(steps);
    }
    let mut attempt = try_decide(plan, steps, replies);
    for _ in 1..ATTEMPTS {
        if !matches!(attempt, Attempt::Conflict) {
            break;
        }
        look_up(steps);
        attempt = try_decide(plan, steps, replies);
    }
    if !matches!(attempt, Attempt::Decided) {
        decide_locked(plan, steps, replies);
    }
    if replies.iter().any(|reply| reply.charged) {
        steps.iter().filter_map(|step| step.table).for_each(|table| table.grow(plan.now));
    }
}

/// Looks up all keys first, so that they come from memory together.
#[inline(always)]
fn look_up(steps: &mut [Step<'_>]) {
    for step in steps {
        step.lookup = step.table.map(|table| table.lookup(step.level.key));
    }
}

fn try_decide(plan: &Plan, steps: &[Step<'_>], replies: &mut PerLevel<Reply>) -> Attempt {
    if plan.mode == Mode::Charge
        && let Some(attempt) = try_charge(plan, steps, replies)
    {
        return attempt;
    }
    let mut verdicts = PerLevel::new();
    replies.clear();
    for step in steps {
        let Some((verdict, reading)) = view(step.level, step.table, step.hit(), plan.now) else {
            return Attempt::NeedsLock;
        };
        verdicts.push(verdict);
        replies.push(Reply { verdict, charged: false, charged_at_us: 0, reading });
    }
    let commits = plan.commits(&verdicts);
    let writes = steps.iter().zip(&verdicts).any(|(step, verdict)| match verdict {
        Verdict::Allowed => commits && !step.level.cost.is_zero(),
        Verdict::Denied { .. } => level::has_other_pace(step.table, step.hit(), step.level),
    });
    if writes {
        return Attempt::NeedsLock;
    }
    // One key was read at one instant. Several keys must not have changed since.
    let is_valid = |lookup: &Lookup<'_>| {
        (steps.len() == 1 || lookup.is_current()) && lookup.segment.is_unchanged(lookup.version)
    };
    if lookups(steps).all(is_valid) { Attempt::Decided } else { Attempt::Conflict }
}

/// Charges all levels in their slots; `None` if a cost does not fit, or a state needs more than a slot. Never waits: if
/// a lock is not free, nothing is written.
fn try_charge(plan: &Plan, steps: &[Step<'_>], replies: &mut PerLevel<Reply>) -> Option<Attempt> {
    replies.clear();
    let mut states: ArrayVec<PackedState, LEVELS_MAX> = ArrayVec::new();
    for step in steps {
        let (table, now_us) = (step.table?, step.level.time_us(plan.now));
        let before = step.hit().map(|hit| hit.state);
        let (state, reading) = preview_charge(table, before, step.level, now_us)?;
        let (verdict, charged_at_us) = (Verdict::Allowed, state.at_us());
        replies.push(Reply { verdict, charged: true, charged_at_us, reading });
        states.try_push(state.with_dirty(table.is_journaling())).ok()?;
    }
    let new = steps.iter().filter(|step| step.hit().is_none()).count();
    // To lock a segment changes its version, also for the other keys of the plan; and an insertion must not evict one
    // of them.
    if new > 0 && any_two(steps, |step, other| step.shares_table_with(other)) {
        return None;
    }
    // Allocated now: the holder of a slot lock waits for nothing, not even for memory.
    let mut guards = SegmentGuards(PerLevel::with_capacity(new));
    for (locked, (lookup, hit)) in hits(steps).enumerate() {
        if !lookup.segment.try_lock_slot(lookup.version, hit) {
            hits(steps).take(locked).for_each(|(_, hit)| hit.unlock_unchanged());
            // A key that the plan has twice would be found locked again and again.
            let has_key_twice = any_two(steps, |step, other| step.shares_slot_with(other));
            return if has_key_twice { None } else { Some(Attempt::Conflict) };
        }
    }
    if new > 0 && !guards.try_lock_new(steps) {
        hits(steps).for_each(|(_, hit)| hit.unlock_unchanged());
        return Some(Attempt::Conflict);
    }
    // Slots are unlocked before keys are inserted. An insertion may wait for a slot that another plan has locked, and
    // that plan for one of these.
    for (step, state) in steps.iter().zip(&states) {
        if let Some(Lookup { segment, hit: Some(hit), .. }) = step.lookup {
            segment.unlock_slot(hit, *state);
        }
    }
    if new > 0 {
        insert_new(plan, steps, &states, &guards);
    }
    Some(Attempt::Decided)
}

/// Inserts the new keys of a plan, whose segments are locked.
#[inline(never)]
fn insert_new(plan: &Plan, steps: &[Step<'_>], states: &[PackedState], guards: &SegmentGuards<'_>) {
    let new = steps.iter().zip(states).filter(|(step, _)| step.hit().is_none());
    for (Step { level, table, lookup }, state) in new {
        let guard = lookup.as_ref().and_then(|lookup| guards.find(lookup.segment));
        debug_assert!(guard.is_some(), "each was locked before");
        if let (Some(table), Some(guard)) = (table, guard) {
            table.insert(guard, level.key, *state, level.time_us(plan.now));
        }
    }
}

/// Decides a plan while all its segments are locked.
fn decide_locked<'t>(plan: &Plan, steps: &[Step<'t>], replies: &mut PerLevel<Reply>) {
    let guards = SegmentGuards::lock_all(steps);
    let guard_of = |step: &Step<'t>| {
        let table = step.table?;
        Some((table, guards.find(table.segment(step.level.key)?)?))
    };
    let view_of = |step: &Step<'t>| match guard_of(step) {
        Some((table, guard)) => {
            let hit = table.find(guard, step.level.key);
            level::view_locked(step.level, table, guard, hit, plan.now)
        }
        None => level::view_new(step.level, plan.now),
    };
    let verdicts: PerLevel<Verdict> = steps.iter().map(|step| view_of(step).0).collect();
    let commits = plan.commits(&verdicts);
    replies.clear();
    for (step, verdict) in steps.iter().zip(verdicts) {
        let (level, now_us) = (step.level, step.level.time_us(plan.now));
        let charged = commits && verdict == Verdict::Allowed && !level.cost.is_zero();
        // Found again for each level: the insertion of another key may have moved it.
        let found =
            guard_of(step).map(|(table, guard)| (table, guard, table.find(guard, level.key)));
        let (charged_at_us, reading) = match found {
            Some((table, guard, hit)) if charged => {
                level::charge(table, guard, hit, level, now_us, plan.holder)
            }
            Some((table, guard, hit)) if verdict != Verdict::Allowed => {
                level::open_account(table, guard, hit, level, now_us);
                (0, level::view_locked(level, table, guard, hit, plan.now).1)
            }
            _ => (if charged { now_us } else { 0 }, view_of(step).1),
        };
        replies.push(Reply { verdict, charged, charged_at_us, reading });
    }
}

fn lookups<'s, 't>(steps: &'s [Step<'t>]) -> impl Iterator<Item = &'s Lookup<'t>> {
    steps.iter().filter_map(|step| step.lookup.as_ref())
}

#[inline(always)]
fn hits<'s, 't>(steps: &'s [Step<'t>]) -> impl Iterator<Item = (&'s Lookup<'t>, LookupHit<'t>)> {
    lookups(steps).filter_map(|lookup| Some((lookup, lookup.hit?)))
}

/// True if any two levels of a plan have this in common.
fn any_two(steps: &[Step<'_>], share: impl Fn(&Step<'_>, &Step<'_>) -> bool) -> bool {
    let mut later = steps.iter().enumerate();
    later.any(|(index, step)| steps[..index].iter().any(|earlier| share(earlier, step)))
}

/// The locks of a plan, one for each segment.
struct SegmentGuards<'t>(PerLevel<SegmentGuard<'t>>);

impl<'t> SegmentGuards<'t> {
    /// Locks the segments of new keys, without waiting; false if one has changed since the lookup.
    #[inline(never)]
    fn try_lock_new(&mut self, steps: &[Step<'t>]) -> bool {
        let mut new = lookups(steps).filter(|lookup| lookup.hit.is_none());
        new.all(|lookup| {
            let guard = lookup.segment.try_lock_from(lookup.version);
            guard.map(|guard| self.0.push(guard)).is_some()
        })
    }

    /// Locks the segments of all keys, in the order of their addresses, so that no two plans wait for each other.
    fn lock_all(steps: &[Step<'t>]) -> Self {
        loop {
            let segment = |step: &Step<'t>| step.table?.segment(step.level.key);
            let mut segments: PerLevel<&'t Segment> = steps.iter().filter_map(segment).collect();
            segments.sort_unstable_by_key(|segment| std::ptr::from_ref(*segment).addr());
            let mut guards = Self(PerLevel::new());
            for segment in segments {
                if guards.find(segment).is_none() {
                    guards.0.push(segment.lock());
                }
            }
            // A segment may have been split before it was locked.
            let is_locked = |step: &Step<'_>| {
                step.table.is_none_or(|table| {
                    guards.0.iter().any(|guard| table.is_guard_of(guard, step.level.key))
                })
            };
            if steps.iter().all(is_locked) {
                return guards;
            }
        }
    }

    fn find(&self, segment: &Segment) -> Option<&SegmentGuard<'t>> {
        self.0.iter().find(|guard| guard.is_of(segment))
    }
}
