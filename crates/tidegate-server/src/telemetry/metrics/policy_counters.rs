//! The counters of one policy, in arrays by the policy's own indices.
//!
//! A reload makes new arrays over the same counters, found by name. So decisions of the old policy are
//! counted where the new one shows them, and no counter goes backwards. A name that no policy has any
//! more loses its counters.

use std::sync::{Arc, Weak};

use tidegate::engine::plan::Enforcement;
use tidegate::{Decision, LimitReport, Outcome, Policy};

use super::striped_counters::StripedCounters;
use super::text::{Millionths, Samples, WHOLE};

/// How many outcomes there are.
const OUTCOMES: usize = Outcome::ALL.len();
/// The results of a limit: the values of the label `result`.
const RESULTS: [&str; 4] = ["allowed", "denied", "shadow_denied", "warned"];
/// The place of a limit's headroom behind its results.
const HEADROOM: usize = RESULTS.len();
/// Headroom is kept for two minutes, one even and one odd.
const HEADROOM_SLOTS: usize = 2;
/// Scrapers that come once a minute, which is their default, miss nothing.
const HEADROOM_SLOT_US: u64 = 60_000_000;
/// A share in millionths fits into this many bits.
const SHARE_BITS: u32 = 20;

type DecisionCell = Arc<StripedCounters<OUTCOMES>>;
type LimitCell = Arc<StripedCounters<{ HEADROOM + HEADROOM_SLOTS }>>;

/// The counters of one policy.
#[derive(Debug)]
pub(super) struct PolicyCounters {
    /// Weak, so that an old policy can be freed. Its address is not reused while this exists.
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

impl PolicyCounters {
    /// Counters for a policy. It shares the counters of earlier policies of its name, the first that
    /// has them.
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
                kept.unwrap_or_else(|| Arc::new(StripedCounters::new()))
            })
            .collect();
        let hits = limits
            .iter()
            .map(|limit| {
                let kept = earlier.iter().find_map(|earlier| earlier.limit(limit));
                kept.unwrap_or_else(|| Arc::new(StripedCounters::new()))
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

    /// True for exactly this policy.
    pub(super) fn is_of(&self, policy: &Policy) -> bool {
        std::ptr::eq(self.policy.as_ptr(), policy)
    }

    /// True while a decision by this policy can still come.
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
                let (slot, packed) = pack_headroom(decision.now.steady_us, share_left(report));
                cell.raise(HEADROOM + slot, packed);
            }
        }
    }

    /// Writes the decisions that have been made: all possible ones are too many.
    pub(super) fn write_decisions(&self, samples: &mut Samples<'_>, several: bool) {
        let by_operation = self.decisions.chunks(self.tiers.len().max(1));
        for (operation, tiers) in self.operations.iter().zip(by_operation) {
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
                        samples.labelled(without_policy(&labels, several), count);
                    }
                }
            }
        }
    }

    /// Writes the results of each limit.
    pub(super) fn write_hits(&self, samples: &mut Samples<'_>, several: bool) {
        for (limit, cell) in self.limits.iter().zip(&self.hits) {
            for (number, result) in RESULTS.iter().enumerate() {
                let labels =
                    [("limit", limit.as_str()), ("result", result), ("policy", &self.name)];
                samples.labelled(without_policy(&labels, several), cell.sum(number));
            }
        }
    }

    /// Writes the smallest share that each limit had left in this minute and the one before.
    pub(super) fn write_headroom(&self, samples: &mut Samples<'_>, several: bool, now_us: u64) {
        for (limit, cell) in self.limits.iter().zip(&self.hits) {
            let labels = [("limit", limit.as_str()), ("policy", &self.name)];
            let packed = (0..HEADROOM_SLOTS).flat_map(|slot| cell.each(HEADROOM + slot));
            let share = Millionths(smallest_headroom(now_us, packed));
            samples.labelled(without_policy(&labels, several), share);
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

/// The labels without the last, which names the policy, if there is only one policy.
fn without_policy<T>(labels: &[T], several: bool) -> &[T] {
    &labels[..labels.len() - usize::from(!several)]
}

/// The place in [`RESULTS`] of a limit's result.
fn result(report: &LimitReport) -> usize {
    match (report.is_allowed(), report.enforcement) {
        (true, _) => 0,
        (false, Enforcement::Reject) => 1,
        (false, Enforcement::Shadow) => 2,
        (false, Enforcement::Warn) => 3,
    }
}

/// The slot of this minute, and its new value for a limit that has this share left. The value holds the
/// minute above the share that is used, so that the larger value is the one to keep: a later minute, or
/// a fuller limit. Reading changes nothing.
fn pack_headroom(now_us: u64, share_left: u64) -> (usize, u64) {
    let minute = now_us / HEADROOM_SLOT_US;
    let used = WHOLE.saturating_sub(share_left);
    (usize::from(minute % 2 == 1), minute << SHARE_BITS | used)
}

/// The smallest share left in this minute and the one before; a whole if there is none.
fn smallest_headroom(now_us: u64, packed: impl Iterator<Item = u64>) -> u64 {
    let minute = now_us / HEADROOM_SLOT_US;
    let recent = packed.filter(|value| minute.saturating_sub(value >> SHARE_BITS) < 2);
    let used = recent.map(|value| value & ((1 << SHARE_BITS) - 1)).max();
    WHOLE - used.unwrap_or(0).min(WHOLE)
}

/// The rest of a limit, in millionths of its capacity.
fn share_left(report: &LimitReport) -> u64 {
    let (left, whole) = (report.available.micros(), report.spec.capacity().micros().max(1));
    let share = match left.checked_mul(WHOLE) {
        Some(scaled) => scaled / whole,
        None => left / (whole / WHOLE).max(1),
    };
    share.min(WHOLE)
}
