//! What a policy in force needs to protect: the keys of its counts and marks, and which of its load
//! factors hold.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::clock::Now;
use crate::context::Context;
use crate::key::{HashKey, LimitKeys};
use crate::policy::Policy;
use crate::policy::model::Part;
use crate::policy::protection::{Factor, FactorKind, LOAD_LOWER_PPM};
use crate::protection::bans::BanLookups;
use crate::protection::marks::{Mark, MarkKeys, MarkKind, Marks};
use crate::protection::steps::LadderKeys;

/// The parts of a policy in force that protect.
#[derive(Debug)]
pub(crate) struct Guard {
    /// By the place of the penalty.
    pub(crate) penalties: Vec<LadderKeys>,
    /// By the place of the ratio.
    pub(crate) ratios: Vec<RatioKeys>,
    /// By the place of the factor.
    pub(crate) factors: Vec<FactorKeys>,
    pub(crate) bans: BanLookups,
    /// The outcomes that make events, a bit each.
    outcomes: u8,
    /// Whether an event can be seen in an answer.
    pub(crate) sees_answers: bool,
}

/// What the keys of a ratio begin with.
#[derive(Debug)]
pub(crate) struct RatioKeys {
    /// The sums of both events, and how many there were of the second.
    pub(crate) sums: [LimitKeys; 3],
    /// What lets one node alone act on it.
    pub(crate) once: LimitKeys,
}

/// What a factor has beside what the policy says.
#[derive(Debug)]
pub(crate) struct FactorKeys {
    /// What it is found by.
    pub(crate) marks: MarkKeys,
    /// What lets one node alone take a step.
    pub(crate) step: LimitKeys,
    /// Whether a load has tripped it.
    pub(crate) tripped: AtomicBool,
}

impl Guard {
    pub(crate) fn new(secret: &HashKey, policy: &Policy) -> Self {
        let protection = &policy.protection;
        let keys = |kind: &str, name: &str, by: &[Part]| {
            let texts = ["tidegate: counts", &policy.name, kind, name];
            LimitKeys::of_counts(secret, &texts, by, policy)
        };
        let factor = |factor: &Factor| {
            let by = factor.by();
            let (scope, name) = (Some(&*policy.name), Some(&*factor.name));
            FactorKeys {
                marks: MarkKeys::new(secret, MarkKind::Factor, scope, name, by, policy),
                step: keys("factor", &factor.name, by),
                tripped: AtomicBool::new(false),
            }
        };
        let penalties = protection.penalties.iter();
        let ratios = protection.ratios.iter();
        let outcomes =
            protection.events.iter().skip(crate::policy::protection::BUILT_IN_EVENTS.len());
        let mut bits = outcomes
            .filter_map(|event| event.outcome)
            .fold(0, |bits, outcome| bits | 1 << outcome.index());
        let counted = penalties.clone().flat_map(|one| one.events.iter().chain(&one.forgive));
        let summed = ratios.clone().flat_map(|one| [&one.of, &one.to]);
        for id in counted.chain(summed) {
            let event = protection.events.get(usize::from(*id));
            bits |= event.and_then(|event| event.outcome).map_or(0, |outcome| 1 << outcome.index());
        }
        Self {
            penalties: penalties.map(|one| LadderKeys::new(secret, policy, one)).collect(),
            ratios: ratios
                .map(|one| RatioKeys {
                    sums: ["of", "to", "number"].map(|kind| keys(kind, &one.name, &one.by)),
                    once: keys("ratio", &one.name, &one.by),
                })
                .collect(),
            factors: protection.factors.iter().map(factor).collect(),
            bans: BanLookups::new(secret, policy),
            outcomes: bits,
            sees_answers: protection.events.iter().any(|event| !event.statuses.is_empty()),
        }
    }

    /// What shares the store's memory.
    pub(crate) fn families(&self) -> impl Iterator<Item = u64> {
        let ratios = self.ratios.iter().flat_map(|keys| keys.sums.iter().chain([&keys.once]));
        let factors = self.factors.iter().map(|keys| &keys.step);
        let others = ratios.chain(factors).map(|keys| keys.family);
        self.penalties.iter().flat_map(LadderKeys::families).chain(others)
    }

    /// Whether a decision of this outcome makes an event that somebody counts.
    pub(crate) const fn counts(&self, outcome: crate::decision::Outcome) -> bool {
        self.outcomes >> outcome.index() & 1 == 1
    }

    /// Whether any decision does.
    pub(crate) const fn counts_any(&self) -> bool {
        self.outcomes != 0
    }

    /// The ban of a request; of several, the one that ends last.
    #[inline]
    pub(crate) fn ban(&self, marks: &Marks, context: &Context<'_>, now: Now) -> Option<Mark> {
        self.bans.find(marks, context, now)
    }

    /// Load factors that had tripped before a reload have still.
    pub(crate) fn keep_tripped(&self, policy: &Policy, before: &Self, policy_before: &Policy) {
        for (factor, keys) in policy.protection.factors.iter().zip(&self.factors) {
            let mut known = policy_before.protection.factors.iter().zip(&before.factors);
            if let Some((_, known)) = known.find(|(known, _)| known.name == factor.name) {
                keys.tripped.store(known.tripped.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    }

    /// Tells the load, in millionths: strictly above trips a factor, ten points lower ends it.
    pub(crate) fn load(&self, policy: &Policy, load_ppm: u64) {
        for (factor, keys) in policy.protection.factors.iter().zip(&self.factors) {
            if let FactorKind::Load { above_ppm, .. } = factor.kind {
                if load_ppm > above_ppm {
                    keys.tripped.store(true, Ordering::Relaxed);
                } else if load_ppm.saturating_add(LOAD_LOWER_PPM) <= above_ppm {
                    keys.tripped.store(false, Ordering::Relaxed);
                }
            }
        }
    }
}
