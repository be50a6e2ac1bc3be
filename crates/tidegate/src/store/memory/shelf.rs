//! Room that grows and never moves: things come in lots, and stay where they are, so that they are read
//! without a lock while more come.

use std::sync::OnceLock;

/// How many lots are found at once.
const NEAR: usize = 64;
/// How many lots a row behind them has.
const ROW: usize = 256;
/// Of segments and of pages, for some 670 million keys: 30 GB in one limit.
const ROWS: usize = 64;

/// Lots by their number. Whoever looks for a key waits for each step on the way to it, so that there is
/// but one as long as the lots are not many.
#[derive(Debug)]
pub(super) struct Shelf<L> {
    near: [OnceLock<L>; NEAR],
    rows: [OnceLock<Row<L>>; ROWS],
}

type Row<L> = Box<[OnceLock<L>]>;

impl<L> Default for Shelf<L> {
    fn default() -> Self {
        Self { near: [const { OnceLock::new() }; NEAR], rows: [const { OnceLock::new() }; ROWS] }
    }
}

impl<L: Default> Shelf<L> {
    /// The lot of a number, if it has been made.
    #[inline]
    pub(super) fn get(&self, number: usize) -> Option<&L> {
        match self.near.get(number) {
            Some(lot) => lot.get(),
            None => self.far(number - NEAR),
        }
    }

    /// The lot of a number, made if it is not there; `None` behind the last row.
    pub(super) fn make(&self, number: usize) -> Option<&L> {
        let lot = match self.near.get(number) {
            Some(lot) => lot,
            None => {
                let lots = || (0..ROW).map(|_| OnceLock::new()).collect();
                let number = number - NEAR;
                self.rows.get(number / ROW)?.get_or_init(lots).get(number % ROW)?
            }
        };
        Some(lot.get_or_init(L::default))
    }

    fn far(&self, number: usize) -> Option<&L> {
        self.rows.get(number / ROW)?.get()?.get(number % ROW)?.get()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_number_has_a_lot_of_its_own() {
        let shelf = Shelf::<AtomicUsize>::default();
        for number in 0..1_000 {
            shelf.make(number).unwrap().store(number, Ordering::Relaxed);
        }
        let held = |number| shelf.get(number).map(|lot| lot.load(Ordering::Relaxed));
        assert!((0..1_000).all(|number| held(number) == Some(number)));
        assert_eq!(held(5_000), None);
        assert!(shelf.make(NEAR + ROW * ROWS).is_none());
    }
}
