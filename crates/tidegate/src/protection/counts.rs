//! Event counts: the events of a request as levels of the store, one for each penalty that counts an
//! event and three for each ratio. These levels never refuse a request.
//!
//! A penalty's count is what a sliding window has used. The window holds as many events as the highest
//! step of the ladder needs; if there are more, the latest ones count.

use std::sync::Arc;

use crate::algorithm::{Spec, Verdict, sliding_counter, sliding_window};
use crate::clock::{Now, micros};
use crate::context::Context;
use crate::identity::attribute::AttributeValue;
use crate::key::{LimitKeys, counted_name, penalty_name};
use crate::plan::Level;
use crate::policy::model::Part;
use crate::policy::protection::{EventId, FactorKind, Penalty, Ratio};
use crate::protection::active::RatioKeys;
use crate::protection::events::Events;
use crate::protection::ladder::LadderKeys;
use crate::request::RequestError;
use crate::store::{Amendment, Change, Reply};
use crate::units::Amount;

/// A level, and the name of its key in a store that has names.
pub(crate) type NamedLevel = (Level, Option<Arc<str>>);

/// A sum of at least this much means nothing. It is half of what a level holds, so that whatever is
/// added to a smaller sum fits.
const SUM_MAX: Amount = match Amount::from_micros(Amount::MAX.micros() / 2) {
    Some(half) => half,
    None => Amount::MAX,
};

/// The levels that the events of one request charge or reset.
#[derive(Debug, Default)]
pub(crate) struct EventCounts<'p> {
    pub(super) penalties: Vec<PenaltyCount<'p>>,
    pub(super) ratios: Vec<RatioSums<'p>>,
    /// The counts that an event forgives.
    pub(super) forgiven: Vec<PenaltyCount<'p>>,
    /// The error of a value that cannot be read. Its ratio is left out.
    pub(super) value_error: Option<RequestError>,
}

/// The event count of one penalty.
#[derive(Debug)]
pub(crate) struct PenaltyCount<'p> {
    pub(super) penalty: &'p Penalty,
    pub(super) keys: &'p LadderKeys,
    pub(super) level: NamedLevel,
}

/// The sums of one ratio: of both events, and the number of the second.
#[derive(Debug)]
pub(crate) struct RatioSums<'p> {
    pub(super) index: usize,
    pub(super) ratio: &'p Ratio,
    pub(super) keys: &'p RatioKeys,
    /// False if only a factor needs the ratio: none of the ratio's own events happened.
    pub(super) has_event: bool,
    pub(super) levels: [NamedLevel; 3],
}

/// Makes levels for the subjects of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LevelBuilder<'p> {
    pub(crate) context: &'p Context<'p>,
    pub(crate) has_names: bool,
}

/// What the store replied to a count.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountReply {
    pub(super) reply: Reply,
    /// The store's time.
    pub(super) now: Now,
}

/// What a ratio comes to.
#[derive(Clone, Copy, Debug)]
pub(super) struct RatioShare {
    pub(super) of: Amount,
    pub(super) to: Amount,
    /// How many events of the second kind there are.
    pub(super) events: u64,
}

impl<'p> EventCounts<'p> {
    /// `value` is the value that an application reported.
    pub(super) fn new(builder: LevelBuilder<'p>, events: &Events, value: Option<Amount>) -> Self {
        let mut counts = Self::default();
        counts.add_penalties(builder, events);
        counts.add_ratios(builder, events, value);
        counts
    }

    pub(super) fn is_empty(&self) -> bool {
        self.penalties.is_empty() && self.ratios.is_empty() && self.forgiven.is_empty()
    }

    /// The levels to charge: those of the penalties, then three for each ratio.
    pub(super) fn levels(&self) -> Vec<NamedLevel> {
        let penalties = self.penalties.iter().map(|count| &count.level);
        penalties.chain(self.ratios.iter().flat_map(|sums| &sums.levels)).cloned().collect()
    }

