//! The abilities of each surface, and the limits, penalties and factors that lack one of them.

use std::fmt;

use tidegate::engine::policy::{ProtectionRequirement, Requirement};

use crate::policies::LoadedPolicy;

/// A way in which requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Surface {
    /// The reverse proxy: knows what a request carries, sees the answer. Serves the first policy.
    Gateway,
    /// The decision API: callers can say everything.
    Api,
}

impl Surface {
    /// True if it serves the policy at this place of the command line.
    const fn serves(self, index: usize) -> bool {
        match self {
            Self::Gateway => index == 0,
            Self::Api => true,
        }
    }

    /// True if it can provide what a limit needs.
    const fn meets(self, need: &Requirement, knows_countries: bool) -> bool {
        match (self, need) {
            (Self::Gateway, Requirement::Country) => knows_countries,
            (Self::Api, _)
            | (Self::Gateway, Requirement::Body(_) | Requirement::Answer | Requirement::Place) => {
                true
            }
            (
                Self::Gateway,
                Requirement::NamedOperation
                | Requirement::GivenAttribute(_)
                | Requirement::GivenUser
                | Requirement::GivenTier
                | Requirement::GivenInternal
                | Requirement::Report(_),
            ) => false,
        }
    }

    /// The need that is missing for something that can work in several ways; `None` if one way works.
    fn lacks<'n>(
        self,
        ways: &'n [Vec<Requirement>],
        knows_countries: bool,
    ) -> Option<&'n Requirement> {
        let unmet =
            |way: &'n Vec<Requirement>| way.iter().find(|need| !self.meets(need, knows_countries));
        let mut first = None;
        for way in ways {
            first = first.or(Some(unmet(way)?));
        }
        first
    }
}

impl fmt::Display for Surface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gateway => "the gateway",
            Self::Api => "the decision API",
        })
    }
}

/// What does not work on which surface, in sentences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Serviceability {
    /// Limits, and policies, that work nowhere: reason not to start, or not to reload.
    pub errors: Vec<String>,
    /// Limits that one surface cannot serve.
    pub warnings: Vec<String>,
}

/// Checks which limits cannot work on these surfaces. Disabled policies have no limits, but still
/// block.
#[must_use]
pub(crate) fn check_surfaces(
    policies: &[LoadedPolicy],
    surfaces: &[Surface],
    knows_countries: bool,
) -> Serviceability {
    let mut result = Serviceability::default();
    for (index, loaded) in policies.iter().enumerate() {
        let LoadedPolicy { policy, file, .. } = loaded;
        let serving: Vec<Surface> =
            surfaces.iter().copied().filter(|surface| surface.serves(index)).collect();
        if serving.is_empty() {
            result.errors.push(format!(
                "{file}: the policy `{}` is never asked: the gateway serves only the first policy, and there is no other listener",
                policy.name(),
            ));
            continue;
        }
        let has_gateway = serving.contains(&Surface::Gateway);
        if policy.blocks_countries() && has_gateway && !knows_countries {
            let need = Requirement::Country;
            result.warnings.push(format!(
                "{file}: `block.countries` blocks nobody on the gateway: it needs {need}"
            ));
        }
        if policy.is_enabled() {
            for limit in policy.limits() {
                let (name, ways) = (limit.name(), [policy.requirements(limit)]);
                let lacks = |surface: Surface| surface.lacks(&ways, knows_countries);
                result.add(&serving, lacks, &format!("{file}: the limit `{name}`"));
            }
            for ProtectionRequirement { kind, name, ways, .. } in policy.protection_requirements() {
                let lacks = |surface: Surface| surface.lacks(&ways, knows_countries);
                result.add(&serving, lacks, &format!("{file}: the {kind} `{name}`"));
            }
            if !has_gateway {
                result.warnings.extend(left_to_callers(loaded));
            }
        }
    }
    result
}

