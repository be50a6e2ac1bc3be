//! What events ask of the store: the counts of penalties and the sums of ratios, as levels that never
//! refuse anybody, and what is forgiven.
//!
//! A count is what a sliding window has used. It holds as many events as the highest step of the
//! ladder asks for; where there are more, the latest ones count.

use std::sync::Arc;

use crate::algorithm::{Spec, Verdict, sliding_counter, sliding_window};
use crate::context::Context;
use crate::identity::attribute::Found;
use crate::key::{Key, LimitKeys, counted_name};
use crate::plan::Level;
use crate::policy::model::Part;
use crate::policy::protection::{Comparison, Event, EventId, FactorKind, Penalty, Ratio};
use crate::protection::events::Events;
use crate::request::RequestError;
use crate::store::{Amendment, Answer, Change, Reply};
use crate::units::Amount;

/// A level, and what its key is called.
pub(crate) type Named = (Level, Option<Arc<str>>);

/// What the events of one request ask of the store.
#[derive(Debug, Default)]
pub(crate) struct EventCounts {
    /// The penalties that count, each with a level; then three levels for each ratio.
    pub(crate) penalties: Vec<usize>,
    pub(crate) ratios: Vec<Looked>,
    pub(crate) levels: Vec<Named>,
    /// The penalties that forgive, and their counts.
    pub(crate) forgiving: Vec<usize>,
    pub(crate) forgiven: Vec<Named>,
    /// What is wrong with a value, so that its ratio is left out.
    pub(crate) unread: Option<RequestError>,
}

/// A ratio that is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looked {
    pub(crate) ratio: usize,
    /// Whether one of its own events happened; it is looked at for a factor alone otherwise.
    pub(crate) touched: bool,
}

/// What the store said of a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    /// How many events there are, this one included; at most what the highest step asks for.
    pub(crate) events: u64,
    /// Whether this event made it so many: of all who count, one alone is told so.
    pub(crate) rose: bool,
}

/// What a ratio comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) of: Amount,
    pub(crate) to: Amount,
    /// How many events of the second kind there are.
    pub(crate) number: u64,
}

/// Makes levels of a request.
struct Teller<'t> {
    context: &'t Context<'t>,
    events: &'t Events,
    value: Option<Amount>,
    named: bool,
}

impl EventCounts {
    /// Of the events of a request, with the value that was reported.
    pub(crate) fn of(
        context: &Context<'_>,
        events: &Events,
        value: Option<Amount>,
        named: bool,
    ) -> Self {
        let teller = Teller { context, events, value, named };
        let mut tally = Self::default();
        teller.penalties(&mut tally);
        teller.ratios(&mut tally);
        tally
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.levels.is_empty() && self.forgiven.is_empty()
    }
}

impl Teller<'_> {
    fn penalties(&self, tally: &mut EventCounts) {
        let (penalties, keys) =
            (&self.context.active.policy.protection.penalties, &self.context.active.guard);
        for (index, (penalty, keys)) in penalties.iter().zip(&keys.penalties).enumerate() {
            let forgives = self.has_any(&penalty.forgive);
            if !forgives && !self.has_any(&penalty.events) {
                continue;
            }
            // Whoever has no such key cannot be told from others: nobody answers for them.
            let keys = &keys.count;
            let Some(key) = keys.key_by(&penalty.by, self.context) else { continue };
            if forgives {
                tally.forgiving.push(index);
                tally.forgiven.push(self.level(
                    keys,
                    key,
                    &penalty.name,
                    spec(penalty),
                    Amount::ZERO,
                ));
            } else {
                tally.levels.push(self.level(keys, key, &penalty.name, spec(penalty), Amount::ONE));
                tally.penalties.push(index);
            }
        }
    }

    fn ratios(&self, tally: &mut EventCounts) {
        let ratios = &self.context.active.policy.protection.ratios;
        for (index, (ratio, keys)) in
            ratios.iter().zip(&self.context.active.guard.ratios).enumerate()
        {
            if !self.concerns(index) {
                continue;
            }
            let [of, to, number] = &keys.sums;
            let subjects = [of, to, number].map(|keys| keys.key_by(&ratio.by, self.context));
            let [Some(of_key), Some(to_key), Some(number_key)] = subjects else { continue };
            let (of_value, to_value) = match (self.sum(ratio.of), self.sum(ratio.to)) {
                (Ok(of), Ok(to)) => (of, to),
                (Err(error), _) | (_, Err(error)) => {
                    tally.unread.get_or_insert(error);
                    continue;
                }
            };
            let number_value = if self.has(ratio.to) { Amount::ONE } else { Amount::ZERO };
            let spec = sums(ratio);
            for (keys, key, name, cost) in [
                (of, of_key, "of", of_value),
                (to, to_key, "to", to_value),
                (number, number_key, "number", number_value),
            ] {
                let name = format!("{}:{name}", ratio.name);
                tally.levels.push(self.level(keys, key, &name, spec, cost.min(full())));
            }
            let touched = self.has(ratio.of) || self.has(ratio.to);
            tally.ratios.push(Looked { ratio: index, touched });
        }
    }

    /// Whether a ratio is to be looked at: one of its events happened, or one of a ratio that a factor
    /// follows beside it.
    fn concerns(&self, index: usize) -> bool {
        let protection = &self.context.active.policy.protection;
        let touched = |index: usize| {
            let ratio = protection.ratios.get(index);
            ratio.is_some_and(|ratio| self.has(ratio.of) || self.has(ratio.to))
        };
        let followed = || {
            protection.factors.iter().any(|factor| match &factor.kind {
                FactorKind::Behaviour(behaviour) => {
                    let mut good = behaviour.good.iter();
                    behaviour.good.iter().any(|good| good.ratio == index)
                        && good.any(|good| touched(good.ratio))
                }
                FactorKind::Fixed { .. } | FactorKind::Load { .. } => false,
            })
        };
        touched(index) || followed()
    }

    /// What an event adds to a sum.
    fn sum(&self, id: EventId) -> Result<Amount, RequestError> {
        if !self.has(id) {
            return Ok(Amount::ZERO);
        }
        let event = self.context.active.policy.protection.events.get(usize::from(id));
        match (self.value, event.and_then(|event: &Event| event.value)) {
            (Some(value), _) => Ok(value),
            (None, None) => Ok(Amount::ONE),
            (None, Some(attribute)) => match self.context.find(attribute) {
                Found::Absent => Ok(Amount::ONE),
                Found::Value(text) => Amount::parse(&text).map_err(|error| {
                    let name = self.context.policy().attribute_names.name(attribute);
                    RequestError::new(format!("attributes.{name}"), error.to_string())
                }),
                Found::Unusable => {
                    let name = self.context.policy().attribute_names.name(attribute);
                    let detail = "expected a decimal number in a JSON body";
                    Err(RequestError::new(format!("attributes.{name}"), detail))
                }
            },
        }
    }

    fn level(&self, keys: &LimitKeys, key: Key, name: &str, spec: Spec, cost: Amount) -> Named {
        let level = Level { cost, ..Level::of_key(keys.family, key, spec) };
        (level, self.named.then(|| counted_name(name, key)))
    }

    fn has(&self, id: EventId) -> bool {
        self.events.contains(&id)
    }

    fn has_any(&self, ids: &[EventId]) -> bool {
        ids.iter().any(|id| self.has(*id))
    }
}

