//! Warnings about limits that never apply, never bind, or that clients escape at will.

use super::advice;
use super::one_or_many;
use super::reach_warnings::{always_refuses, number_within};
use super::settings::{Audience, DefaultTiers};
use super::warnings::{Warnings, position, skips_anonymous};
use crate::algorithm;
use crate::algorithm::calendar::Unit;
use crate::policy::diagnostics::Position;
use crate::policy::document::Node;
use crate::policy::implication::{contradiction, implies};
use crate::policy::model::{
    Algorithm, Counts, Exceed, Limit, OnStoreFailure, Part, Setting, Settings, Source, Spec, TierId,
};
use crate::policy::when::When;
use crate::units::SECOND_US;

const HOUR_US: u64 = 3_600 * SECOND_US;

/// More limits than this are not compared pair by pair.
const LIMITS_COMPARED_MAX: usize = 200;

impl Warnings<'_> {
    /// Warns about limits that never do anything.
    pub(super) fn warn_about_idle_limits(&self) {
        let policy = self.policy;
        // Beside an error, what is missing may only be misread.
        if self.diagnostics.errors() > 0 {
            return;
        }
        if policy.limits.is_empty() && policy.protection.penalties.is_empty() {
            let entries = self.root.entries().unwrap_or_default();
            let section = entries.iter().find(|entry| entry.key == "limits");
            let at = section.map_or(self.root.at, |entry| entry.key_at);
            let help =
                "add one, such as `limits: { per-address: { by: ip, sliding_window: 100/min } }`";
            self.diagnostics.warn(at, "the policy has no limits, so that nothing is limited", help);
        }
        for limit in &policy.limits {
            self.warn_if_exempt(limit);
            if policy.limits.len() <= LIMITS_COMPARED_MAX {
                self.warn_if_client_chosen(limit);
                self.warn_if_never_reached(limit);
            }
        }
        self.warn_about_contradictions();
        self.warn_about_spec_words();
    }

    /// A limit on requests that are all exempt.
    fn warn_if_exempt(&self, limit: &Limit) {
        let policy = self.policy;
        let is_exempt = policy.exempt.iter().any(|exempt| implies(policy, &limit.when, exempt));
        if is_exempt && contradiction(policy, &limit.when, false).is_none() {
            let message =
                format!("the limit `{}` never applies: all its requests are exempt", limit.name);
            let help = "take it out, or make the exemption narrower";
            self.warn_at_limit(limit, message, help);
        }
    }

    /// Conditions that no request meets.
    fn warn_about_contradictions(&self) {
        let policy = self.policy;
        for limit in &policy.limits {
            self.warn_if_contradictory("limits", &limit.name, &limit.when, skips_anonymous(limit));
        }
        let protection = &policy.protection;
        for (event, name) in protection.events.iter().zip(protection.event_names.iter()) {
            self.warn_if_contradictory("events", name, &event.when, false);
        }
        for factor in &protection.factors {
            self.warn_if_contradictory("factors", &factor.name, &factor.when, false);
        }
        let exempt = self.root.get("exempt").map(one_or_many).unwrap_or_default();
        for (when, node) in policy.exempt.iter().zip(exempt) {
            self.warn_at_contradiction("this exemption", node.at, when, false);
        }
    }

    fn warn_if_contradictory(&self, section: &str, name: &str, when: &When, needs_user: bool) {
        let node = self.root.get(section).and_then(|section| section.get(name));
        let at = node.and_then(|node| node.get("when")).map(|node| node.at);
        let at = at.unwrap_or_else(|| position(self.root, section, name));
        let what = format!("`{name}`");
        self.warn_at_contradiction(&what, at, when, needs_user);
    }

    fn warn_at_contradiction(&self, what: &str, at: Position, when: &When, needs_user: bool) {
        if let Some(why) = contradiction(self.policy, when, needs_user) {
            let message = format!("{what} never applies: its conditions contradict each other");
            self.diagnostics.warn(at, message, format!("{why}; take one of them out"));
        }
    }

    /// A limit whose key is a header or cookie that the client chooses, and no other limit bounds the
    /// client.
    fn warn_if_client_chosen(&self, limit: &Limit) {
        let Some(header) = limit.by.iter().find_map(|part| self.client_choice(part)) else {
            return;
        };
        let bounds = |other: &Limit| {
            let is_chosen = other.by.iter().any(|part| self.client_choice(part).is_some());
            let covers = implies(self.policy, &limit.when, &other.when)
                || other.when.reaches_all_anonymous() && self.covers_requests(other, limit);
            let counts = !skips_anonymous(other) || skips_anonymous(limit);
            acts(other) && !is_chosen && counts && covers
        };
        if !acts(limit) || self.policy.limits.iter().any(bounds) {
            return;
        }
        let name = &limit.name;
        let message = format!(
            "anyone escapes the limit `{name}` with another `{header}`, which the client chooses"
        );
        let help = "add a limit `by: ip` on the same requests, or take it from a header that a \
                    trusted proxy sets (`trusted: true`)";
        self.warn_at_limit(limit, message, help);
    }

    /// The header or cookie that a part of a key is, if any client may choose it.
    fn client_choice<'w>(&'w self, part: &'w Part) -> Option<&'w str> {
        let name = match part {
            Part::Header(name) => name.as_str(),
            Part::Attribute(id) => {
                let id = usize::try_from(*id).ok()?;
                match &self.policy.attributes.get(id)?.source {
                    Source::Header { name, trusted: false } => name.as_str(),
                    Source::Cookie(name) => return Some(name),
                    _ => return None,
                }
            }
            _ => return None,
        };
        let is_claim = self.policy.claim_headers().any(|claim| claim.eq_ignore_ascii_case(name));
        (!is_claim).then_some(name)
    }

    /// A limit that another one, over a shorter time, never lets fill up.
    fn warn_if_never_reached(&self, limit: &Limit) {
        let limits = || self.policy.limits.iter();
        let earlier = limits().take_while(|other| other.name != limit.name);
        let later = limits().skip_while(|other| other.name != limit.name).skip(1);
        // Of two that are the same, the later one is too many.
        let tighter =
            earlier
                .filter(|other| self.keeps_below(other, limit))
                .chain(later.filter(|other| {
                    self.keeps_below(other, limit) && !self.keeps_below(limit, other)
                }))
                .next();
        if let Some(other) = tighter {
            let (name, other) = (&limit.name, &other.name);
            let message = format!(
                "the limit `{name}` is not reached by requests: `{other}` refuses them earlier, at \
                 every pace"
            );
            let help = format!("lower `{name}`, raise `{other}`, or take `{name}` out");
            self.warn_at_limit(limit, message, help);
        }
    }

    /// True if a limit refuses whatever would exceed another.
    fn keeps_below(&self, tight: &Limit, limit: &Limit) -> bool {
        let policy = self.policy;
        let scales = (tight.scaled || limit.scaled) && !policy.protection.factors.is_empty();
        let same_subject =
            tight.by.iter().all(|part| *part == Part::Global || limit.by.contains(part));
        always_refuses(policy, tight)
            && !scales
            && same_subject
            && tight.missing == limit.missing
            && tight.cost == limit.cost
            && (tight.counts == Counts::All || tight.counts == limit.counts)
            && (tight.row.is_none() || tight.row == limit.row)
            // A lost store may be the one occasion on which the limit acts.
            && tight.on_store_failure == limit.on_store_failure
            && limit.on_store_failure != OnStoreFailure::Deny
            && !limit.is_leased()
            && implies(policy, &limit.when, &tight.when)
            && self.all_below(tight, limit)
    }

    /// True if each spec of one limit keeps a key below each spec of another. A user may have filled the
    /// key under another tier, unless tiers count apart.
    fn all_below(&self, tight: &Limit, limit: &Limit) -> bool {
        let rules = &self.policy.identity;
        let defaults =
            DefaultTiers { anonymous: rules.anonymous_tier, default: rules.default_tier };
        let tiers = |limit: &Limit| -> Vec<TierId> {
            let audience = Audience::of(limit);
            let all = (0..).take(self.policy.tiers.len());
            all.filter(|tier| audience.includes(*tier, defaults)).collect()
        };
        let (reaching, count_apart) = (tiers(limit), tight.row.is_some());
        let pairs = reaching.iter().flat_map(|tier| {
            let others = reaching.iter().filter(move |other| !count_apart || *other == tier);
            others.map(move |other| (*tier, *other))
        });
        let mut bound = false;
        for (tier, other) in pairs {
            match (setting(limit, tier), setting(tight, other)) {
                (Some(Setting::Unlimited), _) => {}
                (Some(Setting::Limited(loose)), Some(Setting::Limited(tight)))
                    if is_below(&tight, &loose) =>
                {
                    bound = true;
                }
                _ => return false,
            }
        }
        bound
    }

    /// A tier whose name is a word of other languages' specs.
    fn warn_about_spec_words(&self) {
        if self.root.get("tiers").is_some() {
            return;
        }
        for limit in self.root.get("limits").and_then(Node::entries).unwrap_or_default() {
            let specs =
                Algorithm::ALL.iter().filter_map(|one| Some((one, limit.value.get(one.name())?)));
            for (algorithm, node) in specs.filter(|_| limit.value.get("tier_by").is_none()) {
                let entries = node.entries().unwrap_or_default();
                for entry in entries.iter().filter(|entry| advice::is_spec_word(&entry.key)) {
                    let (key, name) = (&entry.key, algorithm.name());
                    let message = format!("found `{key}` as the name of a tier");
                    let help = format!(
                        "if it is none, write the spec as one text, such as `{name}: 5/min`; if it is \
                         one, name it under `tiers`"
                    );
                    self.diagnostics.warn(entry.key_at, message, help);
                }
            }
        }
    }
}

