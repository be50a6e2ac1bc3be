//! Plans of two keys, each in a segment of its own.

use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;

use crate::cell::Cell;
use crate::slot::Words;
use crate::{KEY, OTHER, Segment, words_of};

/// Two segments with a key each, which a request has both of.
type Both = [Segment; 2];

/// The number of a segment, and what was seen of a key in it afterwards.
type Seen<'c> = (u32, Option<(Cell<'c>, Words)>);

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
        let version = segment.version.read();
        match self {
            Self::Charge(_) => (version, segment.find()),
            Self::Put(_) => {
                let cell = segment.cell(1);
                (version, words_of(cell, OTHER).map(|words| (cell, words)))
            }
        }
    }
}

/// Does both parts or neither: locks the keys that are there and then holds the segments of the others,
/// which it waits for in no case, and lets go of the keys before it puts any in.
fn carry_out(both: &Both, parts: [Part; 2]) {
    loop {
        let seen = parts.map(|part| (&both[part.at()].version, part.see(both)));
        let slots = || {
            seen.iter().filter_map(|(version, (number, found))| Some((version, number, (*found)?)))
        };
        let new = || parts.iter().zip(&seen).filter(|(_, (_, (_, found)))| found.is_none());
        let locked = slots()
            .take_while(|(version, number, (cell, words))| {
                cell.lock(*words, || version.is_yet(**number))
            })
            .count();
        let held = if locked == slots().count() {
            new().take_while(|(_, (version, (number, _)))| version.hold_from(*number)).count()
        } else {
            0
        };
        if locked + held == parts.len() {
            slots().for_each(|(_, _, (cell, words))| cell.unlock(Words::counting(words.body + 1)));
            for (part, (version, (number, _))) in new() {
                let segment = &both[part.at()];
                // Making room looks at who is there, and waits while that is charged.
                assert!(words_of(segment.cell(0), KEY).is_some());
                segment.cell(1).put(OTHER, Words::counting(1));
                version.let_go(*number);
            }
            return;
        }
        new().take(held).for_each(|(_, (version, (number, _)))| version.let_go(*number));
        slots().take(locked).for_each(|(_, _, (cell, words))| cell.unlock(words));
        thread::yield_now();
    }
}

/// Looks until both parts are seen as they were at one instant: both are done or neither.
fn see_both_or_neither(both: &Both, parts: [Part; 2]) {
    loop {
        let seen = parts.map(|part| part.see(both));
        let is_so = |(part, (number, found)): (&Part, &Seen<'_>)| {
            found.is_none_or(|(cell, words)| cell.words() == words)
                && both[part.at()].version.is_still(*number)
        };
        if parts.iter().zip(&seen).all(is_so) {
            let [one, other] = seen.map(|(_, found)| found.map_or(0, |(_, words)| words.body));
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
    words_of(segment.cell(1), OTHER).map_or(0, |words| words.body)
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
    at_once([|both| carry_out(both, CHARGES), |both| both[1].charge_held()], [1, 2], [0, 0]);
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
            let (cell, seen) = segment.find().unwrap();
            cell.set(Words::counting(seen.body + 1));
        };
        one.hold(|| other.hold(|| both.iter().for_each(charge)));
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
