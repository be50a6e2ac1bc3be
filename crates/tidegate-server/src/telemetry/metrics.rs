//! Metrics: what is counted while deciding, and the page that shows it.
//!
//! Counting a decision neither locks, allocates, formats nor hashes: counters are arrays of
//! atomics, one set for each policy in force, found by the policy's address. No label ever holds a
//! user or an address.

mod challenges;
mod headroom;
mod histogram;
mod lanes;
mod leases;
mod named;
mod notices;
mod process;
mod series;
mod shared;
mod state;
mod text;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tidegate::policy::ChallengeKind;
use tidegate::store::StoreError;
use tidegate::{Decision, Policy};
use tidegate_redis::LeaseHealth;

pub(crate) use challenges::Challenged;
pub(crate) use shared::SharedPresent;
pub(crate) use text::CONTENT_TYPE;

use challenges::Challenges;
use histogram::Histogram;
use named::{Events, Named};
use series::Series;
use text::{Kind, Page};

use crate::notify::NoticeCounts;
use crate::state::StatePresent;

/// Everything that the daemon counts.
#[derive(Debug)]
pub(crate) struct Metrics {
    policies: ArcSwap<Policies>,
    loading: Mutex<()>,
    seconds: Histogram,
    store: StoreCounters,
    store_seconds: [Histogram; STORE_CALLS.len()],
    events: Events,
    bans: Named,
    challenges: Challenges,
    started_unix_s: u64,
}

/// The counters of the policies in force, and of earlier ones that still decide.
#[derive(Debug, Default)]
struct Policies {
    /// Those in force first, in their order.
    series: Vec<Arc<Series>>,
    in_force: usize,
}

#[derive(Debug, Default)]
struct StoreCounters {
    errors: [AtomicU64; REASONS.len()],
    fallbacks: [AtomicU64; REASONS.len()],
    /// Keys that a store that was back was charged for, or should have been.
    merged: [AtomicU64; MERGED.len()],
}

/// What became of keys that the store was to be charged for: the values of the label `result`.
const MERGED: [&str; 2] = ["sent", "lost"];

/// Why a store could not answer: the values of the label `reason`.
const REASONS: [&str; 2] = ["unavailable", "refused"];

/// What a store is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StoreCall {
    Decide,
    Amend,
}

/// The values of the label `op`, in the order of [`StoreCall`].
const STORE_CALLS: [&str; 2] = ["decide", "amend"];

