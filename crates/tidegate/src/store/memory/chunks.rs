//! An array that grows in chunks and never moves, so that readers need no lock while it grows.

use std::sync::OnceLock;

/// How many chunks are found without a further indirection. Every lookup waits for each indirection.
const NEAR: usize = 64;
/// How many chunks each far row has.
const ROW: usize = 256;
/// Enough segments and pages for some 670 million keys, which take 30 GB.
const ROWS: usize = 64;

/// Chunks by number.
#[derive(Debug)]
pub(super) struct Chunks<C> {
    near: [OnceLock<C>; NEAR],
    far: [OnceLock<Box<[OnceLock<C>]>>; ROWS],
}

impl<C> Default for Chunks<C> {
    fn default() -> Self {
        Self { near: [const { OnceLock::new() }; NEAR], far: [const { OnceLock::new() }; ROWS] }
    }
}

impl<C: Default> Chunks<C> {
    /// The chunk of a number, if it exists.
    #[inline]
    pub(super) fn get(&self, number: usize) -> Option<&C> {
        match self.near.get(number) {
            Some(chunk) => chunk.get(),
            None => {
                let number = number - NEAR;
                self.far.get(number / ROW)?.get()?.get(number % ROW)?.get()
            }
        }
    }

    /// The chunk of a number, created if necessary; `None` beyond the last row.
    pub(super) fn get_or_create(&self, number: usize) -> Option<&C> {
        let chunk = match self.near.get(number) {
            Some(chunk) => chunk,
            None => {
                let row = || (0..ROW).map(|_| OnceLock::new()).collect();
                let number = number - NEAR;
                self.far.get(number / ROW)?.get_or_init(row).get(number % ROW)?
            }
        };
        Some(chunk.get_or_init(C::default))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_number_has_a_chunk_of_its_own() {
        let chunks = Chunks::<AtomicUsize>::default();
        for number in 0..1_000 {
            chunks.get_or_create(number).unwrap().store(number, Ordering::Relaxed);
        }
        let guard = |number| chunks.get(number).map(|chunk| chunk.load(Ordering::Relaxed));
        assert!((0..1_000).all(|number| guard(number) == Some(number)));
        assert_eq!(guard(5_000), None);
        assert!(chunks.get_or_create(NEAR + ROW * ROWS).is_none());
    }
}
