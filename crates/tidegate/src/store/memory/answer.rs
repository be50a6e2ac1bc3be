//! Deciding a plan: every level is charged, or none.
//!
//! First all keys are looked at without holding anything. What is refused so is answered at once, and
//! nothing is written. What fits slots is charged there, once the slots of those that have one are locked
//! and the segments of those that are new are held. What else is charged takes the segments as they were
//! seen; where somebody was faster, all is looked at again, and in the end, or where a key is kept in full
//! and its slot does not refuse by itself, the segments are held before they are looked at.

use arrayvec::ArrayVec;

use super::charge::{charge, draft, draft_new, lacks_pace, open};
use super::segment::{Found, Held, Segment};
use super::slot::Words;
use super::table::{Glance, Table};
use super::view;
use crate::algorithm::{Spec, Verdict};
use crate::plan::{LEVELS_MAX, Level, Mode, PerLevel, Plan};
use crate::store::Reply;

/// How often a plan is looked at before its segments are held.
pub(super) const GLANCES: usize = 8;

/// A level, and the table of its limit; `None` where there is none, and nothing will be kept.
pub(super) struct Step<'t> {
    level: &'t Level,
    table: Option<&'t Table>,
    glance: Option<Glance<'t>>,
}

impl<'t> Step<'t> {
    pub(super) fn new(level: &'t Level, table: Option<&'t Table>) -> Self {
        // A ceiling has nothing to hold a segment for.
        let table = table.filter(|_| !matches!(level.spec, Spec::Ceiling(_)));
        Self { level, table, glance: None }
    }

    fn found(&self) -> Option<Found<'t>> {
        self.glance.as_ref().and_then(|glance| glance.found)
    }

    /// Whether another level has its key in the same table.
    fn is_of_table_of(&self, other: &Step<'_>) -> bool {
        self.table.zip(other.table).is_some_and(|(one, other)| std::ptr::eq(one, other))
    }

    /// Whether another level has its key in the same slot, so that it is the same key.
    fn is_of_slot_of(&self, other: &Step<'_>) -> bool {
        let found = self.found().zip(other.found());
        found.is_some_and(|(one, other)| std::ptr::eq(one.cell.0, other.cell.0))
    }
}

