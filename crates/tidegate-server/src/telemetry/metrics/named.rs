//! Counters by a name that comes from a policy: events, and the penalties that ban.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use super::lanes::Lanes;
use super::text::{Kind, Page};

/// At most so many names, over all policies that there ever were.
const NAMES_MAX: usize = 4_096;

/// The events that every policy has: under attack each refusal is one, and no lock is to be fought over.
const BUILT_IN: [&str; 4] = ["banned", "blocked", "challenge_failed", "limited"];

/// Events by name.
#[derive(Debug)]
pub(super) struct Events {
    built_in: Lanes<{ BUILT_IN.len() }>,
    others: Named,
}

impl Events {
    pub(super) fn new() -> Self {
        Self { built_in: Lanes::new(), others: Named::default() }
    }

    pub(super) fn count(&self, event: &str) {
        match BUILT_IN.iter().position(|known| *known == event) {
            Some(number) => self.built_in.add(number, 1),
            None => self.others.count(event),
        }
    }

    pub(super) fn write(&self, page: &mut Page, name: &str, help: &str) {
        self.others.write(page, name, help, "event");
        for (number, event) in BUILT_IN.iter().enumerate() {
            page.sample(name, &[("event", event)], self.built_in.sum(number));
        }
    }
}

/// Counters by name. One that was counted before is found without holding anybody up.
#[derive(Debug, Default)]
pub(super) struct Named {
    counters: RwLock<BTreeMap<String, AtomicU64>>,
}

impl Named {
    pub(super) fn count(&self, name: &str) {
        if let Some(counter) =
            self.counters.read().unwrap_or_else(PoisonError::into_inner).get(name)
        {
            counter.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut counters = self.counters.write().unwrap_or_else(PoisonError::into_inner);
        if counters.len() < NAMES_MAX || counters.contains_key(name) {
            counters.entry(name.to_owned()).or_default().fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes one sample for each name, in order.
    pub(super) fn write(&self, page: &mut Page, name: &str, help: &str, label: &str) {
        page.family(name, Kind::Counter, help);
        let counters = self.counters.read().unwrap_or_else(PoisonError::into_inner);
        for (value, counter) in &*counters {
            page.sample(name, &[(label, value)], counter.load(Ordering::Relaxed));
        }
    }
}
