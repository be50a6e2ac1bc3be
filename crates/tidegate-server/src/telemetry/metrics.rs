//! Metrics: the counters of the daemon, and the page that shows them.
//!
//! Counting a decision neither locks, allocates, formats nor hashes: counters are arrays of atomics,
//! one set for each policy in force, found by the policy's address. No label ever holds a user or an
//! address. Every metric is a row of the table in `families`.

mod counters;
mod failures;
mod families;
mod histogram;
mod policy_counters;
mod process;
mod striped_counters;
mod text;

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tidegate::StoreError;
use tidegate::engine::policy::ChallengeKind;
use tidegate::{Decision, Policy, Unreadable};
use tidegate_redis::LoanHealth;

pub(crate) use failures::{TokenFailure, UpstreamFailure};
pub(crate) use families::SharedPresent;
pub(crate) use text::CONTENT_TYPE;

use counters::{EventCounters, LabelCounters, NameCounters};
use families::{FAMILIES, View};
use histogram::Histogram;
use policy_counters::PolicyCounters;
use text::Page;

use crate::notify::NoticeCounts;
use crate::state::SaveStatus;

/// Everything that the daemon counts.
#[derive(Debug)]
pub(crate) struct Metrics {
    policies: ArcSwap<Policies>,
    loading: Mutex<()>,
    decision_seconds: Histogram,
    /// By reason, as the fallbacks are.
    store_errors: LabelCounters<2>,
    store_fallbacks: LabelCounters<2>,
    /// Keys that a store that was back was charged for, or should have been.
    store_merged: LabelCounters<2>,
    /// By [`StoreCall`].
    store_seconds: [Histogram; 2],
    events: EventCounters,
    bans: NameCounters,
    /// By kind, then by [`ChallengeResult`].
    challenges: [LabelCounters<4>; 2],
    token_failures: LabelCounters<{ TokenFailure::NAMES.len() }>,
    upstream_errors: LabelCounters<{ UpstreamFailure::NAMES.len() }>,
    upstream_seconds: Histogram,
    /// By [`ReloadResult`].
    reloads: LabelCounters<3>,
    /// By [`Unreadable`], in its order.
    unreadable: LabelCounters<{ Unreadable::ALL.len() }>,
    started_unix_s: u64,
}

/// The counters of the policies in force, and of earlier ones that still decide.
#[derive(Debug, Default)]
struct Policies {
    /// Those in force first, in their order.
    counters: Vec<Arc<PolicyCounters>>,
    in_force: usize,
}

/// A call to a store: the values of the label `op`, in this order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StoreCall {
    Decide,
    Amend,
}

/// The result of a challenge: the values of the label `result`, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChallengeResult {
    /// A client received it.
    Issued,
    /// It earned a pass.
    Solved,
    /// The solution was wrong, forged, another client's or used before.
    Failed,
    /// The solution came too late, or could not be verified.
    Void,
}

/// The result of a reload: the values of the label `result`, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReloadResult {
    Taken,
    /// Some files are in force, others stay as they were.
    Partial,
    Refused,
}

/// The values that are read at the moment when a page is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Present {
    /// That moment, on the clock that decisions are dated by.
    pub(crate) steady_us: u64,
    /// The store that nodes share, if there is one.
    pub(crate) store: Option<SharedPresent>,
    /// What this node has borrowed of a shared store.
    pub(crate) leases: LoanHealth,
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
    pub(crate) state: Option<SaveStatus>,
    /// How many connections are open, by listener.
    pub(crate) connections: Vec<(&'static str, usize)>,
}

impl Metrics {
    /// Metrics of a process that started at this Unix time, with these policies in force.
    #[must_use]
    pub(crate) fn new(started_unix_s: u64, policies: &[Arc<Policy>]) -> Self {
        let challenges = || LabelCounters::new(["issued", "solved", "failed", "void"]);
        let metrics = Self {
            policies: ArcSwap::default(),
            loading: Mutex::default(),
            decision_seconds: Histogram::new(),
            store_errors: LabelCounters::new(["unavailable", "refused"]),
            store_fallbacks: LabelCounters::new(["unavailable", "refused"]),
            store_merged: LabelCounters::new(["sent", "lost"]),
            store_seconds: [Histogram::new(), Histogram::new()],
            events: EventCounters::new(),
            bans: NameCounters::default(),
            challenges: [challenges(), challenges()],
            token_failures: LabelCounters::new(TokenFailure::NAMES),
            upstream_errors: LabelCounters::new(UpstreamFailure::NAMES),
            upstream_seconds: Histogram::new(),
            reloads: LabelCounters::new(["taken", "partial", "refused"]),
            unreadable: LabelCounters::new(Unreadable::ALL.map(Unreadable::name)),
            started_unix_s,
        };
        metrics.load(policies);
        metrics
    }