/// Answers a plan, whose levels these are. The replies are written where they are needed, in the place of
/// what was there: they are too large to be moved.
pub(super) fn answer(plan: &Plan, steps: &mut [Step<'_>], replies: &mut PerLevel<Reply>) {
    replies.clear();
    if let [Step { level, table: Some(table), glance }] = steps {
        let seen = table.glance(level.key);
        if let Some(reply) = table.answer_bucket(plan, level, seen) {
            replies.push(reply);
            return;
        }
        *glance = Some(seen);
    } else {
        glance(steps);
    }
    let mut is_answered = false;
    for turn in 0..GLANCES {
        if turn > 0 {
            glance_again(steps);
        }
        match answer_seen(plan, steps, replies) {
            Glanced::Charged => return,
            Glanced::Answered => is_answered = true,
            Glanced::Changed => continue,
            Glanced::InFull => {}
        }
        break;
    }
    if !is_answered {
        hold(plan, steps, replies);
    }
    if replies.iter().any(|reply| reply.charged) {
        steps.iter().filter_map(|step| step.table).for_each(Table::grow);
    }
}

enum Glanced {
    /// By what was charged in its slots: no key is new.
    Charged,
    Answered,
    /// Somebody wrote meanwhile.
    Changed,
    /// A key is kept in full, and what its slot does not say is read only by whoever holds its segment.
    InFull,
}

/// Looks at the keys of a plan: at all of them first, so that they come from memory together.
#[inline(always)]
fn glance(steps: &mut [Step<'_>]) {
    for step in steps {
        step.glance = step.table.map(|table| table.glance(step.level.key));
    }
}

#[cold]
fn glance_again(steps: &mut [Step<'_>]) {
    glance(steps);
}

/// Answers a plan by what was seen of it.
fn answer_seen(plan: &Plan, steps: &[Step<'_>], replies: &mut PerLevel<Reply>) -> Glanced {
    if plan.mode == Mode::Charge
        && let Some(charged) = charge_slots(plan, steps, replies)
    {
        return charged;
    }
    let mut verdicts = PerLevel::new();
    for step in steps {
        match view::verdict(step.level, step.table, step.found(), plan.now) {
            Some(verdict) => verdicts.push(verdict),
            None => return Glanced::InFull,
        }
    }
    let commits = plan.commits(&verdicts);
    let writes = steps.iter().zip(&verdicts).any(|(step, verdict)| match verdict {
        Verdict::Allowed => commits && !step.level.cost.is_zero(),
        Verdict::Denied { .. } => lacks_pace(step.table, step.found(), step.level),
    });
    if writes {
        take(plan, steps, &verdicts, replies)
    } else {
        look(plan, steps, &verdicts, replies)
    }
}

/// Charges all levels, where each cost fits and takes no more than a slot; `None` where it takes a closer
/// look. Slots are locked and segments held without waiting; where that cannot be, nothing is written.
fn charge_slots(plan: &Plan, steps: &[Step<'_>], replies: &mut PerLevel<Reply>) -> Option<Glanced> {
    replies.clear();
    // What each slot says then.
    let mut drafts: ArrayVec<Words, LEVELS_MAX> = ArrayVec::new();
    let mut new = 0;
    for step in steps {
        let (table, now_us) = (step.table?, step.level.time_us(plan.now));
        let (words, reading) = match step.found() {
            Some(found) => draft(table, Some(found.words), step.level, now_us)?,
            None => {
                new += 1;
                draft_new(table, step.level, now_us)?
            }
        };
        let (verdict, charged_at_us) = (Verdict::Allowed, words.at_us());
        replies.push(Reply { verdict, charged: true, charged_at_us, reading });
        drafts.try_push(words.marked(table.is_tracked())).ok()?;
    }
    // To hold a segment changes its number, for other keys of the plan too; and who goes for the sake of a
    // new key must not be one of them.
    if new > 0 && any_two(steps, |step, other| step.is_of_table_of(other)) {
        return None;
    }
    // Room for all of them is made now: who has locked a slot waits for nothing, not even for memory.
    let mut holding = Holding(PerLevel::with_capacity(new));
    for (place, (glance, found)) in slots(steps).enumerate() {
        if !glance.segment.lock(glance.version, found) {
            slots(steps).take(place).for_each(|(_, found)| found.release());
            // Who asks for a key twice would find it locked again and again.
            let is_twice = any_two(steps, |step, other| step.is_of_slot_of(other));
            return if is_twice { None } else { Some(Glanced::Changed) };
        }
    }
    if new > 0 && !holding.add_new(steps) {
        slots(steps).for_each(|(_, found)| found.release());
        return Some(Glanced::Changed);
    }
    // Slots are let go of first. Who puts a key in may wait for one that another plan has locked, and that
    // plan for one of these.
    for (step, words) in steps.iter().zip(&drafts) {
        if let Some(Glance { segment, found: Some(found), .. }) = step.glance {
            segment.unlock(found, *words);
        }
    }
    if new > 0 {
        put_new(plan, steps, &drafts, &holding);
        return Some(Glanced::Answered);
    }
    Some(Glanced::Charged)
}

/// Puts in the keys of a plan that are not there, whose segments are held.
#[inline(never)]
fn put_new(plan: &Plan, steps: &[Step<'_>], drafts: &[Words], holding: &Holding<'_>) {
    let each = steps.iter().zip(drafts).filter(|(step, _)| step.found().is_none());
    for (Step { level, table, glance }, words) in each {
        let held = glance.as_ref().and_then(|glance| holding.find(glance.segment));
        debug_assert!(held.is_some(), "each was held before");
        if let (Some(table), Some(held)) = (table, held) {
            table.put_words(held, level.key, *words, level.time_us(plan.now));
        }
    }
}

/// The slots in which keys of a plan were seen.
#[inline(always)]
fn slots<'s, 't>(steps: &'s [Step<'t>]) -> impl Iterator<Item = (&'s Glance<'t>, Found<'t>)> {
    seen(steps).filter_map(|glance| Some((glance, glance.found?)))
}

/// Whether this is so of any two levels of a plan.
fn any_two(steps: &[Step<'_>], is_so: impl Fn(&Step<'_>, &Step<'_>) -> bool) -> bool {
    let mut behind = steps.iter().enumerate();
    behind.any(|(place, step)| steps[..place].iter().any(|before| is_so(before, step)))
}

/// The answer where nothing is written.
fn look(
    plan: &Plan,
    steps: &[Step<'_>],
    verdicts: &[Verdict],
    replies: &mut PerLevel<Reply>,
) -> Glanced {
    replies.clear();
    for (step, verdict) in steps.iter().zip(verdicts) {
        let Some(reading) = view::reading(step.level, step.table, step.found(), plan.now) else {
            return Glanced::InFull;
        };
        replies.push(Reply { verdict: *verdict, charged: false, charged_at_us: 0, reading });
    }
    // One key was read as it was at one instant; several must not have changed since.
    let alone = steps.len() == 1;
    let is_still = |glance: &Glance<'_>| {
        (alone || glance.is_as_seen()) && glance.segment.is_still(glance.version)
    };
    let all_are = steps.iter().filter_map(|step| step.glance.as_ref()).all(is_still);
    if all_are { Glanced::Answered } else { Glanced::Changed }
}

/// The answer where something is written, if nothing has changed since it was seen.
fn take<'s>(
    plan: &Plan,
    steps: &[Step<'s>],
    verdicts: &[Verdict],
    replies: &mut PerLevel<Reply>,
) -> Glanced {
    let Some(holding) = Holding::as_seen(steps) else { return Glanced::Changed };
    // Where two keys are in one segment, the first may move the second.
    let apart = holding.0.len() == seen(steps).count();
    act(plan, steps, verdicts, replies, |step: &Step<'s>, table: &'s Table| {
        let glance = step.glance.as_ref()?;
        let held = holding.find(glance.segment)?;
        Some((held, if apart { glance.found } else { table.find(held, step.level.key) }))
    });
    Glanced::Answered
}

/// Answers a plan while all its segments are held.
fn hold<'s>(plan: &Plan, steps: &[Step<'s>], replies: &mut PerLevel<Reply>) {
    let holding = Holding::of(steps);
    let find = |step: &Step<'s>, table: &'s Table| {
        let held = holding.find(table.segment(step.level.key)?)?;
        Some((held, table.find(held, step.level.key)))
    };
    let verdict = |step: &Step<'s>| {
        let found = step.table.and_then(|table| Some((table, find(step, table)?)));
        match found {
            Some((table, (held, found))) => {
                view::verdict_held(step.level, table, held, found, plan.now)
            }
            None => view::fresh_verdict(step.level, plan.now),
        }
    };
    let verdicts: PerLevel<Verdict> = steps.iter().map(verdict).collect();
    act(plan, steps, &verdicts, replies, find);
}

/// Charges what is to be charged; `find` finds the key of a level in a segment that is held.
fn act<'h, 's: 'h>(
    plan: &Plan,
    steps: &[Step<'s>],
    verdicts: &[Verdict],
    replies: &mut PerLevel<Reply>,
    find: impl Fn(&Step<'s>, &'s Table) -> Option<(&'h Held<'s>, Option<Found<'s>>)>,
) {
    let commits = plan.commits(verdicts);
    replies.clear();
    for (step, verdict) in steps.iter().zip(verdicts) {
        let (level, verdict, now_us) = (step.level, *verdict, step.level.time_us(plan.now));
        let place = step.table.and_then(|table| Some((table, find(step, table)?)));
        let charged = commits && verdict == Verdict::Allowed && !level.cost.is_zero();
        let (charged_at_us, reading) = match (place, charged) {
            (Some((table, (held, found))), true) => {
                charge(table, held, found, level, now_us, plan.holder)
            }
            (Some((table, (held, found))), false) => {
                if verdict != Verdict::Allowed {
                    open(table, held, found, level, now_us);
                }
                (0, view::reading_held(level, table, held, found, plan.now))
            }
            (None, _) => (if charged { now_us } else { 0 }, view::fresh_reading(level, plan.now)),
        };
        replies.push(Reply { verdict, charged, charged_at_us, reading });
    }
}

/// What was seen of the keys of a plan.
fn seen<'s, 't>(steps: &'s [Step<'t>]) -> impl Iterator<Item = &'s Glance<'t>> {
    steps.iter().filter_map(|step| step.glance.as_ref())
}

/// The segments of a plan that are held, each once, in the order of its levels or of their addresses.
struct Holding<'t>(PerLevel<Held<'t>>);

impl<'t> Holding<'t> {
    /// Holds the segments of keys that are not there, if nothing has changed since; says whether it does.
    #[inline(never)]
    fn add_new(&mut self, steps: &[Step<'t>]) -> bool {
        let mut new = seen(steps).filter(|glance| glance.found.is_none());
        new.all(|glance| {
            glance.segment.hold_from(glance.version).map(|held| self.0.push(held)).is_some()
        })
    }

    /// Holds all, if nothing has changed since it was seen.
    #[inline]
    fn as_seen(steps: &[Step<'t>]) -> Option<Self> {
        let mut holding = Self(PerLevel::new());
        for glance in seen(steps) {
            if holding.find(glance.segment).is_none() {
                holding.0.push(glance.segment.hold_from(glance.version)?);
            }
        }
        seen(steps).all(Glance::is_as_seen).then_some(holding)
    }

    /// Holds all, in the order of their addresses, so that no two plans wait for each other.
    fn of(steps: &[Step<'t>]) -> Self {
        loop {
            let segment = |step: &Step<'t>| step.table?.segment(step.level.key);
            let mut segments: PerLevel<&'t Segment> = steps.iter().filter_map(segment).collect();
            segments.sort_unstable_by_key(|segment| std::ptr::from_ref(*segment).addr());
            let mut holding = Self(PerLevel::new());
            for segment in segments {
                if holding.find(segment).is_none() {
                    holding.0.push(segment.hold());
                }
            }
            // A segment may have been split before it was held.
            let is_held = |step: &Step<'_>| {
                step.table.is_none_or(|table| {
                    holding.0.iter().any(|held| table.is_held(held, step.level.key))
                })
            };
            if steps.iter().all(is_held) {
                return holding;
            }
        }
    }

    fn find(&self, segment: &Segment) -> Option<&Held<'t>> {
        self.0.iter().find(|held| std::ptr::eq(&raw const ***held, segment))
    }
}