impl Serviceability {
    /// Adds an error for something that works on no surface, and a warning for something that works
    /// on some. Callers report events to the API by design, so a missing report is no warning.
    fn add<'n>(
        &mut self,
        serving: &[Surface],
        lacks: impl Fn(Surface) -> Option<&'n Requirement>,
        what: &str,
    ) {
        let lacking: Vec<(Surface, &Requirement)> =
            serving.iter().filter_map(|surface| Some((*surface, lacks(*surface)?))).collect();
        let works_nowhere = lacking.len() == serving.len();
        for (surface, need) in lacking {
            let sentence = format!("{what} cannot work on {surface}: it needs {need}");
            if works_nowhere {
                self.errors.push(sentence);
            } else if !matches!(need, Requirement::Report(_)) {
                self.warnings.push(sentence);
            }
        }
    }
}

/// The duties of API callers that a gateway would have.
fn left_to_callers(loaded: &LoadedPolicy) -> impl Iterator<Item = String> {
    let (file, policy) = (&loaded.file, &loaded.policy);
    let events = names(policy.events_of_answers()).map(|events| {
        format!(
            "{file}: no gateway sees the answers that make {events}: callers must report what happened (/v1/report), or settle with the status (/v1/settle)"
        )
    });
    let delays = names(policy.delays()).map(|delays| {
        format!(
            "{file}: no gateway holds answers back for {delays}: callers are told `delay_ms`, and must wait themselves"
        )
    });
    let pages = policy.challenge().map(|_| {
        format!(
            "{file}: no gateway shows the page of challenges: callers must pass them on (/v1/challenge)"
        )
    });
    events.into_iter().chain(delays).chain(pages)
}

