//! Room that grows and never moves: things are put up in small lots, and stay where they are, so that
//! they are read without a lock while more come.

use std::sync::OnceLock;

/// How many things come at once.
const LOT: usize = 8;
/// Row `n` has `2^n` lots.
const ROWS: usize = 28;

/// Things by their number.
#[derive(Debug)]
pub(super) struct Shelf<T> {
    rows: [OnceLock<Row<T>>; ROWS],
}

type Row<T> = Box<[OnceLock<Box<[T]>>]>;

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self { rows: [const { OnceLock::new() }; ROWS] }
    }
}

impl<T: Default> Shelf<T> {
    /// The thing of a number, if it has been made.
    #[inline]
    pub(super) fn get(&self, number: usize) -> Option<&T> {
        let (row, lot, place) = place_of(number);
        self.rows.get(row)?.get()?.get(lot)?.get()?.get(place)
    }

    /// The thing of a number, made with its neighbours if it is not there; `None` beyond the last
    /// row, which is beyond what a machine can hold.
    pub(super) fn make(&self, number: usize) -> Option<&T> {
        let (row, lot, place) = place_of(number);
        let lots = || (0..1_usize << row).map(|_| OnceLock::new()).collect();
        let things = || (0..LOT).map(|_| T::default()).collect();
        self.rows.get(row)?.get_or_init(lots).get(lot)?.get_or_init(things).get(place)
    }
}

/// The row of a number, its lot in the row, and its place in the lot.
#[inline]
fn place_of(number: usize) -> (usize, usize, usize) {
    let lot = number / LOT + 1;
    let row = lot.ilog2();
    (row as usize, lot - (1 << row), number % LOT)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_number_has_a_thing_of_its_own() {
        let shelf = Shelf::<AtomicUsize>::default();
        for number in 0..1_000 {
            shelf.make(number).unwrap().store(number, Ordering::Relaxed);
        }
        let held = |number| shelf.get(number).map(|thing| thing.load(Ordering::Relaxed));
        assert!((0..1_000).all(|number| held(number) == Some(number)));
        assert_eq!(held(5_000), None);
    }
}
