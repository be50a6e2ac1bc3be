//! What a limit, or what protects, needs of the surface that serves it. A request carries its address, headers, path and
//! body; what comes from none of these, somebody must say.

mod protection;

use std::fmt;

use super::model::{
    Algorithm, AttributeId, Cost, Counts, IdentitySource, Internal, Limit, Missing, OperationId,
    Part, Policy, Source,
};
use super::when::When;
pub use protection::Protecting;

/// Something without which a limit never applies, or refuses all it applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// The caller names the operation: none of the limit's has a pattern.
    NamedOperation,
    /// The caller gives this attribute: no pattern captures it, and no header that is believed,
    /// query or body has it.
    GivenAttribute(String),
    /// The caller says who the user is: no header that is believed does.
    GivenUser,
    /// The caller says the tier: without that none of the limit's is reached.
    GivenTier,
    /// The caller says that it is internal: no address or header that is believed does.
    GivenInternal,
    /// The country of the client is known.
    Country,
    /// This attribute is read from the body.
    Body(String),
    /// The status of the answer is seen, or told.
    Answer,
    /// A place is held until the work is done.
    Place,
    /// Callers report this event: neither answers nor decisions make it.
    Report(String),
}

impl fmt::Display for Need {
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

impl Policy {
    /// What a surface must provide for one of this policy's limits to work.
    #[must_use]
    pub fn needs(&self, limit: &Limit) -> Vec<Need> {
        let mut needs = Vec::new();
        self.needs_of_condition(&limit.when, &mut needs);
        let shares = limit.missing == Some(Missing::Share);
        needs.extend(limit.by.iter().filter_map(|part| self.need_of(part, &limit.when, shares)));
        if let Cost::Attribute(id) = limit.cost {
            needs.extend(self.need_of_attribute(&limit.when, id));
        }
        needs.extend(limit.value.and_then(|id| self.need_of_attribute(&limit.when, id)));
        needs.extend((limit.counts != Counts::All).then_some(Need::Answer));
        needs.extend((limit.algorithm == Algorithm::Concurrency).then_some(Need::Place));
        distinct(needs)
    }

    /// What it takes for a condition to hold.
    fn needs_of_condition(&self, when: &When, needs: &mut Vec<Need>) {
        needs.extend(self.needs_of_operations(when));
        let attributes = when.attributes.iter();
        needs.extend(attributes.filter_map(|(id, _)| self.need_of_attribute(when, *id)));
        needs.extend(when.countries.as_ref().map(|_| Need::Country));
        if when.authenticated == Some(true) && !self.requests_say_users() {
            needs.push(Need::GivenUser);
        }
        if when.internal == Some(true) && !self.requests_are_internal() {
            needs.push(Need::GivenInternal);
        }
        if let Some(tiers) = &when.tiers
            && !tiers.iter().any(|tier| self.requests_reach_tier(*tier))
        {
            needs.push(Need::GivenTier);
        }
    }

    fn needs_of_operations(&self, when: &When) -> Option<Need> {
        let operations = when.operations.as_deref()?;
        let never_found =
            |id: &OperationId| *id != 0 && self.operations.paths_of(*id).next().is_none();
        operations.iter().all(never_found).then_some(Need::NamedOperation)
    }

    /// What it takes for a request under a condition to have a part of a key; nothing where those
    /// without it share one.
    fn need_of(&self, part: &Part, when: &When, shares: bool) -> Option<Need> {
        match part {
            Part::User if !shares && !self.requests_say_users() => Some(Need::GivenUser),
            Part::Country if !shares => Some(Need::Country),
            Part::Attribute(id) => match self.need_of_attribute(when, *id) {
                Some(Need::GivenAttribute(_)) if shares => None,
                need => need,
            },
            _ => None,
        }
    }

    fn need_of_attribute(&self, when: &When, id: AttributeId) -> Option<Need> {
        let name = self.attribute_names.name(id);
        let attribute = usize::try_from(id).ok().and_then(|id| self.attributes.get(id))?;
        if self.captures(when, name) {
            return None;
        }
        match &attribute.source {
            Source::Given => Some(Need::GivenAttribute(name.to_owned())),
            Source::Header { trusted: true, .. } if !self.trusts_somebody() => {
                Some(Need::GivenAttribute(name.to_owned()))
            }
            Source::Body(_) => Some(Need::Body(name.to_owned())),
            Source::Header { .. } | Source::Query(_) | Source::Jwt(_) => None,
        }
    }