/// What is there at the moment when a page is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Present {
    /// That moment, on the clock that decisions are dated by.
    pub(crate) steady_us: u64,
    /// The store that nodes share, if there is one.
    pub(crate) store: Option<SharedPresent>,
    /// What this node has borrowed of a shared store.
    pub(crate) leases: LeaseHealth,
    /// How many keys are in this process's memory.
    pub(crate) active_keys: usize,
    /// How many live keys had to go for others.
    pub(crate) evicted_keys: u64,
    /// How many requests wait for their turn.
    pub(crate) waiting: usize,
    /// How many answers a penalty holds back.
    pub(crate) held: usize,
    /// How many bans and flags are known, and how many there was no room for.
    pub(crate) marks: Vec<(&'static str, usize, u64)>,
    /// How messages to webhooks fared.
    pub(crate) notices: NoticeCounts,
    /// How the state directory is saved to, if there is one.
    pub(crate) state: Option<StatePresent>,
    /// How many connections are open, by listener.
    pub(crate) connections: Vec<(&'static str, usize)>,
}

impl Metrics {
    /// Metrics of a process that started at this Unix time, with these policies in force.
    #[must_use]
    pub(crate) fn new(started_unix_s: u64, policies: &[Arc<Policy>]) -> Self {
        let metrics = Self {
            policies: ArcSwap::default(),
            loading: Mutex::default(),
            seconds: Histogram::new(),
            store: StoreCounters::default(),
            store_seconds: [Histogram::new(), Histogram::new()],
            events: Events::new(),
            bans: Named::default(),
            challenges: Challenges::default(),
            started_unix_s,
        };
        metrics.load(policies);
        metrics
    }

    /// Says which policies are in force, whether just before or just after they are. What has the
    /// same names as before counts on.
    pub(crate) fn load(&self, policies: &[Arc<Policy>]) {
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.policies.load();
        let mut series: Vec<Arc<Series>> =
            policies.iter().map(|policy| known.series_for(policy)).collect();
        let in_force = series.len();
        let still_deciding = known.series.iter().filter(|earlier| {
            earlier.is_live() && !policies.iter().any(|policy| earlier.is_of(policy))
        });
        series.extend(still_deciding.cloned());
        self.policies.store(Arc::new(Policies { series, in_force }));
    }

    /// Counts a decision, and how many microseconds it took.
    pub(crate) fn decided(&self, decision: &Decision, micros: u64) {
        self.seconds.observe(micros);
        if let Some(error) = &decision.store_error {
            self.store_failed(error);
            self.store.fallbacks[reason(error)].fetch_add(1, Ordering::Relaxed);
        }
        let known = self.policies.load();
        match known.series.iter().find(|series| series.is_of(decision.policy())) {
            Some(series) => series.count(decision),
            None => self.meet(decision.shared_policy()).count(decision),
        }
    }

    /// Counts an event of a policy.
    pub(crate) fn happened(&self, event: &str) {
        self.events.count(event);
    }

    /// Counts a ban, by the penalty that made it.
    pub(crate) fn banned(&self, penalty: &str) {
        self.bans.count(penalty);
    }

    /// Counts what became of a challenge.
    pub(crate) fn challenged(&self, kind: &ChallengeKind, result: Challenged) {
        self.challenges.count(kind, result);
    }

    /// Counts a store that could not answer outside of a decision: a settlement, a release.
    pub(crate) fn store_failed(&self, error: &StoreError) {
        self.store.errors[reason(error)].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the keys that a store was charged for once it was back, and those of which nobody knows.
    pub(crate) fn merged(&self, sent: u64, lost: u64) {
        for (counter, count) in self.store.merged.iter().zip([sent, lost]) {
            counter.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Counts a call to a shared store, and how many microseconds it took.
    pub(crate) fn store_answered(&self, call: StoreCall, micros: u64) {
        self.store_seconds[call as usize].observe(micros);
    }

    /// The page, in the Prometheus text format.
    #[must_use]
    pub(crate) fn render(&self, present: &Present) -> String {
        let mut page = Page::default();
        self.policies.load().write(&mut page, present.steady_us);
        let help = "Events that penalties, ratios or policies count, by their names.";
        self.events.write(&mut page, "tidegate_events_total", help);
        let help = "Bans that this node made, by penalty, ratio or operator.";
        self.bans.write(&mut page, "tidegate_bans_total", help, "penalty");
        self.challenges.write(&mut page);
        let name = "tidegate_decision_seconds";
        page.family(name, Kind::Histogram, "How long decisions took, in seconds.");
        self.seconds.write(&mut page, name, None);
        present.write(&mut page);
        self.store.write(&mut page);
        let name = "tidegate_store_seconds";
        page.family(name, Kind::Histogram, "How long calls to a shared store took, in seconds.");
        for (op, seconds) in STORE_CALLS.iter().zip(&self.store_seconds) {
            seconds.write(&mut page, name, Some(("op", op)));
        }
        let help = "When the process started, in seconds since the Unix epoch.";
        page.single("process_start_time_seconds", Kind::Gauge, help, self.started_unix_s);
        process::write(&mut page);
        page.into_text()
    }

    /// Counters for a policy that decides before anybody has said that it is in force.
    #[cold]
    fn meet(&self, policy: &Arc<Policy>) -> Arc<Series> {
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.policies.load();
        let met = known.series_for(policy);
        if !known.series.iter().any(|series| Arc::ptr_eq(series, &met)) {
            let mut series = known.series.clone();
            series.push(Arc::clone(&met));
            self.policies.store(Arc::new(Policies { series, in_force: known.in_force }));
        }
        met
    }
}

impl Policies {
    /// The counters of exactly this policy, else new ones that go on where the latest of its name
    /// are. Those that were only met come last and share all they can with those in force.
    fn series_for(&self, policy: &Arc<Policy>) -> Arc<Series> {
        if let Some(series) = self.series.iter().find(|series| series.is_of(policy)) {
            return Arc::clone(series);
        }
        let earlier: Vec<&Series> = self
            .series
            .iter()
            .filter(|series| series.name == policy.name())
            .map(|series| &**series)
            .collect();
        Arc::new(Series::new(policy, &earlier))
    }

    fn write(&self, page: &mut Page, now_us: u64) {
        let in_force = &self.series[..self.in_force];
        let several = in_force.len() > 1;
        let name = "tidegate_decisions_total";
        let help =
            "Decisions by operation, tier and outcome (and policy, where there are several).";
        page.family(name, Kind::Counter, help);
        in_force.iter().for_each(|series| series.write_decisions(page, name, several));
        let name = "tidegate_limit_hits_total";
        let help = "What limits said of requests: allowed (the cost fitted here, whatever other \
                    limits said), denied (over, and refuses), shadow_denied (over, on trial), \
                    warned (over, and only warns).";
        page.family(name, Kind::Counter, help);
        in_force.iter().for_each(|series| series.write_hits(page, name, several));
        let name = "tidegate_headroom_ratio";
        let help = "The smallest share of a limit that any key had left in this minute and the \
                    one before, 0 to 1; 1 where none was seen.";
        page.family(name, Kind::Gauge, help);
        in_force.iter().for_each(|series| series.write_headroom(page, name, several, now_us));
        let name = "tidegate_policy_info";
        page.family(name, Kind::Gauge, "The policies in force; always 1.");
        for series in in_force {
            page.sample(name, &[("name", &series.name), ("version", &series.version)], 1);
        }
    }
}

impl StoreCounters {
    fn write(&self, page: &mut Page) {
        let errors = "Times that the store could not answer: unavailable (trying again may help) \
                      or refused (it will not).";
        let fallbacks = "Decisions that were made without the store, by why it could not answer.";
        for (name, help, counters) in [
            ("tidegate_store_errors_total", errors, &self.errors),
            ("tidegate_store_fallback_total", fallbacks, &self.fallbacks),
        ] {
            page.family(name, Kind::Counter, help);
            for (reason, counter) in REASONS.iter().zip(counters) {
                page.sample(name, &[("reason", reason)], counter.load(Ordering::Relaxed));
            }
        }
        let name = "tidegate_store_merged_total";
        let help = "Keys that the store was charged for after it was lost: sent, or lost (whether \
                    it was charged is not known).";
        page.family(name, Kind::Counter, help);
        for (result, counter) in MERGED.iter().zip(&self.merged) {
            page.sample(name, &[("result", result)], counter.load(Ordering::Relaxed));
        }
    }
}

/// The place in [`REASONS`] of why a store could not answer.
fn reason(error: &StoreError) -> usize {
    usize::from(!error.transient)
}

impl Present {
    fn write(&self, page: &mut Page) {
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        shared::write(page, self.store.as_ref());
        leases::write(page, &self.leases);
        notices::write(page, &self.notices);
        state::write(page, self.state.as_ref());
        let help = "Keys in this process's memory, those that are empty of meaning included.";
        page.single("tidegate_active_keys", Kind::Gauge, help, count(self.active_keys));
        let help = "Live keys that had to go because their limit's share of the memory was full.";
        page.single("tidegate_evicted_keys_total", Kind::Counter, help, self.evicted_keys);
        let help = "Requests that wait for their turn.";
        page.single("tidegate_waiting_requests", Kind::Gauge, help, count(self.waiting));
        let help = "Answers that a penalty holds back.";
        page.single("tidegate_held_answers", Kind::Gauge, help, count(self.held));
        let known = "tidegate_marks";
        page.family(known, Kind::Gauge, "Bans and flags that are known here, by kind.");
        for (kind, number, _) in &self.marks {
            page.sample(known, &[("kind", kind)], count(*number));
        }
        let refused = "tidegate_marks_refused_total";
        page.family(refused, Kind::Counter, "Bans and flags that there was no room for, by kind.");
        for (kind, _, number) in &self.marks {
            page.sample(refused, &[("kind", kind)], *number);
        }
        let name = "tidegate_open_connections";
        page.family(name, Kind::Gauge, "Open connections by listener.");
        for (listener, open) in &self.connections {
            page.sample(name, &[("listener", listener)], count(*open));
        }
    }
}

#[cfg(test)]
#[path = "metrics/tests.rs"]
mod tests;
