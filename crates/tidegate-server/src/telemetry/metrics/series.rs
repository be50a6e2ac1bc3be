//! The counters of one policy, in arrays by the policy's own small numbers.
//!
//! A reload makes new arrays over the same counters, found by name: what is still being decided by
//! the old policy is counted where the new one shows it, and no counter goes backwards. A name that
//! no policy has any more takes its counters along.

use std::sync::{Arc, Weak};

use tidegate::plan::Enforcement;
use tidegate::{Decision, LimitReport, Outcome, Policy};

use super::headroom::{self, MOMENTS};
use super::lanes::Lanes;
use super::text::{Millionths, Page, WHOLE};

/// How many outcomes there are.
const OUTCOMES: usize = Outcome::ALL.len();
/// What a limit can say: the values of the label `result`.
const RESULTS: [&str; 4] = ["allowed", "denied", "shadow_denied", "warned"];
/// Where a limit's headroom stands behind its results.
const HEADROOM: usize = RESULTS.len();

type DecisionCell = Arc<Lanes<OUTCOMES>>;
type LimitCell = Arc<Lanes<{ HEADROOM + MOMENTS }>>;

/// The counters of one policy.
#[derive(Debug)]
pub(super) struct Series {
    /// Weak, so that an old policy can go; its address is not given away while this is here.
    policy: Weak<Policy>,
    pub(super) name: String,
    pub(super) version: String,
    operations: Vec<String>,
    tiers: Vec<String>,
    limits: Vec<String>,
    /// By operation, then tier.
    decisions: Vec<DecisionCell>,
    hits: Vec<LimitCell>,
}

impl Series {
    /// Counters for a policy; those that an earlier policy of the same name had are kept, those in
    /// force before others.
    pub(super) fn new(policy: &Arc<Policy>, earlier: &[&Self]) -> Self {
        let operations: Vec<String> = policy.operations().map(str::to_owned).collect();
        let tiers: Vec<String> = policy.tiers().map(str::to_owned).collect();
        let limits: Vec<String> =
            policy.limits().iter().map(|limit| limit.name().to_owned()).collect();
        let pairs = operations.iter().flat_map(|operation| {
            tiers.iter().map(move |tier| (operation.as_str(), tier.as_str()))
        });
        let decisions = pairs
            .map(|(operation, tier)| {
                let kept = earlier.iter().find_map(|earlier| earlier.decision(operation, tier));
                kept.unwrap_or_else(|| Arc::new(Lanes::new()))
            })
            .collect();
        let hits = limits
            .iter()
            .map(|limit| {
                let kept = earlier.iter().find_map(|earlier| earlier.limit(limit));
                kept.unwrap_or_else(|| Arc::new(Lanes::new()))
            })
            .collect();
        Self {
            policy: Arc::downgrade(policy),
            name: policy.name().to_owned(),
            version: policy.version().unwrap_or_default().to_owned(),
            operations,
            tiers,
            limits,
            decisions,
            hits,
        }
    }

    /// Whether these are the counters of exactly this policy.
    pub(super) fn is_of(&self, policy: &Policy) -> bool {
        std::ptr::eq(self.policy.as_ptr(), policy)
    }

    /// Whether a decision by this policy can still come.
    pub(super) fn is_live(&self) -> bool {
        self.policy.strong_count() > 0
    }

    /// Counts a decision by this policy.
    pub(super) fn count(&self, decision: &Decision) {
        let cell = decision.operation_index() * self.tiers.len() + decision.tier_index();
        if let Some(cell) = self.decisions.get(cell) {
            cell.add(decision.outcome.index(), 1);
        }
        for report in &decision.limits {
            if let Some(cell) = self.hits.get(usize::from(report.limit)) {
                cell.add(result(report), 1);
                let (number, packed) = headroom::note(decision.now.steady_us, share_left(report));
                cell.raise(HEADROOM + number, packed);
            }
        }
    }

    /// Writes the decisions that there were: all that there might be are too many.
    pub(super) fn write_decisions(&self, page: &mut Page, name: &str, several: bool) {
        for (operation, tiers) in
            self.operations.iter().zip(self.decisions.chunks(self.tiers.len().max(1)))
        {
            for (tier, cell) in self.tiers.iter().zip(tiers) {
                for outcome in Outcome::ALL {
                    let count = cell.sum(outcome.index());
                    if count > 0 {
                        let labels = [
                            ("operation", operation.as_str()),
                            ("tier", tier),
                            ("outcome", outcome.name()),
                            ("policy", &self.name),
                        ];
                        page.sample(name, first(&labels, several), count);
                    }
                }
            }
        }
    }

    /// Writes what each limit said.
    pub(super) fn write_hits(&self, page: &mut Page, name: &str, several: bool) {
        for (limit, cell) in self.limits.iter().zip(&self.hits) {
            for (number, result) in RESULTS.iter().enumerate() {
                let labels =
                    [("limit", limit.as_str()), ("result", result), ("policy", &self.name)];
                page.sample(name, first(&labels, several), cell.sum(number));
            }
        }
    }

    /// Writes the smallest share that each limit had left of late.
    pub(super) fn write_headroom(&self, page: &mut Page, name: &str, several: bool, now_us: u64) {
        for (limit, cell) in self.limits.iter().zip(&self.hits) {
            let labels = [("limit", limit.as_str()), ("policy", &self.name)];
            let noted = (0..MOMENTS).flat_map(|number| cell.each(HEADROOM + number));
            let share = Millionths(headroom::smallest(now_us, noted));
            page.sample(name, first(&labels, several), share);
        }
    }

    fn decision(&self, operation: &str, tier: &str) -> Option<DecisionCell> {
        let operation = self.operations.iter().position(|known| known == operation)?;
        let tier = self.tiers.iter().position(|known| known == tier)?;
        self.decisions.get(operation * self.tiers.len() + tier).cloned()
    }

    fn limit(&self, limit: &str) -> Option<LimitCell> {
        let limit = self.limits.iter().position(|known| known == limit)?;
        self.hits.get(limit).cloned()
    }
}

/// The labels without the last, which names the policy, where there is only one.
fn first<T>(labels: &[T], several: bool) -> &[T] {
    &labels[..labels.len() - usize::from(!several)]
}

/// The place in [`RESULTS`] of what a limit said.
fn result(report: &LimitReport) -> usize {
    match (report.is_allowed(), report.enforcement) {
        (true, _) => 0,
        (false, Enforcement::Reject) => 1,
        (false, Enforcement::Shadow) => 2,
        (false, Enforcement::Warn) => 3,
    }
}

/// What is left of a limit, in millionths of its capacity.
fn share_left(report: &LimitReport) -> u64 {
    let (left, whole) = (report.available.micros(), report.spec.capacity().micros().max(1));
    let share = match left.checked_mul(WHOLE) {
        Some(scaled) => scaled / whole,
        None => left / (whole / WHOLE).max(1),
    };
    share.min(WHOLE)
}