/// `a`, `b`; nothing of none.
fn names<'n>(names: impl Iterator<Item = &'n str>) -> Option<String> {
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

#[cfg(test)]
mod tests {
    use tidegate::engine::policy::Options;

    use super::*;

    const SHOP: &str = "
tidegate: 1
name: shop
identity: { attributes: { room: given, email: { body: /email } } }
operations:
  send: {}
  login: POST /login
limits:
  everyone: { by: ip, token_bucket: 5/s }
  named:    { when: send, by: ip, total: 5 }
  given:    { when: login, by: room, total: 5 }
  email:    { when: login, by: email, total: 5, counts: failures }
  places:   { by: ip, concurrency: 5 }
";
    const BANK: &str = "
tidegate: 1
name: bank
limits: { users: { by: user, total: 5, exceed: warn } }
";

    fn set(texts: &[(&str, &str)]) -> Vec<LoadedPolicy> {
        let options = Options::default();
        texts
            .iter()
            .map(|(file, text)| LoadedPolicy::check(file, text, &options).unwrap())
            .collect()
    }

    /// The limits that the sentences name.
    fn limits(sentences: &[String]) -> Vec<&str> {
        sentences.iter().map(|one| one.split('`').nth(1).unwrap()).collect()
    }

    #[test]
    fn whoever_calls_the_api_can_say_everything() {
        let set = set(&[("shop.yaml", SHOP), ("bank.yaml", BANK)]);
        assert_eq!(check_surfaces(&set, &[Surface::Api], false), Serviceability::default());
    }

    #[test]
    fn what_the_gateway_alone_cannot_serve_is_a_warning_beside_the_api_and_else_an_error() {
        let set = set(&[("shop.yaml", SHOP)]);
        let both = check_surfaces(&set, &[Surface::Gateway, Surface::Api], false);
        assert_eq!(both.errors, [""; 0]);
        assert_eq!(limits(&both.warnings), ["named", "given"]);
        let alone = check_surfaces(&set, &[Surface::Gateway], false);
        assert_eq!(alone.errors, both.warnings);
        let expected = "shop.yaml: the limit `named` cannot work on the gateway: it needs callers who name its operation, which has no pattern";
        assert!(alone.errors[0].ends_with(expected), "{}", alone.errors[0]);
    }

    #[test]
    fn the_gateway_serves_only_the_first_policy() {
        let set = set(&[("shop.yaml", SHOP), ("bank.yaml", BANK)]);
        let both = check_surfaces(&set, &[Surface::Gateway, Surface::Api], false);
        assert_eq!(limits(&both.warnings), ["named", "given"], "the second is not the gateway's");
        let alone = check_surfaces(&set, &[Surface::Gateway], false);
        assert!(alone.errors.iter().any(|one| one.contains("`bank` is never asked")));
    }

    #[test]
    fn the_gateway_knows_countries_from_a_database_only() {
        let text = "
tidegate: 1
name: shop
block: { countries: [KP] }
limits: { home: { when: { country: DE }, by: ip, total: 5 } }
";
        let set = set(&[("shop.yaml", text)]);
        let surfaces = [Surface::Gateway, Surface::Api];
        assert_eq!(check_surfaces(&set, &surfaces, true), Serviceability::default());
        let without = check_surfaces(&set, &surfaces, false);
        assert_eq!(without.errors, [""; 0]);
        assert_eq!(limits(&without.warnings), ["block.countries", "home"]);
        assert_eq!(check_surfaces(&set, &[Surface::Api], false), Serviceability::default());
    }

    const GUARDED: &str = "
tidegate: 1
name: shop
identity: { attributes: { room: given } }
operations: { login: POST /login }
limits: { all: { by: ip, token_bucket: 5/s, exceed: challenge } }
events: { failed: { when: login, status: 401 }, told: {} }
penalties:
  rooms: { event: failed, by: room, within: 1h, ladder: { 5: { delay: 2s } } }
  tales: { event: told, by: ip, within: 1h, ladder: { 5: { ban: 1h } } }
  either: { event: [told, failed], by: ip, within: 1h, ladder: { 5: { ban: 1h } } }
factors: { home: { when: { country: DE }, times: 2 } }
";

    #[test]
    fn penalties_and_factors_need_their_events_and_whom_they_are_about() {
        let set = set(&[("shop.yaml", GUARDED)]);
        let both = check_surfaces(&set, &[Surface::Gateway, Surface::Api], false);
        assert_eq!(both.errors, [""; 0]);
        assert_eq!(limits(&both.warnings), ["rooms", "home"], "reports are the API's");
        let known = check_surfaces(&set, &[Surface::Gateway, Surface::Api], true);
        assert_eq!(limits(&known.warnings), ["rooms"]);
        let alone = check_surfaces(&set, &[Surface::Gateway], true);
        assert_eq!(limits(&alone.errors), ["rooms", "tales"]);
        let expected = "shop.yaml: the penalty `tales` cannot work on the gateway: it needs callers who report `told`";
        assert!(alone.errors[1].ends_with(expected), "{}", alone.errors[1]);
    }

    #[test]
    fn what_no_gateway_does_is_left_to_callers() {
        let set = set(&[("shop.yaml", GUARDED)]);
        let Serviceability { errors, warnings } = check_surfaces(&set, &[Surface::Api], false);
        assert_eq!(errors, [""; 0]);
        let found: Vec<&str> =
            warnings.iter().map(|one| one.split_once(".yaml: ").unwrap().1).collect();
        assert_eq!(
            found,
            [
                "no gateway sees the answers that make `failed`: callers must report what happened (/v1/report), or settle with the status (/v1/settle)",
                "no gateway holds answers back for `rooms`: callers are told `delay_ms`, and must wait themselves",
                "no gateway shows the page of challenges: callers must pass them on (/v1/challenge)",
            ]
        );
    }

    #[test]
    fn limits_that_are_switched_off_are_no_trouble() {
        let set = set(&[("bank.yaml", &format!("{BANK}enabled: false\n"))]);
        assert_eq!(check_surfaces(&set, &[Surface::Gateway], false), Serviceability::default());
    }
}
