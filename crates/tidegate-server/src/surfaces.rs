//! What each surface can do, and which limits, and what else protects, can never work on those that
//! there are.

use std::fmt;

use tidegate::policy::{Limit, Need, Protecting};

use crate::policies::{LoadedPolicy, PolicySet};

/// A way in which requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Surface {
    /// The reverse proxy: knows what a request carries, sees the answer. Serves the first policy.
    Gateway,
    /// The decision API: callers can say everything.
    Api,
}

impl Surface {
    /// Whether it serves the policy at this place of the command line.
    const fn serves(self, index: usize) -> bool {
        match self {
            Self::Gateway => index == 0,
            Self::Api => true,
        }
    }

    /// Whether it can provide what a limit needs.
    const fn meets(self, need: &Need, knows_countries: bool) -> bool {
        match (self, need) {
            (Self::Gateway, Need::Country) => knows_countries,
            (Self::Api, _) | (Self::Gateway, Need::Body(_) | Need::Answer | Need::Place) => true,
            (
                Self::Gateway,
                Need::NamedOperation
                | Need::GivenAttribute(_)
                | Need::GivenUser
                | Need::GivenTier
                | Need::GivenInternal
                | Need::Report(_),
            ) => false,
        }
    }

    /// What keeps it from making something work that can work in several ways: `None` where one does.
    fn lacks<'n>(self, ways: &'n [Vec<Need>], knows_countries: bool) -> Option<&'n Need> {
        let unmet = |way: &'n Vec<Need>| way.iter().find(|need| !self.meets(need, knows_countries));
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

/// What does not work, in sentences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Serviceability {
    /// Limits, and policies, that work nowhere: reason not to start, or not to reload.
    pub errors: Vec<String>,
    /// Limits that one surface cannot serve.
    pub warnings: Vec<String>,
}

/// Which limits cannot work on these surfaces. Policies that are switched off need none, but still
/// block.
#[must_use]
pub(crate) fn serviceability(
    policies: &PolicySet,
    surfaces: &[Surface],
    knows_countries: bool,
) -> Serviceability {
    let mut result = Serviceability::default();
    for (index, loaded) in policies.policies().iter().enumerate() {
        let serving: Vec<Surface> =
            surfaces.iter().copied().filter(|surface| surface.serves(index)).collect();
        if serving.is_empty() {
            result.errors.push(format!(
                "{}: the policy `{}` is never asked: the gateway serves only the first policy, and there is no other listener",
                loaded.file,
                loaded.policy.name(),
            ));
            continue;
        }
        if loaded.policy.blocks_countries()
            && serving.contains(&Surface::Gateway)
            && !knows_countries
        {
            result.warnings.push(format!(
                "{}: `block.countries` blocks nobody on the gateway: it needs {}",
                loaded.file,
                Need::Country,
            ));
        }
        if loaded.policy.is_enabled() {
            for limit in loaded.policy.limits() {
                judge(loaded, limit, (&serving, knows_countries), &mut result);
            }
            for one in loaded.policy.protecting() {
                judge_protection(loaded, &one, (&serving, knows_countries), &mut result);
            }
            if !serving.contains(&Surface::Gateway) {
                result.warnings.extend(left_to_callers(loaded));
            }
        }
    }
    result
}

fn judge(
    loaded: &LoadedPolicy,
    limit: &Limit,
    (serving, knows_countries): (&[Surface], bool),
    result: &mut Serviceability,
) {
    let needs = loaded.policy.needs(limit);
    let lacks = |surface: &Surface| {
        let unmet = needs.iter().find(|need| !surface.meets(need, knows_countries))?;
        let (file, name) = (&loaded.file, limit.name());
        Some(format!("{file}: the limit `{name}` cannot work on {surface}: it needs {unmet}"))
    };
    let lacking: Vec<String> = serving.iter().filter_map(lacks).collect();
    if lacking.len() == serving.len() {
        result.errors.extend(lacking);
    } else {
        result.warnings.extend(lacking);
    }
}