/// A level that only one node can charge within a span: what lets one alone act.
pub(crate) fn once(
    keys: &LimitKeys,
    by: &[Part],
    context: &Context<'_>,
    name: &str,
    within_us: u64,
    named: bool,
) -> Option<Named> {
    let key = keys.key_by(by, context)?;
    let spec = sliding_window::Spec { limit: Amount::ONE, window_us: within_us.max(1) };
    let spec = Spec::SlidingWindow(spec);
    let level = Level { cost: Amount::ONE, ..Level::of_key(keys.family, key, spec) };
    Some((level, named.then(|| counted_name(&format!("{name}:once"), key))))
}

impl Count {
    pub(crate) fn of(level: &Level, reply: &Reply) -> Self {
        let used = level.spec.capacity().saturating_sub(reply.reading.available);
        Self { events: used.whole(), rose: reply.charged }
    }
}

impl Share {
    /// `None` where a sum is full: what it has left out would bend the share.
    pub(crate) fn of(levels: &[Named], replies: &[Reply]) -> Option<Self> {
        let used = |at: usize| {
            let ((level, _), reply) = (levels.get(at)?, replies.get(at)?);
            let used = level.spec.capacity().saturating_sub(reply.reading.available);
            (used < full()).then_some(used)
        };
        Some(Self { of: used(0)?, to: used(1)?, number: used(2)?.whole() })
    }

    /// Whether there are enough events for it to mean anything.
    pub(crate) fn counts(&self, ratio: &Ratio) -> bool {
        self.number >= u64::from(ratio.at_least)
    }

    /// Strictly above a share.
    pub(crate) fn is_above(&self, ppm: u64) -> bool {
        Comparison::Above.holds(self.of, self.to, ppm)
    }
}

/// Makes room for the latest event where a count is full: it takes the place of the oldest.
pub(crate) fn shifted(named: &Named, reply: &Reply, answer: &Answer) -> Option<[Amendment; 2]> {
    let (level, name) = named;
    let (Spec::SlidingWindow(spec), Verdict::Denied { retry_after_us: Some(wait_us) }) =
        (level.spec, reply.verdict)
    else {
        return None;
    };
    let now_us = level.time_us(answer.now);
    // The wait ends when the oldest is one window old.
    let oldest_us = now_us.saturating_add(wait_us).saturating_sub(spec.window_us);
    let amend = |charged_at_us, change| Amendment {
        level: *level,
        name: name.clone(),
        charged_at_us,
        holder: 0,
        change,
    };
    Some([amend(0, Change::Debit(Amount::ONE)), amend(oldest_us, Change::Refund(Amount::ONE))])
}

fn spec(penalty: &Penalty) -> Spec {
    let limit = Amount::from_units(penalty.highest().into()).unwrap_or(Amount::MAX);
    Spec::SlidingWindow(sliding_window::Spec { limit, window_us: penalty.within_us })
}

/// From where on a sum means nothing: half of what it holds, so that whatever comes to one that means
/// something fits.
fn full() -> Amount {
    Amount::from_micros(Amount::MAX.micros() / 2).unwrap_or(Amount::MAX)
}

/// More than anybody sums within the span.
fn sums(ratio: &Ratio) -> Spec {
    let (limit, window_us) = (Amount::MAX, ratio.within_us);
    Spec::SlidingCounter(sliding_counter::Spec { limit, window_us })
}

#[cfg(test)]
mod tests;
