//! What a limit, a penalty, a ratio or a factor requires of the surface that serves it. A request
//! carries its address, headers, path and body. What comes from none of these, the caller must say.

use std::fmt;

use super::model::{
    Algorithm, AttributeId, Counts, IdentitySource, Internal, Limit, Missing, OperationId, Part,
    Policy, Source,
};
use super::protection::{BUILT_IN_EVENTS, EventId, FactorKind, Step};
use super::when::When;

/// Something without which a limit never applies, or refuses all it applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// The caller names the operation: none of the limit's has a pattern.
    NamedOperation,
    /// The caller gives this attribute: no pattern captures it, and no header that is believed,
    /// query or body has it.
    GivenAttribute(String),
    /// The caller says the user: no header that is believed does.
    GivenUser,
    /// The caller says the tier: without that none of the limit's is reached.
    GivenTier,
    /// The caller says that it is internal: no address or header that is believed does.
    GivenInternal,
    /// The country of the client is known.
    Country,
    /// This attribute is read from the body.
    Body(String),
    /// The surface sees the status of the answer, or callers report it.
    Answer,
    /// A place is held until the work is done.
    Place,
    /// Callers report this event: neither answers nor decisions make it.
    Report(String),
}

impl fmt::Display for Requirement {
    /// As a reason: `it needs …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NamedOperation => {
                f.write_str("callers who name its operation, which has no pattern")
            }
            Self::GivenAttribute(name) => {
                write!(f, "callers who give `{name}`, which is in no path or header that it reads")
            }
            Self::GivenUser => {
                f.write_str("callers who say the user, which no trusted header does")
            }
            Self::GivenTier => {
                f.write_str("callers who say the tier, which no trusted header does")
            }
            Self::GivenInternal => f.write_str("callers who say that they are internal"),
            Self::Country => f.write_str("the country of the client, from --geoip or its caller"),
            Self::Body(name) => write!(f, "`{name}` from the body"),
            Self::Answer => f.write_str("the status of the answer"),
            Self::Place => f.write_str("to know when the work is done"),
            Self::Report(name) => write!(f, "callers who report `{name}`"),
        }
    }
}

/// A penalty, ratio or factor, and what it requires.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProtectionRequirement<'p> {
    /// `penalty`, `ratio` or `factor`.
    pub kind: &'static str,
    /// Its name in the policy.
    pub name: &'p str,
    /// What it requires in each of the ways that it can work in: one of them is enough.
    pub ways: Vec<Vec<Requirement>>,
}

impl Policy {
    /// What a surface must provide for one of this policy's limits to work.
    #[must_use]
    pub fn requirements(&self, limit: &Limit) -> Vec<Requirement> {
        let shares = limit.missing == Some(Missing::Share);
        let mut all = self.subject_requirements(&limit.when, &limit.by, shares);
        let attributes = limit.cost.attribute().into_iter().chain(limit.value);
        all.extend(attributes.filter_map(|id| self.attribute_requirement(&limit.when, id)));
        all.extend((limit.counts != Counts::All).then_some(Requirement::Answer));
        all.extend((limit.algorithm == Algorithm::Concurrency).then_some(Requirement::Place));
        distinct(all)
    }

    /// What a surface must provide for penalties, ratios and factors to work.
    pub fn protection_requirements(&self) -> impl Iterator<Item = ProtectionRequirement<'_>> {
        let protection = &self.protection;
        let penalties = protection.penalties.iter().map(|penalty| {
            let ways = penalty.events.iter();
            let ways = ways.map(|id| distinct(self.event_requirements(*id, &penalty.by)));
            ProtectionRequirement { kind: "penalty", name: &penalty.name, ways: ways.collect() }
        });
        let ratios = protection.ratios.iter().map(|ratio| {
            // A share is of both events.
            let both = [ratio.of, ratio.to].into_iter();
            let all = both.flat_map(|id| self.event_requirements(id, &ratio.by)).collect();
            ProtectionRequirement { kind: "ratio", name: &ratio.name, ways: vec![distinct(all)] }
        });
        let factors = protection.factors.iter().map(|factor| {
            let by: &[Part] = match &factor.kind {
                FactorKind::Behaviour(behaviour) => &behaviour.by,
                FactorKind::Fixed { .. } | FactorKind::Load { .. } => &[],
            };
            let all = distinct(self.subject_requirements(&factor.when, by, false));
            ProtectionRequirement { kind: "factor", name: &factor.name, ways: vec![all] }
        });
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

    /// What an event requires to be counted by these parts.
    fn event_requirements(&self, id: EventId, by: &[Part]) -> Vec<Requirement> {
        let Some(event) = self.protection.events.get(usize::from(id)) else { return Vec::new() };
        let is_made = usize::from(id) < BUILT_IN_EVENTS.len() || event.outcome.is_some();
        if !is_made && event.statuses.is_empty() {
            let name = self.protection.event_names.name(id.into());
            return vec![Requirement::Report(name.to_owned())];
        }
        let mut all = self.subject_requirements(&event.when, by, false);
        all.extend((!event.statuses.is_empty()).then_some(Requirement::Answer));
        all
    }

