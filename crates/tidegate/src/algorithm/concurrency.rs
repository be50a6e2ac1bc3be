//! A number of places that are held at once. A holder renews within its lease or loses its place, so that a crashed
//! holder does not keep it for ever.

use serde::{Deserialize, Serialize};

use super::{
    Amount, DENIED_FOR_GOOD, Reading, Verdict, as_micros, denied_until, fits, rest, saturate,
};

/// How many places there are, and how long a holder keeps one without renewing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The places.
    #[serde(with = "as_micros")]
    pub places: Amount,
    /// How long a holder may stay silent.
    pub lease_us: u64,
}

/// The holders of places, in the order in which their leases end.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "Vec<Holder>", into = "Vec<Holder>")]
pub struct State {
    holders: Vec<Holder>,
}

/// A holder of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The name by which it renews and releases, unique among the holders of one key.
    pub id: u64,
    /// How many places it holds.
    pub cost_micros: u64,
    /// The instant at which it has lost them.
    pub expires_us: u64,
}

impl State {
    /// The holders, the first to go first; some leases may have run out.
    #[must_use]
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }

    fn insert(&mut self, holder: Holder) {
        let index = self.holders.partition_point(|other| other.expires_us <= holder.expires_us);
        self.holders.insert(index, holder);
    }

    fn alive(&self, now_us: u64) -> &[Holder] {
        let gone = self.holders.partition_point(|holder| holder.expires_us <= now_us);
        &self.holders[gone..]
    }
}

impl From<Vec<Holder>> for State {
    /// Sorts the holders, whatever order they were written in.
    fn from(mut holders: Vec<Holder>) -> Self {
        holders.sort_by_key(|holder| holder.expires_us);
        Self { holders }
    }
}

impl From<State> for Vec<Holder> {
    fn from(state: State) -> Self {
        state.holders
    }
}

/// Are there places for this cost now, and if not, when will there be if no holder renews?
#[must_use]
pub fn evaluate(state: &State, spec: &Spec, now_us: u64, cost: Amount) -> Verdict {
    let alive = state.alive(now_us);
    let mut held = held(alive);
    if fits(spec.places, saturate(held), cost) {
        return Verdict::Allowed;
    }
    if cost > spec.places {
        return DENIED_FOR_GOOD;
    }
    let mut free_at_us = now_us;
    for holder in alive {
        held -= u128::from(holder.cost_micros);
        free_at_us = holder.expires_us;
        if fits(spec.places, saturate(held), cost) {
            break;
        }
    }
    denied_until(free_at_us, now_us)
}

/// Takes the places, whether they are free or not, and removes the holders whose leases have ended.
pub fn hold(state: &mut State, spec: &Spec, now_us: u64, id: u64, cost: Amount) {
    if cost.is_zero() {
        return;
    }
    state.holders.retain(|holder| holder.expires_us > now_us);
    let expires_us = now_us.saturating_add(spec.lease_us);
    state.insert(Holder { id, cost_micros: cost.micros(), expires_us });
}

/// Gives the holder's places back; false if it holds none.
pub fn release(state: &mut State, id: u64) -> bool {
    let before = state.holders.len();
    state.holders.retain(|holder| holder.id != id);
    state.holders.len() < before
}

/// Starts the holder's lease anew; false if its place has been lost.
pub fn renew(state: &mut State, spec: &Spec, now_us: u64, id: u64) -> bool {
    let held = |holder: &Holder| holder.id == id && holder.expires_us > now_us;
    let Some(index) = state.holders.iter().position(held) else { return false };
    let holder = state.holders.remove(index);
    state.insert(Holder { expires_us: now_us.saturating_add(spec.lease_us), ..holder });
    true
}

/// How many places are free, and when all will be if no holder renews.
#[must_use]
pub fn reading(state: &State, spec: &Spec, now_us: u64) -> Reading {
    let alive = state.alive(now_us);
    let last_us = alive.last().map_or(now_us, |holder| holder.expires_us);
    Reading {
        available: rest(spec.places, saturate(held(alive))),
        reset_us: Some(last_us.saturating_sub(now_us)),
    }
}

/// Until when every cost of one is refused, if no place is taken, renewed or given back meanwhile; `None` if a place is
/// free, or if the first holder alone does not decide it.
#[must_use]
pub fn full_until_us(state: &State, spec: &Spec) -> Option<u64> {
    let first = state.holders.first()?;
    let is_full = held(&state.holders) == u128::from(spec.places.micros())
        && first.cost_micros >= Amount::ONE.micros();
    is_full.then_some(first.expires_us)
}

/// When the last lease has run out.
#[must_use]
pub fn meaningless_at_us(state: &State, _spec: &Spec) -> Option<u64> {
    Some(state.holders.last().map_or(0, |holder| holder.expires_us))
}

/// Moves every instant.
pub(super) fn shift(state: &mut State, by_us: i64) {
    for holder in &mut state.holders {
        holder.expires_us = holder.expires_us.saturating_add_signed(by_us);
    }
}