    /// Whether a pattern of one of the condition's operations captures this attribute.
    fn captures(&self, when: &When, attribute: &str) -> bool {
        let captures = |id: OperationId| {
            self.operations.paths_of(id).any(|path| path.names().any(|name| name == attribute))
        };
        match &when.operations {
            Some(operations) => operations.iter().any(|id| captures(*id)),
            None => {
                let count = u32::try_from(self.operations.names().len()).unwrap_or(u32::MAX);
                (0..count).any(captures)
            }
        }
    }

    fn trusts_somebody(&self) -> bool {
        !self.identity.trusted_proxies.is_empty()
    }

    fn requests_say_users(&self) -> bool {
        self.requests_say(self.identity.user.as_ref())
    }

    /// A claim needs nobody's trust but that of the key which verifies it.
    fn requests_say(&self, source: Option<&IdentitySource>) -> bool {
        match source {
            Some(IdentitySource::Header(_)) => self.trusts_somebody(),
            Some(IdentitySource::Jwt(_)) => true,
            None => false,
        }
    }

    fn requests_are_internal(&self) -> bool {
        match self.identity.internal {
            Internal::Never => false,
            Internal::Cidrs(_) => true,
            Internal::Header { .. } => self.trusts_somebody(),
        }
    }

    fn requests_reach_tier(&self, tier: u32) -> bool {
        let said = self.requests_say(self.identity.tier.as_ref());
        let of_users = self.requests_say_users() && tier == self.identity.default_tier;
        said || of_users || tier == self.identity.anonymous_tier
    }
}

fn distinct(needs: Vec<Need>) -> Vec<Need> {
    let mut distinct: Vec<Need> = Vec::new();
    for need in needs {
        if !distinct.contains(&need) {
            distinct.push(need);
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The needs of a policy's only limit.
    fn needs(identity: &str, operations: &str, limit: &str) -> Vec<Need> {
        let text = format!(
            "tidegate: 1\nname: p\nidentity: {{ {identity} }}\noperations: {{ {operations} }}\nlimits: {{ one: {{ {limit} }} }}\n"
        );
        let policy = Policy::parse("p.yaml", &text).unwrap();
        policy.needs(&policy.limits()[0])
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
        assert_eq!(needs("", operations, "when: send, by: ip, total: 1"), [Need::NamedOperation]);
        assert_eq!(needs("", operations, "when: [send, login], by: ip, total: 1"), []);
        assert_eq!(needs("", operations, "when: [send, default], by: ip, total: 1"), []);
    }

    #[test]
    fn an_attribute_that_nothing_captures_must_be_given() {
        let (given, room) = ("attributes: { room: given }", [Need::GivenAttribute("room".into())]);
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
        assert_eq!(needs(header, "", "by: user, total: 1"), [Need::GivenUser]);
        let kyc = [Need::GivenAttribute("kyc".into())];
        assert_eq!(needs(header, "", "by: kyc, total: 1"), kyc);
    }

    #[test]
    fn users_tiers_and_insiders_must_be_said_where_nothing_tells_them() {
        let when = |condition: &str| format!("when: {{ {condition} }}, by: ip, total: 1");
        assert_eq!(needs("", "", &when("authenticated: true")), [Need::GivenUser]);
        assert_eq!(needs("", "", &when("authenticated: false")), []);
        assert_eq!(needs("", "", &when("internal: true")), [Need::GivenInternal]);
        assert_eq!(needs("internal: { cidrs: [10.0.0.0/8] }", "", &when("internal: true")), []);
        assert_eq!(needs("", "", &when("country: DE")), [Need::Country]);
        let tiers = "default_tier: free, anonymous_tier: nobody";
        assert_eq!(needs(tiers, "", &when("tier: free")), [Need::GivenTier]);
        assert_eq!(needs(tiers, "", &when("tier: nobody")), []);
        assert_eq!(needs(&format!("{TRUSTED}, {tiers}"), "", &when("tier: free")), []);
    }

    #[test]
    fn bodies_answers_and_places_are_told() {
        let email = "attributes: { email: { body: /email } }";
        assert_eq!(needs(email, "", "by: email, total: 1"), [Need::Body("email".into())]);
        assert_eq!(needs("", "", "by: ip, total: 1, counts: failures"), [Need::Answer]);
        assert_eq!(needs("", "", "by: ip, concurrency: 1"), [Need::Place]);
    }
}
