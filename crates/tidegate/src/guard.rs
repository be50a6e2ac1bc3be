//! What a policy in force needs to protect: the keys of its counts and marks, and which of its load
//! factors hold.

use std::sync::atomic::{AtomicBool, Ordering};

use siphasher::sip128::SipHasher24;

use crate::clock::Now;
use crate::facts::Facts;
use crate::identity::canonical;
use crate::key::{HashKey, LimitKeys};
use crate::marks::{self, Mark, MarkKind, Marks, Shape};
use crate::policy::Policy;
use crate::policy::model::Part;
use crate::policy::protection::{Factor, FactorKind, LOAD_LOWER_PPM, Step};
use crate::steps::LadderKeys;

/// The parts of a policy in force that protect.
#[derive(Debug)]
pub(crate) struct Guard {
    /// By the place of the penalty.
    pub(crate) penalties: Vec<LadderKeys>,
    /// By the place of the ratio.
    pub(crate) ratios: Vec<RatioKeys>,
    /// By the place of the factor.
    pub(crate) factors: Vec<FactorKeys>,
    bans: BanKeys,
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
    /// What the keys of its marks begin with.
    pub(crate) marks: SipHasher24,
    /// What lets one node alone take a step.
    pub(crate) step: LimitKeys,
    /// Whether a load has tripped it.
    pub(crate) tripped: AtomicBool,
}

/// How bans of a request are found.
#[derive(Debug)]
struct BanKeys {
    /// What the keys begin with: of this policy, and of all.
    prefixes: [SipHasher24; 2],
    /// The keys of penalties that ban, where they are no single identity.
    shapes: Vec<Vec<Part>>,
}

impl Guard {
    pub(crate) fn new(secret: &HashKey, policy: &Policy) -> Self {
        let protection = &policy.protection;
        let keys = |kind: &str, name: &str, by: &[Part]| {
            let texts = ["tidegate: counts", &policy.name, kind, name];
            LimitKeys::of_counts(secret, &texts, by, policy)
        };
        let factor = |factor: &Factor| {
            let by = behaviour_by(factor);
            let name = Some(&*factor.name);
            FactorKeys {
                marks: marks::prefix(secret, MarkKind::Factor, Some(&policy.name), name),
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
            bans: BanKeys::new(secret, policy),
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

    /// The ban of a request, of several the one that ends last.
    pub(crate) fn ban(&self, marks: &Marks, facts: &Facts<'_>, now: Now) -> Option<Mark> {
        if !marks.has_bans() {
            return None;
        }
        marks.sweep_bans(now);
        self.bans.find(marks, facts, now)
    }

    /// The keys of bans that are no single identity.
    pub(crate) fn ban_keys(&self) -> impl Iterator<Item = &[Part]> {
        self.bans.shapes.iter().map(Vec::as_slice)
    }

    /// Whether bans by these parts touch requests of this policy.
    pub(crate) fn finds(&self, names: &[&str], policy: &Policy) -> bool {
        matches!(names, ["user" | "client" | "ip" | "network"])
            || self.bans.shapes.iter().any(|by| {
                by.len() == names.len()
                    && by.iter().zip(names).all(|(part, name)| part.name(policy) == *name)
            })
    }

    /// Bans by what penalties banned by before a reload bind still, as long as there are any: by
    /// attributes that this policy has too.
    pub(crate) fn keep_shapes(&mut self, policy: &Policy, before: &Self, policy_before: &Policy) {
        let same = |part: &Part| match part {
            Part::Attribute(_) => {
                let id = policy.attribute_names.id(&part.name(policy_before))?;
                Some(Part::Attribute(id))
            }
            Part::Row { .. } => None,
            other => Some(other.clone()),
        };
        for by in &before.bans.shapes {
            let by: Option<Vec<Part>> = by.iter().map(same).collect();
            if let Some(by) = by.filter(|by| !self.bans.shapes.contains(by)) {
                self.bans.shapes.push(by);
            }
        }
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

impl BanKeys {
    fn new(secret: &HashKey, policy: &Policy) -> Self {
        let prefix = |policy| marks::prefix(secret, MarkKind::Ban, policy, None);
        let bans = |step: &Step| step.ban.as_ref().is_some_and(|ban| ban.by.is_none());
        let protection = &policy.protection;
        let penalties = protection.penalties.iter().filter(|one| one.ladder.iter().any(bans));
        let ratios = protection.ratios.iter().filter(|one| one.then.as_ref().is_some_and(bans));
        let mut shapes: Vec<Vec<Part>> = Vec::new();
        for by in penalties.map(|one| &one.by).chain(ratios.map(|one| &one.by)) {
            if Shape::of(by) == Shape::Other && !shapes.contains(by) {
                shapes.push(by.clone());
            }
        }
        Self { prefixes: [prefix(Some(&policy.name)), prefix(None)], shapes }
    }

    fn find(&self, marks: &Marks, facts: &Facts<'_>, now: Now) -> Option<Mark> {
        let mut longest: Option<Mark> = None;
        let mut look = |key| {
            let found = marks.get(MarkKind::Ban, key, now);
            let until = |mark: &Mark| mark.until_unix_us.unwrap_or(u64::MAX);
            if let Some(found) = found
                && longest.as_ref().is_none_or(|known| until(&found) > until(known))
            {
                longest = Some(found);
            }
        };
        let scopes = |shape| self.prefixes.iter().zip(marks.has_shape(shape));
        for by in [&[Part::User], &[Part::Client], &[Part::Ip]] {
            for (prefix, _) in scopes(Shape::of(by)).filter(|(_, used)| *used) {
                marks::key_of(*prefix, by, facts).into_iter().for_each(&mut look);
            }
        }
        for (prefix, _) in scopes(Shape::Other).filter(|(_, used)| *used) {
            let keys = self.shapes.iter().filter_map(|by| marks::key_of(*prefix, by, facts));
            keys.for_each(&mut look);
        }
        if let Some(ip) = facts.address.map(canonical) {
            for (prefix, _) in scopes(Shape::Network).filter(|(_, used)| *used) {
                marks.prefixes(ip).for_each(|bits| look(marks::network_key(*prefix, ip, bits)));
            }
        }
        longest
    }
}

/// By what a factor follows behaviour; nothing for others.
pub(crate) fn behaviour_by(factor: &Factor) -> &[Part] {
    match &factor.kind {
        FactorKind::Behaviour(behaviour) => &behaviour.by,
        FactorKind::Fixed { .. } | FactorKind::Load { .. } => &[],
    }
}