fn held(alive: &[Holder]) -> u128 {
    alive.iter().map(|holder| u128::from(holder.cost_micros)).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Spec as AnySpec;
    use super::super::reference::{
        Admission, Advance, Run, UNIT, advances, amount, assert_extremes_do_no_harm, costs, spent,
        steps_with_changes, steps_with_refunds, windows_us,
    };
    use super::*;

    fn specs() -> impl Strategy<Value = Spec> {
        (1..=8 * UNIT, windows_us())
            .prop_map(|(places, lease_us)| Spec { places: amount(places), lease_us })
    }

    fn naive(spec: &AnySpec, log: &[Admission], now_us: u64, cost: u64) -> bool {
        let AnySpec::Concurrency(spec) = spec else { return false };
        spent(log, |at_us| at_us + spec.lease_us > now_us) + cost <= spec.places.micros()
    }

    proptest! {
        #[test]
        fn every_verdict_is_that_of_the_places_held(
            spec in specs(), steps in steps_with_refunds(costs(), Just(100)),
        ) {
            Run::new(AnySpec::Concurrency(spec), 77).take(&steps, spec.lease_us, Some(naive));
        }

        #[test]
        fn a_changed_number_of_places_sees_the_same_holders(
            spec in specs(), places in 1..=8 * UNIT, steps in steps_with_changes(costs()),
        ) {
            let mut run = Run::new(AnySpec::Concurrency(spec), 77);
            run.other_spec = AnySpec::Concurrency(Spec { places: amount(places), ..spec });
            run.take(&steps, spec.lease_us, Some(naive));
        }

        #[test]
        fn a_holder_keeps_its_place_exactly_as_long_as_it_renews_in_time(
            spec in specs(), other_lease_us in windows_us(),
            steps in prop::collection::vec((advances(), 0..6_u64, 0..4_u8), 1..60),
        ) {
            let leases = [spec.lease_us, other_lease_us];
            let mut state = State::default();
            let mut model = std::collections::BTreeMap::<u64, u64>::new();
            let mut now_us = 0;
            for (advance, id, act) in steps {
                now_us += match advance {
                    Advance::Us(us) => us,
                    Advance::Twelfths(twelfths) => spec.lease_us * twelfths / 12,
                    Advance::Retry | Advance::BeforeRetry => spec.lease_us,
                };
                let spec = Spec { lease_us: leases[usize::from(act) % 2], ..spec };
                let alive = model.get(&id).is_some_and(|expires_us| *expires_us > now_us);
                if act == 0 && release(&mut state, id) {
                    prop_assert!(model.remove(&id).is_some());
                } else if act < 3 || alive {
                    prop_assert_eq!(renew(&mut state, &spec, now_us, id), alive);
                    model.entry(id).and_modify(|at| if alive { *at = now_us + spec.lease_us });
                } else {
                    release(&mut state, id);
                    hold(&mut state, &spec, now_us, id, amount(1));
                    model.insert(id, now_us + spec.lease_us);
                }
                let held = model.values().filter(|expires_us| **expires_us > now_us).count();
                prop_assert_eq!(state.alive(now_us).len(), held);
                prop_assert!(state.holders.is_sorted_by_key(|holder| holder.expires_us));
            }
        }

        #[test]
        fn one_that_is_full_says_until_when_and_is_so_until_then(
            spec in (1..=4_u64, windows_us()),
            steps in prop::collection::vec((0..=50_u64, 1..=4_u64, 0..4_u8), 1..60),
        ) {
            let (places, lease_us) = spec;
            let spec = Spec { places: amount(places * UNIT), lease_us };
            let (mut state, mut now_us) = (State::default(), 99);
            for (id, (percent, cost, act)) in (0..).zip(steps) {
                now_us += lease_us * percent / 100;
                // A holder of another cost than one, some that renew or go, and some that ask for too much.
                let cost = amount(cost * UNIT / 2);
                let some = state.holders.get(usize::from(act)).map_or(0, |holder| holder.id);
                match act {
                    0 => drop(release(&mut state, some)),
                    1 => drop(renew(&mut state, &spec, now_us, some)),
                    _ if evaluate(&state, &spec, now_us, cost) == Verdict::Allowed => {
                        hold(&mut state, &spec, now_us, id, cost);
                    }
                    _ => {}
                }
                let Some(until_us) = full_until_us(&state, &spec) else { continue };
                for now_us in [now_us.min(until_us - 1), until_us - 1] {
                    let verdict = evaluate(&state, &spec, now_us, Amount::ONE);
                    prop_assert_eq!(verdict, denied_until(until_us, now_us));
                    let end_us = meaningless_at_us(&state, &spec).unwrap();
                    let full = Reading { available: Amount::ZERO, reset_us: Some(end_us - now_us) };
                    prop_assert_eq!(reading(&state, &spec, now_us), full);
                }
                prop_assert_eq!(evaluate(&state, &spec, until_us, Amount::ONE), Verdict::Allowed);
            }
        }
    }

    #[test]
    fn a_place_is_lost_at_the_very_end_of_its_lease() {
        let spec = Spec { places: Amount::ONE, lease_us: 60 };
        let mut state = State::default();
        hold(&mut state, &spec, 0, 1, Amount::ONE);
        assert_eq!(evaluate(&state, &spec, 59, Amount::ONE), denied_until(60, 59));
        assert!(renew(&mut state, &spec, 59, 1));
        assert_eq!(evaluate(&state, &spec, 118, Amount::ONE), denied_until(119, 118));
        assert_eq!(evaluate(&state, &spec, 119, Amount::ONE), Verdict::Allowed);
        assert!(!renew(&mut state, &spec, 119, 1));
    }

    #[test]
    fn extremes_do_no_harm() {
        for (places, lease_us) in [(Amount::MAX, u64::MAX), (Amount::ZERO, 0), (Amount::ONE, 1)] {
            assert_extremes_do_no_harm(AnySpec::Concurrency(Spec { places, lease_us }));
        }
    }
}
