//! What penalties, ratios and factors need of a surface: that it makes their events, and knows whom
//! they are about.

use super::{Need, distinct};
use crate::policy::Policy;
use crate::policy::model::Part;
use crate::policy::protection::{
    BUILT_IN_EVENTS, EventId, Factor, FactorKind, Penalty, Ratio, Step,
};

/// A penalty, ratio or factor, and what it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Protecting<'p> {
    /// `penalty`, `ratio` or `factor`.
    pub kind: &'static str,
    /// Its name in the policy.
    pub name: &'p str,
    /// What it needs in each of the ways that it can work in: one of them is enough.
    pub ways: Vec<Vec<Need>>,
}

impl Policy {
    /// What a surface must provide for penalties, ratios and factors to work.
    pub fn protecting(&self) -> impl Iterator<Item = Protecting<'_>> {
        let penalty = |penalty| self.penalty(penalty);
        let penalties = self.protection.penalties.iter().map(penalty);
        let ratios = self.protection.ratios.iter().map(|ratio| self.ratio(ratio));
        let factors = self.protection.factors.iter().map(|factor| self.factor(factor));
        penalties.chain(ratios).chain(factors)
    }

    /// The events that an upstream's answer makes.
    pub fn events_of_answers(&self) -> impl Iterator<Item = &str> {
        let events = self.protection.events.iter().zip(self.protection.event_names.iter());
        events.filter(|(event, _)| !event.statuses.is_empty()).map(|(_, name)| name)
    }

    /// The penalties and ratios that hold answers back.
    pub fn delays(&self) -> impl Iterator<Item = &str> {
        let delays = |step: &Step| step.delay_us > 0;
        let penalties = self.protection.penalties.iter();
        let penalties = penalties.filter(move |one| one.ladder.iter().any(delays));
        let ratios = self.protection.ratios.iter();
        let ratios = ratios.filter(move |one| one.then.as_ref().is_some_and(delays));
        penalties.map(|one| &*one.name).chain(ratios.map(|one| &*one.name))
    }

    fn penalty<'p>(&'p self, penalty: &'p Penalty) -> Protecting<'p> {
        let needs = |id: &EventId| self.needs_of_event(*id, &penalty.by);
        let ways = penalty.events.iter().map(needs).collect();
        Protecting { kind: "penalty", name: &penalty.name, ways }
    }

    /// A share is of both.
    fn ratio<'p>(&'p self, ratio: &'p Ratio) -> Protecting<'p> {
        let needs = [ratio.of, ratio.to].into_iter();
        let needs = needs.flat_map(|id| self.needs_of_event(id, &ratio.by)).collect();
        Protecting { kind: "ratio", name: &ratio.name, ways: vec![distinct(needs)] }
    }

    fn factor<'p>(&'p self, factor: &'p Factor) -> Protecting<'p> {
        let mut needs = Vec::new();
        self.needs_of_condition(&factor.when, &mut needs);
        if let FactorKind::Behaviour(behaviour) = &factor.kind {
            let parts = behaviour.by.iter();
            needs.extend(parts.filter_map(|part| self.need_of(part, &factor.when, false)));
        }
        Protecting { kind: "factor", name: &factor.name, ways: vec![distinct(needs)] }
    }

    /// What it takes for an event to be counted by these parts.
    fn needs_of_event(&self, id: EventId, by: &[Part]) -> Vec<Need> {
        let Some(event) = self.protection.events.get(usize::from(id)) else { return Vec::new() };
        let is_made = usize::from(id) < BUILT_IN_EVENTS.len() || event.outcome.is_some();
        if !is_made && event.statuses.is_empty() {
            return vec![Need::Report(self.protection.event_names.name(id.into()).to_owned())];
        }
        let mut needs = Vec::new();
        self.needs_of_condition(&event.when, &mut needs);
        needs.extend(by.iter().filter_map(|part| self.need_of(part, &event.when, false)));
        needs.extend((!event.statuses.is_empty()).then_some(Need::Answer));
        distinct(needs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(rest: &str) -> Policy {
        let text = format!("tidegate: 1\nname: p\n{rest}");
        Policy::parse("p.yaml", &text).unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn needs(rest: &str) -> Vec<(&'static str, Vec<Vec<Need>>)> {
        policy(rest).protecting().map(|one| (one.kind, one.ways)).collect()
    }

    #[test]
    fn a_penalty_works_where_one_of_its_events_can_be_counted() {
        let rest = "
identity: { attributes: { room: given, email: { body: /email } } }
operations: { login: POST /login, send: {} }
limits: { a: { by: ip, total: 5 } }
events: { failed: { when: login, status: 401 }, sent: { when: send, status: 500 }, told: {} }
penalties:
  ips: { event: [limited, told], by: ip, within: 1h, ladder: { 5: { ban: 1h } } }
  mail: { event: failed, by: email, within: 1h, ladder: { 5: { ban: 1h } } }
  rooms: { event: sent, by: [room, user], within: 1h, ladder: { 5: { ban: 1h } } }
";
        let told = Need::Report("told".into());
        let (email, room) = (Need::Body("email".into()), Need::GivenAttribute("room".into()));
        assert_eq!(
            needs(rest),
            [
                ("penalty", vec![vec![], vec![told]]),
                ("penalty", vec![vec![email, Need::Answer]]),
                ("penalty", vec![vec![Need::NamedOperation, room, Need::GivenUser, Need::Answer]]),
            ]
        );
    }

    #[test]
    fn ratios_need_both_events_and_factors_what_they_hold_for() {
        let rest = "
limits: { a: { by: ip, token_bucket: 5/s } }
events: { order: { status: 2xx }, cancel: {} }
ratios: { r: { of: cancel, to: order, by: user, within: 1h } }
factors:
  home: { when: { country: DE }, times: 2 }
  good: { by: user, good: [r < 50%], step: 0.1 every 1h, range: 0.5..2 }
  load: { load_above: 80%, times: 0.5 }
";
        let (cancel, user) = (Need::Report("cancel".into()), Need::GivenUser);
        assert_eq!(
            needs(rest),
            [
                ("ratio", vec![vec![cancel, user.clone(), Need::Answer]]),
                ("factor", vec![vec![Need::Country]]),
                ("factor", vec![vec![user]]),
                ("factor", vec![vec![]]),
            ]
        );
    }

    #[test]
    fn what_only_a_gateway_does_is_told() {
        let policy = policy(
            "
events: { failed: { status: 401 }, told: {} }
penalties:
  slow: { event: failed, by: ip, within: 1h, ladder: { 5: { delay: 2s } } }
  hard: { event: told, by: ip, within: 1h, ladder: { 5: { ban: 1h } } }
",
        );
        assert_eq!(policy.events_of_answers().collect::<Vec<_>>(), ["failed"]);
        assert_eq!(policy.delays().collect::<Vec<_>>(), ["slow"]);
    }
}