    fn add_penalties(&mut self, builder: LevelBuilder<'p>, events: &Events) {
        let active = &builder.context.active;
        let penalties = &active.policy.protection.penalties;
        for (penalty, keys) in penalties.iter().zip(&active.protection.penalties) {
            let forgives = penalty.forgive.iter().any(|id| events.contains(id));
            if !forgives && !penalty.events.iter().any(|id| events.contains(id)) {
                continue;
            }
            let (is_counted, cost) = match forgives {
                // Nobody forgives a count that strangers share: an attacker could, at will.
                true => (penalty.by.iter().all(|part| builder.context.has(part)), Amount::ZERO),
                false => (penalty.counts(builder.context), Amount::ONE),
            };
            if is_counted {
                let level = builder.penalty_level(penalty, &keys.count, cost);
                let counts = if forgives { &mut self.forgiven } else { &mut self.penalties };
                counts.push(PenaltyCount { penalty, keys, level });
            }
        }
    }

    fn add_ratios(&mut self, builder: LevelBuilder<'p>, events: &Events, value: Option<Amount>) {
        let active = &builder.context.active;
        let ratios = active.policy.protection.ratios.iter().zip(&active.protection.ratios);
        for (index, (ratio, keys)) in ratios.enumerate() {
            let has_subject = ratio.by.iter().all(|part| builder.context.distinguishes(part));
            if !has_subject || !needs_ratio(builder.context, events, index) {
                continue;
            }
            let sum = |id| event_value(builder.context, events, id, value);
            let number = if events.contains(&ratio.to) { Amount::ONE } else { Amount::ZERO };
            let (of, to) = match (sum(ratio.of), sum(ratio.to)) {
                (Ok(of), Ok(to)) => (of, to),
                (Err(error), _) | (_, Err(error)) => {
                    self.value_error.get_or_insert(error);
                    continue;
                }
            };
            let window_us = ratio.within_us;
            let counter = sliding_counter::Spec { limit: Amount::MAX, window_us };
            let level = |at: usize, suffix, cost: Amount| {
                let name = (&*ratio.name, suffix);
                let (spec, cost) = (Spec::SlidingCounter(counter), cost.min(SUM_MAX));
                builder.level(&keys.sums[at], &ratio.by, name, spec, cost)
            };
            let levels = [level(0, ":of", of), level(1, ":to", to), level(2, ":number", number)];
            let has_event = has_event(ratio, events);
            self.ratios.push(RatioSums { index, ratio, keys, has_event, levels });
        }
    }
}

fn has_event(ratio: &Ratio, events: &Events) -> bool {
    events.contains(&ratio.of) || events.contains(&ratio.to)
}

/// True if one of the ratio's events happened, or one of another ratio that a factor reads together with
/// it.
fn needs_ratio(context: &Context<'_>, events: &Events, index: usize) -> bool {
    let protection = &context.policy().protection;
    let has_event = |at: usize| protection.ratios.get(at).is_some_and(|one| has_event(one, events));
    let mut behaviours = protection.factors.iter().filter_map(|factor| match &factor.kind {
        FactorKind::Behaviour(behaviour) => Some(behaviour),
        FactorKind::Fixed { .. } | FactorKind::Load { .. } => None,
    });
    has_event(index)
        || behaviours.any(|behaviour| {
            behaviour.good.iter().any(|good| good.ratio == index)
                && behaviour.good.iter().any(|good| has_event(good.ratio))
        })
}

/// What an event adds to a sum: the reported value, else the event's attribute, else 1.
fn event_value(
    context: &Context<'_>,
    events: &Events,
    id: EventId,
    value: Option<Amount>,
) -> Result<Amount, RequestError> {
    if !events.contains(&id) {
        return Ok(Amount::ZERO);
    }
    let event = context.policy().protection.events.get(usize::from(id));
    let attribute = event.and_then(|event| event.value);
    let (None, Some(attribute)) = (value, attribute) else {
        return Ok(value.unwrap_or(Amount::ONE));
    };
    let error = |detail: &str| {
        let name = context.policy().attribute_names.name(attribute);
        RequestError::new(format!("attributes.{name}"), detail)
    };
    match context.find(attribute) {
        AttributeValue::Absent => Ok(Amount::ONE),
        AttributeValue::Text(text) => {
            Amount::parse(&text).map_err(|wrong| error(&wrong.to_string()))
        }
        AttributeValue::Unreadable(why) => Err(error(&format!("cannot be read: {why}"))),
    }
}

