//! Plans of two keys, each in a segment of its own.

use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;

use crate::packed_state::PackedState;
use crate::slot::Slot;
use crate::{KEY, OTHER, Segment, state_of};

/// Two segments with a key each, which a request has both of.
type Both = [Segment; 2];

/// The number of a segment, and what was seen of a key in it afterwards.
type Seen<'c> = (u32, Option<(Slot<'c>, PackedState)>);

/// What is done of a plan in one segment.
#[derive(Clone, Copy)]
enum Part {
    /// Counts one more of the key of this segment.
    Charge(usize),
    /// Puts another key into this segment, or counts one more of it.
    Put(usize),
}

impl Part {
    const fn at(self) -> usize {
        match self {
            Self::Charge(at) | Self::Put(at) => at,
        }
    }

    /// The number of its segment, and then what is seen of its key.
    fn see(self, both: &Both) -> Seen<'_> {
        let segment = &both[self.at()];
        let version = segment.lock.read();
        match self {
            Self::Charge(_) => (version, segment.find()),
            Self::Put(_) => {
                let slot = segment.slot(1);
                (version, state_of(slot, OTHER).map(|state| (slot, state)))
            }
        }
    }
}

/// Does both parts or neither: locks the keys that are there and then holds the segments of the others,
/// which it waits for in no case, and lets go of the keys before it puts any in.
fn carry_out(both: &Both, parts: [Part; 2]) {
    loop {
        let seen = parts.map(|part| (&both[part.at()].lock, part.see(both)));
        let slots = || {
            seen.iter().filter_map(|(version, (number, found))| Some((version, number, (*found)?)))
        };
        let new = || parts.iter().zip(&seen).filter(|(_, (_, (_, found)))| found.is_none());
        let locked = slots()
            .take_while(|(version, number, (slot, state))| {
                slot.try_lock(*state, || version.is_unchanged_after_slot_lock(**number))
            })
            .count();
        let held = if locked == slots().count() {
            new().take_while(|(_, (version, (number, _)))| version.try_lock_from(*number)).count()
        } else {
            0
        };
        if locked + held == parts.len() {
            slots().for_each(|(_, _, (slot, state))| {
                slot.unlock(PackedState::counting(state.payload + 1));
            });
            for (part, (version, (number, _))) in new() {
                let segment = &both[part.at()];
                // Making room looks at who is there, and waits while that is charged.
                assert!(state_of(segment.slot(0), KEY).is_some());
                segment.slot(1).fill(OTHER, PackedState::counting(1));
                version.unlock(*number);
            }
            return;
        }
        new().take(held).for_each(|(_, (version, (number, _)))| version.unlock(*number));
        slots().take(locked).for_each(|(_, _, (slot, state))| slot.unlock(state));
        thread::yield_now();
    }
}

/// Looks until both parts are seen as they were at one instant: both are done or neither.
fn see_both_or_neither(both: &Both, parts: [Part; 2]) {
    loop {
        let seen = parts.map(|part| part.see(both));
        let is_so = |(part, (number, found)): (&Part, &Seen<'_>)| {
            found.is_none_or(|(slot, state)| slot.state() == state)
                && both[part.at()].lock.is_unchanged(*number)
        };
        if parts.iter().zip(&seen).all(is_so) {
            let [one, other] = seen.map(|(_, found)| found.map_or(0, |(_, state)| state.payload));
            assert_eq!(one, other);
            return;
        }
        thread::yield_now();
    }
}

/// Runs the acts at once on two segments; the key of each, and the other, have been charged this often in
/// the end.
fn at_once(acts: [fn(&Both); 2], counts: [u64; 2], others: [u64; 2]) {
    let mut model = Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let both = Arc::new([Segment::new(), Segment::new()]);
        let threads = acts.map(|act| {
            let both = Arc::clone(&both);
            thread::spawn(move || act(&both))
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(both.each_ref().map(Segment::count), counts);
        assert_eq!(both.each_ref().map(count_of_other), others);
    });
}

fn count_of_other(segment: &Segment) -> u64 {
    state_of(segment.slot(1), OTHER).map_or(0, |state| state.payload)
}

const CHARGES: [Part; 2] = [Part::Charge(0), Part::Charge(1)];
const CHARGE_AND_PUT: [Part; 2] = [Part::Charge(0), Part::Put(1)];

#[test]
fn two_keys_are_charged_together_whoever_comes_first() {
    let opposite = |both: &Both| carry_out(both, [Part::Charge(1), Part::Charge(0)]);
    at_once([|both| carry_out(both, CHARGES), opposite], [2, 2], [0, 0]);
}

#[test]
fn no_charge_of_two_keys_is_lost_to_one_that_holds_a_segment() {
    at_once([|both| carry_out(both, CHARGES), |both| both[1].charge_locked()], [1, 2], [0, 0]);
}

#[test]
fn a_reader_sees_two_keys_charged_or_neither() {
    let look = |both: &Both| see_both_or_neither(both, CHARGES);
    at_once([|both| carry_out(both, CHARGES), look], [1, 1], [0, 0]);
}

#[test]
fn two_who_charge_a_key_and_put_in_another_the_other_way_round_do_not_wait_for_each_other() {
    let one = |both: &Both| carry_out(both, CHARGE_AND_PUT);
    let opposite = |both: &Both| carry_out(both, [Part::Charge(1), Part::Put(0)]);
    at_once([one, opposite], [1, 1], [1, 1]);
}

#[test]
fn two_who_put_in_the_same_keys_in_opposite_orders_do_not_wait_for_each_other() {
    let one = |both: &Both| carry_out(both, [Part::Put(0), Part::Put(1)]);
    let opposite = |both: &Both| carry_out(both, [Part::Put(1), Part::Put(0)]);
    at_once([one, opposite], [0, 0], [2, 2]);
}

#[test]
fn who_waits_for_all_segments_gets_them_from_who_puts_a_key_in() {
    let act = |both: &Both| carry_out(both, CHARGE_AND_PUT);
    let all = |both: &Both| {
        let [one, other] = both;
        let charge = |segment: &Segment| {
            let (slot, seen) = segment.find().unwrap();
            slot.set_state(PackedState::counting(seen.payload + 1));
        };
        one.with_lock(|| other.with_lock(|| both.iter().for_each(charge)));
    };
    at_once([act, all], [2, 1], [0, 1]);
}

#[test]
fn a_key_that_two_put_in_is_charged_twice() {
    let act = |both: &Both| carry_out(both, CHARGE_AND_PUT);
    at_once([act, act], [2, 0], [0, 2]);
}

#[test]
fn a_reader_sees_a_key_charged_and_another_put_in_or_neither() {
    let look = |both: &Both| see_both_or_neither(both, CHARGE_AND_PUT);
    at_once([|both| carry_out(both, CHARGE_AND_PUT), look], [1, 0], [0, 1]);
}
