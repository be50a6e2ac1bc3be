//! What a policy in force needs for protection beside its text: the keys of its event counts, steps and
//! marks, and which of its load factors apply.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::decision::Outcome;
use crate::key::{HashKey, LimitKeys};
use crate::policy::Policy;
use crate::policy::model::Part;
use crate::policy::protection::{BUILT_IN_EVENTS, FactorKind, LOAD_LOWER_PPM, Protection};
use crate::protection::bans::BanLookups;
use crate::protection::ladder::LadderKeys;
use crate::protection::marks::{MarkKeys, MarkKind};

/// The protection of a policy in force. Penalties, ratios and factors are in the order of the policy.
#[derive(Debug)]
pub(crate) struct ActiveProtection {
    pub(crate) penalties: Vec<LadderKeys>,
    pub(crate) ratios: Vec<RatioKeys>,
    pub(crate) factors: Vec<ActiveFactor>,
    pub(crate) bans: BanLookups,
    /// The indices of the penalties that refuse some requests for a part of their `by`.
    pub(crate) refusing: Vec<usize>,
    /// Hashes the parts of key templates.
    pub(crate) secret: HashKey,
    /// The outcomes that make events, a bit each.
    outcomes: u8,
    /// True if the status of an answer may make an event.
    pub(crate) sees_answers: bool,
}

/// The keys of a ratio.
#[derive(Debug)]
pub(crate) struct RatioKeys {
    /// The sums of both events, and the number of the second.
    pub(crate) sums: [LimitKeys; 3],
    /// What lets only one node apply the ratio's `then`.
    pub(crate) once: LimitKeys,
}

/// The keys and the state of a factor.
#[derive(Debug)]
pub(crate) struct ActiveFactor {
    pub(crate) marks: MarkKeys,
    /// What lets only one node move the factor.
    pub(crate) step: LimitKeys,
    /// True while the load is too high.
    pub(crate) is_tripped: AtomicBool,
}

impl ActiveProtection {
    pub(crate) fn new(secret: &HashKey, policy: &Policy) -> Self {
        let protection = &policy.protection;
        let keys = |kind: &str, name: &str, by: &[Part]| {
            let texts = ["tidegate: counts", &policy.name, kind, name];
            LimitKeys::of_counts(secret, &texts, by, policy)
        };
        let penalties = protection.penalties.iter();
        let refusing = penalties.clone().enumerate().filter(|(_, one)| one.may_refuse(policy));
        let ratios = protection.ratios.iter().map(|ratio| RatioKeys {
            sums: ["of", "to", "number"].map(|kind| keys(kind, &ratio.name, &ratio.by)),
            once: keys("ratio", &ratio.name, &ratio.by),
        });
        let factors = protection.factors.iter().map(|factor| {
            let (scope, name) = (Some(&*policy.name), Some(&*factor.name));
            ActiveFactor {
                marks: MarkKeys::new(secret, MarkKind::Factor, scope, name, factor.by(), policy),
                step: keys("factor", &factor.name, factor.by()),
                is_tripped: AtomicBool::new(false),
            }
        });
        Self {
            penalties: penalties.map(|one| LadderKeys::new(secret, policy, one)).collect(),
            ratios: ratios.collect(),
            factors: factors.collect(),
            bans: BanLookups::new(secret, policy),
            refusing: refusing.map(|(index, _)| index).collect(),
            secret: secret.clone(),
            outcomes: counted_outcomes(protection),
            sees_answers: protection.events.iter().any(|event| !event.statuses.is_empty()),
        }
    }

    /// The families of all counts and steps.
    pub(crate) fn families(&self) -> impl Iterator<Item = u64> {
        let ratios = self.ratios.iter().flat_map(|keys| keys.sums.iter().chain([&keys.once]));
        let factors = self.factors.iter().map(|keys| &keys.step);
        let others = ratios.chain(factors).map(|keys| keys.family);
        self.penalties.iter().flat_map(LadderKeys::families).chain(others)
    }

    /// True if a decision of this outcome makes an event that is counted.
    pub(crate) const fn counts(&self, outcome: Outcome) -> bool {
        self.outcomes >> outcome.index() & 1 == 1
    }

    /// True if any decision makes an event that is counted.
    pub(crate) const fn counts_any(&self) -> bool {
        self.outcomes != 0
    }

    /// Takes the state of the load factors over from the policy before a reload.
    pub(crate) fn keep_tripped(&self, policy: &Policy, before: &Self, policy_before: &Policy) {
        for (factor, active) in policy.protection.factors.iter().zip(&self.factors) {
            let mut all_before = policy_before.protection.factors.iter().zip(&before.factors);
            if let Some((_, before)) = all_before.find(|(before, _)| before.name == factor.name) {
                active
                    .is_tripped
                    .store(before.is_tripped.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    }

    /// Sets the load, in millionths: strictly above trips a factor, ten points lower ends it.
    pub(crate) fn set_load(&self, policy: &Policy, load_ppm: u64) {
        for (factor, active) in policy.protection.factors.iter().zip(&self.factors) {
            if let FactorKind::Load { above_ppm, .. } = factor.kind {
                if load_ppm > above_ppm {
                    active.is_tripped.store(true, Ordering::Relaxed);
                } else if load_ppm.saturating_add(LOAD_LOWER_PPM) <= above_ppm {
                    active.is_tripped.store(false, Ordering::Relaxed);
                }
            }
        }
    }
}

/// The outcomes that make events: those of the policy's own events, and of the built-in ones that it
/// counts.
fn counted_outcomes(protection: &Protection) -> u8 {
    let counted = protection.penalties.iter().flat_map(|one| one.events.iter().chain(&one.forgive));
    let summed = protection.ratios.iter().flat_map(|one| [&one.of, &one.to]);
    let used = counted.chain(summed).filter_map(|id| protection.events.get(usize::from(*id)));
    let own = protection.events.iter().skip(BUILT_IN_EVENTS.len());
    let outcomes = own.chain(used).filter_map(|event| event.outcome);
    outcomes.fold(0, |bits, outcome| bits | 1 << outcome.index())
}