    /// What a condition requires to hold, and a request under it to have the parts of a key. Where
    /// requests without a part share a key, the part is not required.
    fn subject_requirements(&self, when: &When, by: &[Part], shares: bool) -> Vec<Requirement> {
        let mut all = Vec::new();
        let is_never_found =
            |id: &OperationId| *id != 0 && self.operations.paths_of(*id).next().is_none();
        if when.operations.as_ref().is_some_and(|ids| ids.iter().all(is_never_found)) {
            all.push(Requirement::NamedOperation);
        }
        let attributes = when.attributes.iter();
        all.extend(attributes.filter_map(|(id, _)| self.attribute_requirement(when, *id)));
        all.extend(when.countries.as_ref().map(|_| Requirement::Country));
        if when.authenticated == Some(true) && !self.requests_say_users() {
            all.push(Requirement::GivenUser);
        }
        if when.internal == Some(true) && !self.requests_are_internal() {
            all.push(Requirement::GivenInternal);
        }
        let reaches = |tiers: &Vec<_>| tiers.iter().any(|tier| self.requests_reach_tier(*tier));
        if !when.tiers.as_ref().is_none_or(reaches) {
            all.push(Requirement::GivenTier);
        }
        all.extend(by.iter().filter_map(|part| {
            match part {
                Part::User if !shares && !self.requests_say_users() => Some(Requirement::GivenUser),
                Part::Country if !shares => Some(Requirement::Country),
                Part::Attribute(id) => self
                    .attribute_requirement(when, *id)
                    .filter(|one| !(shares && matches!(one, Requirement::GivenAttribute(_)))),
                _ => None,
            }
        }));
        all
    }

    fn attribute_requirement(&self, when: &When, id: AttributeId) -> Option<Requirement> {
        let name = self.attribute_names.name(id);
        let attribute = usize::try_from(id).ok().and_then(|id| self.attributes.get(id))?;
        if self.captures(when, name) {
            return None;
        }
        match &attribute.source {
            Source::Given => Some(Requirement::GivenAttribute(name.to_owned())),
            Source::Header { trusted: true, .. } if !self.trusts_a_proxy() => {
                Some(Requirement::GivenAttribute(name.to_owned()))
            }
            Source::Body(_) => Some(Requirement::Body(name.to_owned())),
            Source::Header { .. } | Source::Cookie(_) | Source::Query(_) | Source::Jwt(_) => None,
        }
    }

    /// True if a pattern of one of the condition's operations captures this attribute.
    fn captures(&self, when: &When, attribute: &str) -> bool {
        let captures = |id: OperationId| {
            self.operations.paths_of(id).any(|path| path.names().any(|name| name == attribute))
        };
        match &when.operations {
            Some(operations) => operations.iter().any(|id| captures(*id)),
            None => (0..).take(self.operations.names().len()).any(captures),
        }
    }

    fn trusts_a_proxy(&self) -> bool {
        !self.identity.trusted_proxies.is_empty()
    }

    fn requests_say_users(&self) -> bool {
        self.requests_say(self.identity.user.as_ref())
    }

    /// A claim needs no trusted proxy: the surface has verified it.
    fn requests_say(&self, source: Option<&IdentitySource>) -> bool {
        match source {
            Some(IdentitySource::Header(_)) => self.trusts_a_proxy(),
            Some(IdentitySource::Jwt(_)) => true,
            None => false,
        }
    }

    fn requests_are_internal(&self) -> bool {
        match self.identity.internal {
            Internal::Never => false,
            Internal::Cidrs(_) => true,
            Internal::Header { .. } => self.trusts_a_proxy(),
        }
    }

    fn requests_reach_tier(&self, tier: u32) -> bool {
        let said = self.requests_say(self.identity.tier.as_ref());
        let of_users = self.requests_say_users() && tier == self.identity.default_tier;
        said || of_users || tier == self.identity.anonymous_tier
    }
}