/// As for limits; that events which are reported come from callers is no surprise beside the API.
fn judge_protection(
    loaded: &LoadedPolicy,
    one: &Protecting<'_>,
    (serving, knows_countries): (&[Surface], bool),
    result: &mut Serviceability,
) {
    let lacks = |surface: &Surface| {
        let unmet = surface.lacks(&one.ways, knows_countries)?;
        let (file, Protecting { kind, name, .. }) = (&loaded.file, one);
        let told =
            format!("{file}: the {kind} `{name}` cannot work on {surface}: it needs {unmet}");
        Some((told, matches!(unmet, Need::Report(_))))
    };
    let lacking: Vec<(String, bool)> = serving.iter().filter_map(lacks).collect();
    if lacking.len() == serving.len() {
        result.errors.extend(lacking.into_iter().map(|(told, _)| told));
    } else {
        let surprises = lacking.into_iter().filter(|(_, is_reported)| !is_reported);
        result.warnings.extend(surprises.map(|(told, _)| told));
    }
}

/// What a gateway would do by itself, and callers of the API must.
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
    use std::fs;

    use tidegate::Options;

    use super::*;
    use crate::policies::PolicyFile;

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

    fn set(texts: &[(&str, &str)]) -> PolicySet {
        let dir = tempfile::tempdir().unwrap();
        let write = |(name, text): &(&str, &str)| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            PolicyFile::new(path)
        };
        let files: Vec<PolicyFile> = texts.iter().map(write).collect();
        PolicySet::load(&files, &Options::default()).unwrap()
    }

    /// The limits that the sentences name.
    fn limits(sentences: &[String]) -> Vec<&str> {
        sentences.iter().map(|one| one.split('`').nth(1).unwrap()).collect()
    }

    #[test]
    fn whoever_calls_the_api_can_say_everything() {
        let set = set(&[("shop.yaml", SHOP), ("bank.yaml", BANK)]);
        assert_eq!(serviceability(&set, &[Surface::Api], false), Serviceability::default());
    }

    #[test]
    fn what_the_gateway_alone_cannot_serve_is_a_warning_beside_the_api_and_else_an_error() {
        let set = set(&[("shop.yaml", SHOP)]);
        let both = serviceability(&set, &[Surface::Gateway, Surface::Api], false);
        assert_eq!(both.errors, [""; 0]);
        assert_eq!(limits(&both.warnings), ["named", "given"]);
        let alone = serviceability(&set, &[Surface::Gateway], false);
        assert_eq!(alone.errors, both.warnings);
        let expected = "shop.yaml: the limit `named` cannot work on the gateway: it needs callers who name its operation, which has no pattern";
        assert!(alone.errors[0].ends_with(expected), "{}", alone.errors[0]);
    }

    #[test]
    fn the_gateway_serves_only_the_first_policy() {
        let set = set(&[("shop.yaml", SHOP), ("bank.yaml", BANK)]);
        let both = serviceability(&set, &[Surface::Gateway, Surface::Api], false);
        assert_eq!(limits(&both.warnings), ["named", "given"], "the second is not the gateway's");
        let alone = serviceability(&set, &[Surface::Gateway], false);
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
        assert_eq!(serviceability(&set, &surfaces, true), Serviceability::default());
        let without = serviceability(&set, &surfaces, false);
        assert_eq!(without.errors, [""; 0]);
        assert_eq!(limits(&without.warnings), ["block.countries", "home"]);
        assert_eq!(serviceability(&set, &[Surface::Api], false), Serviceability::default());
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
        let both = serviceability(&set, &[Surface::Gateway, Surface::Api], false);
        assert_eq!(both.errors, [""; 0]);
        assert_eq!(limits(&both.warnings), ["rooms", "home"], "reports are the API's");
        let known = serviceability(&set, &[Surface::Gateway, Surface::Api], true);
        assert_eq!(limits(&known.warnings), ["rooms"]);
        let alone = serviceability(&set, &[Surface::Gateway], true);
        assert_eq!(limits(&alone.errors), ["rooms", "tales"]);
        let expected = "shop.yaml: the penalty `tales` cannot work on the gateway: it needs callers who report `told`";
        assert!(alone.errors[1].ends_with(expected), "{}", alone.errors[1]);
    }

    #[test]
    fn what_no_gateway_does_is_left_to_callers() {
        let set = set(&[("shop.yaml", GUARDED)]);
        let Serviceability { errors, warnings } = serviceability(&set, &[Surface::Api], false);
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
        assert_eq!(serviceability(&set, &[Surface::Gateway], false), Serviceability::default());
    }
}
