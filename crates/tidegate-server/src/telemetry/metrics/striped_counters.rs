//! Counters that cores do not contend for.
//!
//! Each thread adds to a stripe of its own, as far as there are stripes. A stripe is a cache line or more,
//! so that two cores do not pass a line back and forth. Reading sums the stripes.

use std::array::from_fn;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Few, because each costs memory for every operation, tier and limit. More cores share stripes.
const STRIPES: usize = 4;

/// A group of `N` counters.
#[derive(Debug)]
pub(super) struct StripedCounters<const N: usize>([Stripe<N>; STRIPES]);

#[derive(Debug)]
#[repr(align(64))]
struct Stripe<const N: usize>([AtomicU64; N]);

impl<const N: usize> StripedCounters<N> {
    /// All counters at zero.
    pub(super) fn new() -> Self {
        Self(from_fn(|_| Stripe(from_fn(|_| AtomicU64::new(0)))))
    }

    /// Adds to one counter.
    pub(super) fn add(&self, number: usize, amount: u64) {
        if let Some(number) = self.own().0.get(number) {
            number.fetch_add(amount, Ordering::Relaxed);
        }
    }

    /// Raises one counter to `amount` if it is lower. Mostly it is not, and nothing is written.
    pub(super) fn raise(&self, number: usize, amount: u64) {
        if let Some(number) = self.own().0.get(number)
            && amount > number.load(Ordering::Relaxed)
        {
            number.fetch_max(amount, Ordering::Relaxed);
        }
    }

    /// The sum of one counter.
    pub(super) fn sum(&self, number: usize) -> u64 {
        let stripes = self.0.iter().filter_map(|stripe| stripe.0.get(number));
        stripes.fold(0, |sum, value| sum.wrapping_add(value.load(Ordering::Relaxed)))
    }

    /// One counter, stripe by stripe.
    pub(super) fn each(&self, number: usize) -> impl Iterator<Item = u64> {
        let stripes = self.0.iter().filter_map(move |stripe| stripe.0.get(number));
        stripes.map(|value| value.load(Ordering::Relaxed))
    }

    fn own(&self) -> &Stripe<N> {
        &self.0[own_stripe()]
    }
}

/// The stripe of this thread: stripes are assigned in turn.
fn own_stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES;
    }
    // A thread that is being torn down has lost its assignment.
    OWN.try_with(|stripe| *stripe).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_threads_add_is_summed_exactly() {
        let stripes = StripedCounters::<2>::new();
        std::thread::scope(|scope| {
            for _ in 0..STRIPES + 2 {
                scope.spawn(|| (0..10_000).for_each(|_| stripes.add(1, 3)));
            }
        });
        assert_eq!((stripes.sum(0), stripes.sum(1)), (0, (STRIPES as u64 + 2) * 30_000));
    }

    #[test]
    fn the_highest_of_all_threads_stays() {
        let stripes = StripedCounters::<1>::new();
        std::thread::scope(|scope| {
            for highest in [40, 7, 90, 60, 1, 80] {
                let stripes = &stripes;
                scope.spawn(move || (0..=highest).for_each(|value| stripes.raise(0, value)));
            }
        });
        assert_eq!(stripes.each(0).max(), Some(90));
        stripes.raise(0, 3);
        assert_eq!(stripes.each(0).max(), Some(90));
    }
}
