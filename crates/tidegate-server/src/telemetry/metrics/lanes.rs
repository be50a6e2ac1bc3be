//! Counters that cores do not fight over.
//!
//! Each thread adds in a lane of its own as far as there are lanes, and a lane is a cache line or
//! more, so that two cores which decide at once do not pass a line back and forth. Reading adds the
//! lanes up.

use std::array::from_fn;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Few, because each costs memory for every operation, tier and limit; cores beyond share them.
const LANES: usize = 4;

/// A group of `N` numbers that are changed together.
#[derive(Debug)]
pub(super) struct Lanes<const N: usize>([Lane<N>; LANES]);

#[derive(Debug)]
#[repr(align(64))]
struct Lane<const N: usize>([AtomicU64; N]);

impl<const N: usize> Lanes<N> {
    /// Every number at zero, in every lane.
    pub(super) fn new() -> Self {
        Self(from_fn(|_| Lane(from_fn(|_| AtomicU64::new(0)))))
    }

    /// Adds to one number.
    pub(super) fn add(&self, number: usize, amount: u64) {
        if let Some(number) = self.own().0.get(number) {
            number.fetch_add(amount, Ordering::Relaxed);
        }
    }

    /// Raises one number to `amount` if it is lower. Mostly it is not, and nothing is written.
    pub(super) fn raise(&self, number: usize, amount: u64) {
        if let Some(number) = self.own().0.get(number)
            && amount > number.load(Ordering::Relaxed)
        {
            number.fetch_max(amount, Ordering::Relaxed);
        }
    }

    /// What was added to one number.
    pub(super) fn sum(&self, number: usize) -> u64 {
        let lanes = self.0.iter().filter_map(|lane| lane.0.get(number));
        lanes.fold(0, |sum, value| sum.wrapping_add(value.load(Ordering::Relaxed)))
    }

    /// What one number was raised to, in each lane.
    pub(super) fn each(&self, number: usize) -> impl Iterator<Item = u64> {
        let lanes = self.0.iter().filter_map(move |lane| lane.0.get(number));
        lanes.map(|value| value.load(Ordering::Relaxed))
    }

    fn own(&self) -> &Lane<N> {
        &self.0[own_lane()]
    }
}

/// The lane of this thread: threads take turns as they come.
fn own_lane() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed) % LANES;
    }
    // A thread that is being torn down has no lane of its own any more.
    OWN.try_with(|lane| *lane).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_threads_add_is_summed_exactly() {
        let lanes = Lanes::<2>::new();
        std::thread::scope(|scope| {
            for _ in 0..LANES + 2 {
                scope.spawn(|| (0..10_000).for_each(|_| lanes.add(1, 3)));
            }
        });
        assert_eq!((lanes.sum(0), lanes.sum(1)), (0, (LANES as u64 + 2) * 30_000));
    }

    #[test]
    fn the_highest_of_all_threads_stays() {
        let lanes = Lanes::<1>::new();
        std::thread::scope(|scope| {
            for highest in [40, 7, 90, 60, 1, 80] {
                let lanes = &lanes;
                scope.spawn(move || (0..=highest).for_each(|value| lanes.raise(0, value)));
            }
        });
        assert_eq!(lanes.each(0).max(), Some(90));
        lanes.raise(0, 3);
        assert_eq!(lanes.each(0).max(), Some(90));
    }
}
