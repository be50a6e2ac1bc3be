//! One level of a plan and its key: whether the cost fits, what the level shows, and how it is charged.

use super::packed_state::PackedState;
use super::record::Record;
use super::segment::{LookupHit, SegmentGuard};
use super::spec_registry::{RegisteredSpec, fits_slot};
use super::table::Table;
use crate::algorithm::{self, Reading, Spec, Verdict, ceiling, same_pace, token_bucket};
use crate::clock::Now;
use crate::plan::Level;
use crate::units::Amount;

/// Whether the cost of a level fits, and what the level shows before it is charged.
pub(super) type View = (Verdict, Reading);

/// Views a level by what its slot says; `None` if only the record in the overflow tells.
pub(super) fn view(
    level: &Level,
    table: Option<&Table>,
    hit: Option<LookupHit<'_>>,
    now: Now,
) -> Option<View> {
    let Some((table, LookupHit { state, .. })) = table.zip(hit) else {
        return Some(view_new(level, now));
    };
    let (registered, now_us) = (table.specs.get(state.spec_number())?, level.time_us(now));
    if state.overflow_index().is_some() {
        return view_refusal(level, registered, state, now_us);
    }
    let state = state.state(registered)?;
    let verdict = algorithm::evaluate(&state, &level.spec, now_us, level.cost);
    Some((verdict, algorithm::reading(&state, &level.spec, now_us)))
}

/// Views a level whose segment is locked.
pub(super) fn view_locked(
    level: &Level,
    table: &Table,
    guard: &SegmentGuard<'_>,
    hit: Option<LookupHit<'_>>,
    now: Now,
) -> View {
    let now_us = level.time_us(now);
    let read = |record: &Record| {
        let ledger = &record.ledger;
        (ledger.evaluate(&level.spec, now_us, level.cost), ledger.reading(&level.spec, now_us))
    };
    view(level, Some(table), hit, now)
        .or_else(|| table.with_record(guard, hit?.state, read))
        .unwrap_or_else(|| view_new(level, now))
}

/// Views a level whose key was never charged.
pub(super) fn view_new(level: &Level, now: Now) -> View {
    let now_us = level.time_us(now);
    match (&level.spec, level.spec.new_state()) {
        (Spec::Ceiling(spec), _) => {
            (ceiling::evaluate(spec, level.cost), ceiling::reading(spec, level.cost))
        }
        (spec, Some(state)) => (
            algorithm::evaluate(&state, spec, now_us, level.cost),
            algorithm::reading(&state, spec, now_us),
        ),
        (spec, None) => (Verdict::Allowed, Reading { available: spec.capacity(), reset_us: None }),
    }
}

/// The refusal of a cost of one by a limit that is used up; `None` if the slot does not tell.
fn view_refusal(
    level: &Level,
    registered: &RegisteredSpec,
    state: PackedState,
    now_us: u64,
) -> Option<View> {
    let (until_us, expires_us) = state.full_until_us()?;
    if level.cost != Amount::ONE || !registered.is(&level.spec) {
        return None;
    }
    let wait_us = until_us.checked_sub(now_us).filter(|us| *us > 0)?;
    let reading = Reading { available: Amount::ZERO, reset_us: Some(expires_us - now_us) };
    Some((Verdict::denied_for_us(wait_us), reading))
}