    /// Sets the policies in force, just before or just after they are. Names of before keep their
    /// counters.
    pub(crate) fn load(&self, policies: &[Arc<Policy>]) {
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.policies.load();
        let mut counters: Vec<Arc<PolicyCounters>> =
            policies.iter().map(|policy| known.counters_for(policy)).collect();
        let in_force = counters.len();
        let still_deciding = known.counters.iter().filter(|earlier| {
            earlier.is_live() && !policies.iter().any(|policy| earlier.is_of(policy))
        });
        counters.extend(still_deciding.cloned());
        self.policies.store(Arc::new(Policies { counters, in_force }));
    }

    /// Counts a decision, and how many microseconds it took.
    pub(crate) fn decided(&self, decision: &Decision, micros: u64) {
        self.decision_seconds.observe(micros);
        if let Some(error) = &decision.store_error {
            self.store_failed(error);
            self.store_fallbacks.add(reason(error), 1);
        }
        let known = self.policies.load();
        match known.counters.iter().find(|counters| counters.is_of(decision.policy())) {
            Some(counters) => counters.count(decision),
            None => self.add_policy(decision.shared_policy()).count(decision),
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

    /// Counts an attribute that could not be read.
    pub(crate) fn unreadable(&self, why: Unreadable) {
        self.unreadable.add(why as usize, 1);
    }

    /// Counts the result of a challenge.
    pub(crate) fn challenged(&self, kind: &ChallengeKind, result: ChallengeResult) {
        let kind = usize::from(matches!(kind, ChallengeKind::Captcha { .. }));
        self.challenges[kind].add(result as usize, 1);
    }

    /// Counts a store that could not answer outside of a decision: a settlement, a release.
    pub(crate) fn store_failed(&self, error: &StoreError) {
        self.store_errors.add(reason(error), 1);
    }

    /// Counts the keys that a store was charged for once it was back, and those that may be lost.
    pub(crate) fn merged(&self, sent: u64, lost: u64) {
        self.store_merged.add(0, sent);
        self.store_merged.add(1, lost);
    }

    /// Counts a call to a shared store, and how many microseconds it took.
    pub(crate) fn store_answered(&self, call: StoreCall, micros: u64) {
        self.store_seconds[call as usize].observe(micros);
    }

    /// Counts a bearer token that does not verify.
    pub(crate) fn token_failed(&self, failure: TokenFailure) {
        self.token_failures.add(failure as usize, 1);
    }

    /// Counts an upstream that did not answer.
    pub(crate) fn upstream_failed(&self, failure: UpstreamFailure) {
        self.upstream_errors.add(failure as usize, 1);
    }

    /// Counts an answer of the upstream, and how many microseconds its head took.
    pub(crate) fn upstream_answered(&self, micros: u64) {
        self.upstream_seconds.observe(micros);
    }

    /// Counts a reload.
    pub(crate) fn reloaded(&self, result: ReloadResult) {
        self.reloads.add(result as usize, 1);
    }

    /// The page, in the Prometheus text format.
    #[must_use]
    pub(crate) fn render(&self, present: &Present) -> String {
        let policies = self.policies.load();
        let in_force = &policies.counters[..policies.in_force];
        let view = View { metrics: self, policies: in_force, present };
        let mut page = Page::default();
        FAMILIES.iter().for_each(|family| family.write(&view, &mut page));
        page.into_text()
    }

    /// Counters for a policy that decides before it is known to be in force.
    #[cold]
    fn add_policy(&self, policy: &Arc<Policy>) -> Arc<PolicyCounters> {
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.policies.load();
        let added = known.counters_for(policy);
        if !known.counters.iter().any(|counters| Arc::ptr_eq(counters, &added)) {
            let mut counters = known.counters.clone();
            counters.push(Arc::clone(&added));
            self.policies.store(Arc::new(Policies { counters, in_force: known.in_force }));
        }
        added
    }
}

impl Policies {
    /// The counters of exactly this policy; else new ones that share those of earlier policies of its
    /// name. Those in force come first, and have precedence.
    fn counters_for(&self, policy: &Arc<Policy>) -> Arc<PolicyCounters> {
        if let Some(counters) = self.counters.iter().find(|counters| counters.is_of(policy)) {
            return Arc::clone(counters);
        }
        let same_name = self.counters.iter().filter(|counters| counters.name == policy.name());
        let earlier: Vec<&PolicyCounters> = same_name.map(|counters| &**counters).collect();
        Arc::new(PolicyCounters::new(policy, &earlier))
    }
}

/// The place of the label `reason` of a store that could not answer.
fn reason(error: &StoreError) -> usize {
    usize::from(!error.transient)
}

#[cfg(test)]
#[path = "metrics/tests.rs"]
mod tests;
