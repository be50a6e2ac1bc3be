//! Counters by a label: of fixed values, or of names that come from a policy.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use super::striped_counters::StripedCounters;

/// At most this many names, over all policies of the process's life.
const NAMES_MAX: usize = 4_096;

/// The events that every policy has. Under attack each refusal is one: they need no lock.
const BUILT_IN: [&str; 4] = ["banned", "blocked", "challenge_failed", "limited"];

/// A counter for each value of a label.
#[derive(Debug)]
pub(super) struct LabelCounters<const N: usize> {
    values: [&'static str; N],
    counts: [AtomicU64; N],
}

impl<const N: usize> LabelCounters<N> {
    pub(super) const fn new(values: [&'static str; N]) -> Self {
        Self { values, counts: [const { AtomicU64::new(0) }; N] }
    }

    /// Adds to the counter of the value at this place.
    pub(super) fn add(&self, place: usize, count: u64) {
        self.counts[place].fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn samples(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        self.values.into_iter().zip(counts)
    }
}

/// Counters by name. A name that was counted before is found under a shared lock.
#[derive(Debug, Default)]
pub(super) struct NameCounters(RwLock<BTreeMap<String, AtomicU64>>);

impl NameCounters {
    pub(super) fn count(&self, name: &str) {
        if let Some(counter) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(name) {
            counter.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut counters = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if counters.len() < NAMES_MAX || counters.contains_key(name) {
            counters.entry(name.to_owned()).or_default().fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The names in order, with their counts.
    pub(super) fn samples(&self) -> Vec<(String, u64)> {
        let counters = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let sample =
            |(name, count): (&String, &AtomicU64)| (name.clone(), count.load(Ordering::Relaxed));
        counters.iter().map(sample).collect()
    }
}

/// Events by name.
#[derive(Debug)]
pub(super) struct EventCounters {
    built_in: StripedCounters<{ BUILT_IN.len() }>,
    others: NameCounters,
}

impl EventCounters {
    pub(super) fn new() -> Self {
        Self { built_in: StripedCounters::new(), others: NameCounters::default() }
    }

    pub(super) fn count(&self, event: &str) {
        match BUILT_IN.iter().position(|built_in| *built_in == event) {
            Some(number) => self.built_in.add(number, 1),
            None => self.others.count(event),
        }
    }

    pub(super) fn samples(&self) -> Vec<(String, u64)> {
        let built_in = BUILT_IN.iter().enumerate();
        let built_in =
            built_in.map(|(number, event)| ((*event).to_owned(), self.built_in.sum(number)));
        self.others.samples().into_iter().chain(built_in).collect()
    }
}