/// The state of a slot after a charge, and what the level shows then; `None` if the cost does not fit, or the state
/// does not fit a slot. A new key has no state before; then its spec must be registered.
#[inline(always)]
pub(super) fn preview_charge(
    table: &Table,
    before: Option<PackedState>,
    level: &Level,
    now_us: u64,
) -> Option<(PackedState, Reading)> {
    if level.is_given_back() || level.cost.is_zero() {
        return None;
    }
    let (number, registered) = match before {
        Some(before) => (before.spec_number(), table.specs.get(before.spec_number())?),
        None => table.specs.find(&level.spec).filter(|_| fits_slot(&level.spec))?,
    };
    if !registered.is(&level.spec) {
        return None;
    }
    if matches!(level.spec, Spec::TokenBucket(_)) && before.is_none_or(PackedState::is_bucket) {
        let before = before.unwrap_or_else(|| PackedState::full_bucket(number, now_us));
        let bucket = &registered.bucket;
        let mut state = bucket.unpack(before.payload, before.at_us());
        let verdict = token_bucket::take(&mut state, &bucket.spec, now_us, level.cost);
        let after = before.charged(state.at_us, bucket.pack(&state)?)?;
        let reading = token_bucket::settled_reading(&state, &bucket.spec, now_us);
        return (verdict == Verdict::Allowed).then_some((after, reading));
    }
    let spec = &level.spec;
    let mut state = match before {
        Some(before) => before.state(registered)?,
        None => spec.new_state()?,
    };
    let (verdict, reading) = algorithm::take(&mut state, spec, now_us, level.cost);
    let charged_us = before.map_or(now_us, |before| before.at_us().max(now_us));
    let after = PackedState::pack(&state, spec, number, registered, charged_us)?;
    (verdict == Verdict::Allowed).then_some((after, reading))
}

/// Charges a level whose segment is locked; returns when, which is never before an earlier charge of the same key,
/// and what the level shows then.
pub(super) fn charge(
    table: &Table,
    guard: &SegmentGuard<'_>,
    hit: Option<LookupHit<'_>>,
    level: &Level,
    now_us: u64,
    holder: u64,
) -> (u64, Reading) {
    let charge = |record: &mut Record| record.charge(level, now_us, holder);
    change_or_insert(table, guard, hit, level, now_us, charge)
        .unwrap_or_else(|| (now_us, view_new(level, Now { steady_us: now_us, unix_us: now_us }).1))
}

/// Charges an amount whether it fits or not; false if there is nothing to charge.
pub(super) fn debit(
    table: &Table,
    guard: &SegmentGuard<'_>,
    hit: Option<LookupHit<'_>>,
    level: &Level,
    now_us: u64,
    amount: Amount,
) -> bool {
    if matches!(level.spec, Spec::Concurrency(_)) || amount.is_zero() {
        return false;
    }
    let debit = |record: &mut Record| record.debit(level, now_us, amount);
    change_or_insert(table, guard, hit, level, now_us, debit).is_some()
}

/// Opens an account at the pace of a level that was refused. Else the state, which was charged at another pace, could
/// expire before the caller's wait is over.
pub(super) fn open_account(
    table: &Table,
    guard: &SegmentGuard<'_>,
    hit: Option<LookupHit<'_>>,
    level: &Level,
    now_us: u64,
) {
    let Some(hit) = hit else { return };
    let has_pace = match hit.state.overflow_index() {
        None => !has_other_pace(Some(table), Some(hit), level),
        Some(index) => guard
            .with_overflow(index, |record| record.ledger.has_pace_of(&level.spec))
            .unwrap_or(true),
    };
    if !has_pace {
        table.change_record(guard, hit, |record| record.ledger.open(&level.spec, now_us));
    }
}

/// True if the slot was charged at another pace than that of the level.
pub(super) fn has_other_pace(
    table: Option<&Table>,
    hit: Option<LookupHit<'_>>,
    level: &Level,
) -> bool {
    let registered =
        table.zip(hit).and_then(|(table, hit)| table.specs.get(hit.state.spec_number()));
    registered.is_some_and(|registered| !same_pace(&registered.spec, &level.spec))
}

/// Changes the record of a key, which is inserted if it is new; `None` if the level stores nothing.
fn change_or_insert<T>(
    table: &Table,
    guard: &SegmentGuard<'_>,
    hit: Option<LookupHit<'_>>,
    level: &Level,
    now_us: u64,
    change: impl FnOnce(&mut Record) -> T,
) -> Option<T> {
    match hit {
        Some(hit) => table.change_record(guard, hit, change),
        None => {
            let mut record = Record::new(level, now_us)?;
            let changed = change(&mut record);
            table.insert_record(guard, level.key, record, now_us);
            Some(changed)
        }
    }
}