/// True if a limit refuses, delays or challenges.
fn acts(limit: &Limit) -> bool {
    !limit.shadow && limit.exceed != Exceed::Warn && limit.algorithm != Algorithm::Ceiling
}

/// The setting of a limit for a tier; `None` if it depends on more.
fn setting(limit: &Limit, tier: TierId) -> Option<Setting> {
    match &limit.settings {
        Settings::Everyone(setting) => Some(*setting),
        Settings::ByTier(settings) => *settings.get(usize::try_from(tier).ok()?)?,
        Settings::ByAttribute { .. } => None,
    }
}

/// True if what a tight spec lets through never exceeds a loose spec.
fn is_below(tight: &Spec, loose: &Spec) -> bool {
    let at_most = |window_us: u64, limit: u64| {
        number_within(tight, window_us).is_some_and(|number| number <= limit)
    };
    match loose {
        Spec::Plain(algorithm::Spec::SlidingWindow(loose)) => {
            at_most(loose.window_us, loose.limit.whole())
        }
        Spec::Plain(algorithm::Spec::FixedWindow(loose)) => {
            at_most(loose.window_us, loose.limit.whole())
        }
        // Its estimate is at most what came in this window and the one before.
        Spec::Plain(algorithm::Spec::SlidingCounter(loose)) => {
            at_most(loose.window_us.saturating_mul(2), loose.limit.whole())
        }
        // The longest ones, when clocks are put back.
        Spec::Calendar { limit, unit } => {
            let days = match unit {
                Unit::Day => 1,
                Unit::Week => 7,
                Unit::Month => 31,
            };
            at_most((days * 24 + 2) * HOUR_US, limit.whole())
        }
        // A bucket is there for its bursts, and the others have no window.
        Spec::Plain(_) => false,
    }
}