impl LevelBuilder<'_> {
    /// The level that counts the events of a penalty.
    pub(crate) fn penalty_level(
        self,
        penalty: &Penalty,
        keys: &LimitKeys,
        cost: Amount,
    ) -> NamedLevel {
        let key = keys.key_by(&penalty.by, self.context);
        let limit = Amount::from_units(penalty.highest().into()).unwrap_or(Amount::MAX);
        let window = sliding_window::Spec { limit, window_us: penalty.within_us };
        let level = Level::of_key(keys.family, key, Spec::SlidingWindow(window));
        let secret = &self.context.active.protection.secret;
        let name = self.has_names.then(|| penalty_name(secret, penalty, self.context, key));
        (Level { cost, ..level }, name)
    }

    /// The level of the request's subject by these parts. The name is in two halves.
    pub(super) fn level(
        self,
        keys: &LimitKeys,
        by: &[Part],
        (name, suffix): (&str, &str),
        spec: Spec,
        cost: Amount,
    ) -> NamedLevel {
        let key = keys.key_by(by, self.context);
        let name = self.has_names.then(|| counted_name(&format!("{name}{suffix}"), key));
        (Level { cost, ..Level::of_key(keys.family, key, spec) }, name)
    }

    /// A level that only one node can charge within a span.
    pub(super) fn once(
        self,
        keys: &LimitKeys,
        by: &[Part],
        name: &str,
        within_us: u64,
    ) -> NamedLevel {
        let spec = sliding_window::Spec { limit: Amount::ONE, window_us: within_us.max(1) };
        self.level(keys, by, (name, ":once"), Spec::SlidingWindow(spec), Amount::ONE)
    }
}

/// What a level has used, this request included.
fn used(level: &NamedLevel, reply: &CountReply) -> Amount {
    level.0.spec.capacity().saturating_sub(reply.reply.reading.available)
}

impl PenaltyCount<'_> {
    /// How many events there are, at most what the highest step needs.
    pub(super) fn events(&self, reply: &CountReply) -> u64 {
        used(&self.level, reply).whole()
    }

    /// If the count is full, replaces the oldest event by this one.
    pub(super) fn make_room(&self, reply: &CountReply) -> Option<[Amendment; 2]> {
        let (level, _) = &self.level;
        let (Spec::SlidingWindow(spec), Verdict::Denied { retry_after: Some(wait) }) =
            (level.spec, reply.reply.verdict)
        else {
            return None;
        };
        let now_us = level.time_us(reply.now);
        // The wait ends when the oldest event is one window old.
        let oldest_us = now_us.saturating_add(micros(wait)).saturating_sub(spec.window_us);
        let debit = amendment(&self.level, Change::Debit(Amount::ONE));
        let refund = amendment(&self.level, Change::Refund(Amount::ONE));
        Some([debit, Amendment { charged_at_us: oldest_us, ..refund }])
    }
}

impl RatioSums<'_> {
    /// The share; `None` if a sum is full, because the events that it left out would bend the share.
    pub(super) fn share(&self, replies: &[CountReply]) -> Option<RatioShare> {
        let sum = |at: usize| {
            let used = used(&self.levels[at], replies.get(at)?);
            (used < SUM_MAX).then_some(used)
        };
        Some(RatioShare { of: sum(0)?, to: sum(1)?, events: sum(2)?.whole() })
    }
}

pub(super) fn amendment((level, name): &NamedLevel, change: Change) -> Amendment {
    Amendment { level: *level, name: name.clone(), charged_at_us: 0, holder: 0, change }
}

#[cfg(test)]
mod tests;