fn distinct(requirements: Vec<Requirement>) -> Vec<Requirement> {
    let mut distinct: Vec<Requirement> = Vec::new();
    for requirement in requirements {
        if !distinct.contains(&requirement) {
            distinct.push(requirement);
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The needs of a policy's only limit.
    fn needs(identity: &str, operations: &str, limit: &str) -> Vec<Requirement> {
        let text = format!(
            "tidegate: 1\nname: p\nidentity: {{ {identity} }}\noperations: {{ {operations} }}\nlimits: {{ one: {{ {limit} }} }}\n"
        );
        let policy = Policy::parse("p.yaml", &text).unwrap();
        policy.requirements(&policy.limits()[0])
    }

    const TRUSTED: &str = "trusted_proxies: [127.0.0.0/8], user: { header: X-User }";

    #[test]
    fn what_every_request_carries_needs_nothing() {
        for by in ["ip", "client", "global", "header.x-key", "path", "operation", "tier"] {
            assert_eq!(needs("", "", &format!("by: {by}, total: 1")), []);
        }
        assert_eq!(needs(TRUSTED, "", "by: user, total: 1"), []);
        assert_eq!(needs("user: { jwt: sub }", "", "by: user, total: 1"), []);
    }

    #[test]
    fn an_operation_without_a_pattern_must_be_named() {
        let operations = "send: {}, login: POST /login";
        assert_eq!(
            needs("", operations, "when: send, by: ip, total: 1"),
            [Requirement::NamedOperation]
        );
        assert_eq!(needs("", operations, "when: [send, login], by: ip, total: 1"), []);
        assert_eq!(needs("", operations, "when: [send, default], by: ip, total: 1"), []);
    }

    #[test]
    fn an_attribute_that_nothing_captures_must_be_given() {
        let (given, room) =
            ("attributes: { room: given }", [Requirement::GivenAttribute("room".into())]);
        let operations = r#"book: "POST /rooms/{room}", list: GET /rooms"#;
        let of = |limit: &str| needs(given, operations, limit);
        assert_eq!(of("when: list, by: room, total: 1"), room);
        assert_eq!(of("when: list, by: ip, cost: room, total: 1"), room);
        assert_eq!(of("when: list, value: room, ceiling: 1"), room);
        let when = "when: { operation: list, attributes: { room: r1 } }, by: ip, total: 1";
        assert_eq!(of(when), room);
        assert_eq!(of("when: book, by: room, total: 1"), []);
        assert_eq!(of("by: room, total: 1"), []);
        assert_eq!(of("when: list, by: room, missing: share, total: 1"), []);
    }

    #[test]
    fn headers_that_nobody_may_set_must_be_said() {
        let header =
            "user: { header: X-User }, attributes: { kyc: { header: X-Kyc, trusted: true } }";
        assert_eq!(needs(header, "", "by: user, total: 1"), [Requirement::GivenUser]);
        let kyc = [Requirement::GivenAttribute("kyc".into())];
        assert_eq!(needs(header, "", "by: kyc, total: 1"), kyc);
    }

    #[test]
    fn users_tiers_and_insiders_must_be_said_where_nothing_tells_them() {
        let when = |condition: &str| format!("when: {{ {condition} }}, by: ip, total: 1");
        assert_eq!(needs("", "", &when("authenticated: true")), [Requirement::GivenUser]);
        assert_eq!(needs("", "", &when("authenticated: false")), []);
        assert_eq!(needs("", "", &when("internal: true")), [Requirement::GivenInternal]);
        assert_eq!(needs("internal: { cidrs: [10.0.0.0/8] }", "", &when("internal: true")), []);
        assert_eq!(needs("", "", &when("country: DE")), [Requirement::Country]);
        let tiers = "default_tier: free, anonymous_tier: nobody";
        assert_eq!(needs(tiers, "", &when("tier: free")), [Requirement::GivenTier]);
        assert_eq!(needs(tiers, "", &when("tier: nobody")), []);
        assert_eq!(needs(&format!("{TRUSTED}, {tiers}"), "", &when("tier: free")), []);
    }

    #[test]
    fn bodies_answers_and_places_are_told() {
        let email = "attributes: { email: { body: /email } }";
        assert_eq!(needs(email, "", "by: email, total: 1"), [Requirement::Body("email".into())]);
        assert_eq!(needs("", "", "by: ip, total: 1, counts: failures"), [Requirement::Answer]);
        assert_eq!(needs("", "", "by: ip, concurrency: 1"), [Requirement::Place]);
    }

    fn policy(rest: &str) -> Policy {
        let text = format!("tidegate: 1\nname: p\n{rest}");
        Policy::parse("p.yaml", &text).unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn protection_needs(rest: &str) -> Vec<(&'static str, Vec<Vec<Requirement>>)> {
        policy(rest).protection_requirements().map(|one| (one.kind, one.ways)).collect()
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
        let told = Requirement::Report("told".into());
        let (email, room) =
            (Requirement::Body("email".into()), Requirement::GivenAttribute("room".into()));
        assert_eq!(
            protection_needs(rest),
            [
                ("penalty", vec![vec![], vec![told]]),
                ("penalty", vec![vec![email, Requirement::Answer]]),
                (
                    "penalty",
                    vec![vec![
                        Requirement::NamedOperation,
                        room,
                        Requirement::GivenUser,
                        Requirement::Answer
                    ]]
                ),
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
        let (cancel, user) = (Requirement::Report("cancel".into()), Requirement::GivenUser);
        assert_eq!(
            protection_needs(rest),
            [
                ("ratio", vec![vec![cancel, user.clone(), Requirement::Answer]]),
                ("factor", vec![vec![Requirement::Country]]),
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
