//! What steps of ladders do once in a run of their count, however that came about: whether it has been
//! done is a place in the store, held while the count stays there. So a step that nobody took when it
//! was reached is taken late, and none is taken twice. A reply of the store may have been lost, debts of
//! a node merged, or a step moved below the count by another policy.

mod known;

use crate::algorithm::{Spec, concurrency};
use crate::context::Context;
use crate::key::{HashKey, LimitKeys, counted_name};
use crate::plan::Level;
use crate::policy::Policy;
use crate::policy::protection::{Penalty, Step};
use crate::protection::counts::Named;
use crate::store::{Amendment, Change};
use crate::units::{Amount, SECOND_US};
pub(crate) use known::{Due, Known};

/// All who hold the place of a step are one: whoever comes along keeps it.
pub(crate) const HOLDER: u64 = 1;
/// How long a step is left to the one who reached it: until then it was said to be taken.
const LATE_US: u64 = 5 * SECOND_US;
/// How often in the span of a penalty a node says again that a step is taken.
const SAID_PER_SPAN: u64 = 8;

/// What the keys of a ladder begin with.
#[derive(Debug)]
pub(crate) struct LadderKeys {
    pub(crate) count: LimitKeys,
    /// Of the steps that do something once, rising.
    pub(crate) steps: Vec<StepKeys>,
}

/// What the keys of a step begin with.
#[derive(Debug)]
pub(crate) struct StepKeys {
    /// Its place in the ladder.
    pub(crate) step: usize,
    /// What says that it is taken.
    taken: LimitKeys,
    /// What lets one node alone tell of it, where that is all that it does.
    pub(crate) told: Option<LimitKeys>,
}

/// How long is how long for a penalty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spans {
    within_us: u64,
}

impl LadderKeys {
    pub(crate) fn new(secret: &HashKey, policy: &Policy, penalty: &Penalty) -> Self {
        let keys = |kind: &str, what: &str| {
            let texts = ["tidegate: counts", &policy.name, kind, &penalty.name, what];
            LimitKeys::of_counts(secret, &texts, &penalty.by, policy)
        };
        let texts = ["tidegate: counts", &policy.name, "penalty", &penalty.name];
        let count = LimitKeys::of_counts(secret, &texts, &penalty.by, policy);
        let family = keys("steps", "").family;
        let (mut steps, mut before): (Vec<StepKeys>, Vec<String>) = (Vec::new(), Vec::new());
        for (step, written) in penalty.ladder.iter().enumerate() {
            let Some(deed) = deed(written) else { continue };
            // Of steps that do the same, which one.
            let what = format!("{deed} {}", before.iter().filter(|other| **other == deed).count());
            before.push(deed);
            let told = written.only_notifies().then(|| keys("told", &what).in_family(family));
            steps.push(StepKeys { step, taken: keys("taken", &what).in_family(family), told });
        }
        Self { count, steps }
    }

    /// What shares the store's memory.
    pub(crate) fn families(&self) -> impl Iterator<Item = u64> {
        // All of its steps are one family.
        let steps = self.steps.first().map(|keys| keys.taken.family);
        [self.count.family].into_iter().chain(steps)
    }
}

impl StepKeys {
    /// The place that says of the subject of a request that the step is taken.
    pub(crate) fn place(
        &self,
        penalty: &Penalty,
        context: &Context<'_>,
        named: bool,
    ) -> Option<Named> {
        let key = self.taken.key_by(&penalty.by, context)?;
        let lease_us = Spans::of(penalty).lasts_us();
        let spec = Spec::Concurrency(concurrency::Spec { places: Amount::ONE, lease_us });
        let level = Level { cost: Amount::ONE, ..Level::of_key(self.taken.family, key, spec) };
        let name = named.then(|| counted_name(&format!("{}:taken", penalty.name), key));
        Some((level, name))
    }
}

/// Keeps the place of a step that is taken, if it is.
pub(crate) fn kept((level, name): &Named) -> Amendment {
    let (level, name) = (*level, name.clone());
    Amendment { level, name, charged_at_us: 0, holder: HOLDER, change: Change::Renew }
}

impl Spans {
    pub(crate) const fn of(penalty: &Penalty) -> Self {
        Self { within_us: penalty.within_us }
    }

    /// A node that knows a step to be taken says so again after so long.
    pub(crate) const fn said_us(self) -> u64 {
        self.within_us / SAID_PER_SPAN
    }

    /// For as long the place of a step is held. While a count is there, an event is never further from
    /// the next than the span; and whoever saw it has said so at most an eighth of it before.
    pub(crate) const fn lasts_us(self) -> u64 {
        let lasts_us = self.within_us.saturating_add(2 * self.said_us());
        if lasts_us == 0 { 1 } else { lasts_us }
    }

    /// So long after a count was first seen above a step that nobody took, it is taken.
    pub(crate) const fn late_us(self) -> u64 {
        let quarter_us = self.within_us / 4;
        if quarter_us < LATE_US { quarter_us } else { LATE_US }
    }
}

impl Step {
    /// Whether all that it does once is to tell somebody.
    pub(crate) fn only_notifies(&self) -> bool {
        self.ban.is_none() && self.flag.is_none() && !self.notify.is_empty()
    }
}

/// What a step does once, whatever count it is at: it may be moved, and is still the same.
fn deed(step: &Step) -> Option<String> {
    match (&step.ban, &step.flag) {
        (Some(ban), _) => Some(format!("ban {} {:?}", ban.for_us, ban.by)),
        (None, Some(flag)) => Some(format!("flag {flag}")),
        (None, None) => step.only_notifies().then(|| "notice".to_owned()),
    }
}

#[cfg(test)]
mod tests;
