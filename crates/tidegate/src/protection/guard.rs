//! What a policy in force needs to protect: the keys of its counts and marks, and which of its load
//! factors hold.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::clock::{Moment, Now};
use crate::context::Context;
use crate::identity::canonical;
use crate::key::{HashKey, LimitKeys};
use crate::policy::Policy;
use crate::policy::model::Part;
use crate::policy::protection::{Factor, FactorKind, LOAD_LOWER_PPM, Step};
use crate::protection::marks::{Mark, MarkKind, Marks, Shape, Sought, Used};
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
    /// What it is found by.
    pub(crate) marks: Sought,
    /// What lets one node alone take a step.
    pub(crate) step: LimitKeys,
    /// Whether a load has tripped it.
    pub(crate) tripped: AtomicBool,
}

/// How bans of a request are found.
#[derive(Debug)]
struct BanKeys {
    /// Of users, clients, addresses and networks: in this policy, and in all.
    single: [[Sought; 2]; Shape::COUNT - 1],
    /// By the keys of penalties that ban, where they are no single identity.
    others: Vec<[Sought; 2]>,
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
            let (scope, name) = (Some(&*policy.name), Some(&*factor.name));
            FactorKeys {
                marks: Sought::new(secret, MarkKind::Factor, scope, name, by, policy),
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
    #[inline]
    pub(crate) fn ban(
        &self,
        marks: &Marks,
        context: &Context<'_>,
        moment: &Moment<'_>,
    ) -> Option<Mark> {
        let used = marks.bans();
        if used.is_none() { None } else { self.ban_among(used, marks, context, moment.now()) }
    }

    fn ban_among(
        &self,
        used: Used,
        marks: &Marks,
        context: &Context<'_>,
        now: Now,
    ) -> Option<Mark> {
        marks.sweep_bans(now);
        // Nearly everybody who is not banned is known to be so here.
        let may_find = self.bans.may_find(used, marks, context);
        may_find.then(|| self.bans.find(used, marks, context, now)).flatten()
    }

    /// The keys of bans that are no single identity.
    pub(crate) fn ban_keys(&self) -> impl Iterator<Item = &[Part]> {
        self.bans.others.iter().map(|[sought, _]| &*sought.by)
    }

    /// Whether bans by these parts touch requests of this policy.
    pub(crate) fn finds(&self, names: &[&str], policy: &Policy) -> bool {
        matches!(names, ["user" | "client" | "ip" | "network"])
            || self.ban_keys().any(|by| {
                by.len() == names.len()
                    && by.iter().zip(names).all(|(part, name)| part.name(policy) == *name)
            })
    }

    /// Bans by what penalties banned by before a reload bind still, as long as there are any: by
    /// attributes that this policy has too.
    pub(crate) fn keep_shapes(
        &mut self,
        secret: &HashKey,
        policy: &Policy,
        before: &Self,
        policy_before: &Policy,
    ) {
        let same = |part: &Part| match part {
            Part::Attribute(_) => {
                let id = policy.attribute_names.id(&part.name(policy_before))?;
                Some(Part::Attribute(id))
            }
            Part::Row { .. } => None,
            other => Some(other.clone()),
        };
        for by in before.ban_keys() {
            let by: Option<Vec<Part>> = by.iter().map(same).collect();
            if let Some(by) = by.filter(|by| self.ban_keys().all(|known| known != by)) {
                self.bans.others.push(in_both_scopes(secret, &by, policy));
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
        let bans = |step: &Step| step.ban.as_ref().is_some_and(|ban| ban.by.is_none());
        let protection = &policy.protection;
        let penalties = protection.penalties.iter().filter(|one| one.ladder.iter().any(bans));
        let ratios = protection.ratios.iter().filter(|one| one.then.as_ref().is_some_and(bans));
        let mut shapes: Vec<&[Part]> = Vec::new();
        for by in penalties.map(|one| &*one.by).chain(ratios.map(|one| &*one.by)) {
            if Shape::of(by) == Shape::Other && !shapes.contains(&by) {
                shapes.push(by);
            }
        }
        let both = |by: &[Part]| in_both_scopes(secret, by, policy);
        let networks = [Some(&*policy.name), None].map(|scope| Sought::networks(secret, scope));
        Self {
            single: [both(&[Part::User]), both(&[Part::Client]), both(&[Part::Ip]), networks],
            others: shapes.into_iter().map(both).collect(),
        }
    }

    fn may_find(&self, used: Used, marks: &Marks, context: &Context<'_>) -> bool {
        used.iter().any(|(shape, scope)| match shape {
            Shape::Other => self.others.iter().any(|by| marks.may_have(&by[scope], context)),
            Shape::Network => context.address.is_some_and(|ip| {
                marks.may_have_network(&self.single[shape as usize][scope], canonical(ip))
            }),
            Shape::User | Shape::Client | Shape::Ip => {
                marks.may_have(&self.single[shape as usize][scope], context)
            }
        })
    }

    fn find(&self, used: Used, marks: &Marks, context: &Context<'_>, now: Now) -> Option<Mark> {
        let mut longest: Option<Mark> = None;
        let mut look = |found: Mark| {
            let until = |mark: &Mark| mark.until_unix_us.unwrap_or(u64::MAX);
            if longest.as_ref().is_none_or(|known| until(&found) > until(known)) {
                longest = Some(found);
            }
        };
        for (shape, scope) in used.iter() {
            match (shape, context.address) {
                (Shape::Other, _) => {
                    let found = self.others.iter();
                    found.filter_map(|by| marks.find(&by[scope], context, now)).for_each(&mut look);
                }
                (Shape::Network, None) => {}
                (Shape::Network, Some(ip)) => {
                    let sought = &self.single[shape as usize][scope];
                    marks.find_networks(sought, canonical(ip), now).for_each(&mut look);
                }
                (Shape::User | Shape::Client | Shape::Ip, _) => {
                    let sought = &self.single[shape as usize][scope];
                    marks.find(sought, context, now).into_iter().for_each(&mut look);
                }
            }
        }
        longest
    }
}

/// Bans by these parts: in a policy, and in all.
fn in_both_scopes(secret: &HashKey, by: &[Part], policy: &Policy) -> [Sought; 2] {
    let sought = |scope| Sought::new(secret, MarkKind::Ban, scope, None, by, policy);
    [Some(&*policy.name), None].map(sought)
}

/// By what a factor follows behaviour; nothing for others.
pub(crate) fn behaviour_by(factor: &Factor) -> &[Part] {
    match &factor.kind {
        FactorKind::Behaviour(behaviour) => &behaviour.by,
        FactorKind::Fixed { .. } | FactorKind::Load { .. } => &[],
    }
}
