//! Warnings about numbers that do not go together: steps and samples that are never reached, bans that
//! are over before what they are for, and secrets that travel in the open.

use super::warnings::position;
use crate::algorithm;
use crate::algorithm::calendar::Unit;
use crate::decision::Outcome;
use crate::policy::diagnostics::{Position, Reporter};
use crate::policy::document::Node;
use crate::policy::model::{Cost, Counts, Exceed, Limit, Part, Policy, Setting, Settings, Spec};
use crate::policy::protection::{BUILT_IN_EVENTS, Event, EventId, Penalty, Ratio};
use crate::policy::when::When;
use crate::units::{Amount, SECOND_US, written_duration};

const HOUR_US: u64 = 3_600 * SECOND_US;

/// Everything that can be said once the policy stands.
pub(super) fn warn(policy: &Policy, root: &Node, diagnostics: &Reporter) {
    for penalty in &policy.protection.penalties {
        let at = |from: u32| step_position(root, &penalty.name, from);
        above_limits(policy, penalty, at, diagnostics);
        behind_a_ban(policy, penalty, at, diagnostics);
        short_ban(penalty, at, diagnostics);
    }
    for ratio in &policy.protection.ratios {
        let at = position(root, "ratios", &ratio.name);
        too_few(policy, ratio, at, diagnostics);
    }
    in_the_open(root, diagnostics);
}

/// Where a step stands.
fn step_position(root: &Node, penalty: &str, from: u32) -> Position {
    let section = root.get("penalties").and_then(|node| node.get(penalty));
    let ladder = section.and_then(|node| node.get("ladder")).and_then(Node::entries);
    let mut steps = ladder.unwrap_or_default().iter();
    let step = steps.find(|entry| entry.key.parse() == Ok(from));
    step.map_or_else(|| position(root, "penalties", penalty), |entry| entry.key_at)
}

/// Steps above what limits let through within the span.
fn above_limits(
    policy: &Policy,
    penalty: &Penalty,
    at: impl Fn(u32) -> Position,
    diagnostics: &Reporter,
) {
    let Some(most) = Most::of(policy, &penalty.events, &penalty.by, penalty.within_us) else {
        return;
    };
    if let Some(step) = penalty.ladder.iter().find(|step| u64::from(step.from) > most.number) {
        let span = written_duration(penalty.within_us);
        let message = format!(
            "the step {} of `{}` is not reached by requests: found at most {} such answers within \
             {span}, as many as the limit `{}` lets through",
            step.from, penalty.name, most.number, most.limit
        );
        let help = format!("expected a step of at most {}, or a longer span", most.number);
        diagnostics.warn(at(step.from), message, help);
    }
}

/// Steps that nobody reaches because a lower one bans for as long as events count.
fn behind_a_ban(
    policy: &Policy,
    penalty: &Penalty,
    at: impl Fn(u32) -> Position,
    diagnostics: &Reporter,
) {
    let bans = |step: &&crate::policy::protection::Step| {
        let ban = step.ban.as_ref();
        ban.is_some_and(|ban| ban.by.is_none() && ban.for_us >= penalty.within_us)
    };
    let Some(place) = penalty.ladder.iter().position(|step| bans(&step)) else { return };
    let ceases = |id: &EventId| ends_with_a_ban(policy, *id);
    let (Some(lower), Some(step)) = (penalty.ladder.get(place), penalty.ladder.get(place + 1))
    else {
        return;
    };
    if penalty.events.iter().all(ceases) {
        let span = written_duration(penalty.within_us);
        let message = format!(
            "the step {} of `{}` is not reached by requests: from {} on they are refused until the ban \
             is over, and by then all {} are older than {span}",
            step.from, penalty.name, lower.from, lower.from
        );
        let help = format!("expected a ban shorter than {span} below it, or `banned` counted too");
        diagnostics.warn(at(step.from), message, help);
    }
}

/// A ban that is over while its events still count, and nothing above it: rule 6 bans once, until the
/// count has fallen below its step.
fn short_ban(penalty: &Penalty, at: impl Fn(u32) -> Position, diagnostics: &Reporter) {
    let banning = penalty.ladder.iter().rev().find_map(|step| Some((step, step.ban.as_ref()?)));
    let Some((step, ban)) = banning.filter(|(_, ban)| ban.for_us < penalty.within_us) else {
        return;
    };
    let (lasts, span) = (written_duration(ban.for_us), written_duration(penalty.within_us));
    let message = format!(
        "the ban of `{}` is over after {lasts}, but its events count for {span}: whoever goes on is \
         not banned again until fewer than {} of them are within {span}",
        penalty.name, step.from
    );
    let help =
        format!("ban for {span} or longer, shorten `within`, or add a higher step that bans");
    diagnostics.warn(at(step.from), message, help);
}

/// A sample that is never large enough.
fn too_few(policy: &Policy, ratio: &Ratio, at: Position, diagnostics: &Reporter) {
    let most = Most::of(policy, &[ratio.to], &ratio.by, ratio.within_us);
    if let Some(most) = most.filter(|most| most.number < u64::from(ratio.at_least)) {
        let (span, name) = (written_duration(ratio.within_us), &ratio.name);
        let message = format!(
            "the ratio `{name}` never means anything: found at most {} events to compare with \
             within {span}, as many as the limit `{}` lets through, expected {}",
            most.number, most.limit, ratio.at_least
        );
        let help = format!("lower `at_least` to {} or less, or choose a longer span", most.number);
        diagnostics.warn(at, message, help);
    }
}

/// Whether an event ceases for whoever is banned. One that applications report need not.
fn ends_with_a_ban(policy: &Policy, id: EventId) -> bool {
    let failed_challenge = BUILT_IN_EVENTS.get(usize::from(id)) == Some(&"challenge_failed");
    let event = policy.protection.events.get(usize::from(id));
    failed_challenge
        || event.is_some_and(|event| match event.outcome {
            Some(outcome) => matches!(outcome, Outcome::Limited | Outcome::Challenged),
            None => !event.statuses.is_empty(),
        })
}

/// How often something happens at the most, and for which limit.
struct Most<'p> {
    number: u64,
    limit: &'p str,
}

impl<'p> Most<'p> {
    /// Of answers to one subject within a span; `None` where limits do not bound them.
    fn of(policy: &'p Policy, events: &[EventId], by: &[Part], within_us: u64) -> Option<Self> {
        let of = |id: &EventId| {
            let event = policy.protection.events.get(usize::from(*id))?;
            let bounds = policy.limits.iter().filter(|limit| bounds(policy, limit, event, by));
            let numbers = bounds.filter_map(|limit| {
                Some(Self { number: most_of(limit, within_us)?, limit: &limit.name })
            });
            numbers.min_by_key(|most| most.number)
        };
        let mut sum: Option<Self> = None;
        for id in events {
            let one = of(id)?;
            let number = sum.map_or(0, |sum| sum.number).saturating_add(one.number);
            sum = Some(Self { number, ..one });
        }
        sum
    }
}

/// Whether a limit bounds how often answers make an event of one subject.
fn bounds(policy: &Policy, limit: &Limit, event: &Event, by: &[Part]) -> bool {
    let protection = &policy.protection;
    let refuses = !limit.shadow && matches!(limit.exceed, Exceed::Reject | Exceed::Wait { .. });
    let graced = protection.steps().any(|step| step.allow);
    let scales = limit.scaled && !protection.factors.is_empty();
    let fails = event.statuses.iter().all(|statuses| statuses.first >= 400);
    let stays = limit.counts == Counts::All || limit.counts == Counts::Failures && fails;
    let costs = match limit.cost {
        Cost::Requested => true,
        Cost::Fixed(cost) => cost >= Amount::ONE,
        Cost::Attribute(_) => false,
    };
    let of_subject = limit.by.iter().all(|part| *part == Part::Global || by.contains(part));
    let seen = event.outcome.is_none() && !event.statuses.is_empty();
    seen && refuses
        && !graced
        && !scales
        && stays
        && costs
        && of_subject
        && limit.row.is_none()
        && covers(&limit.when, &event.when)
}

/// Whether a condition on operations alone holds wherever another does.
fn covers(broad: &When, narrow: &When) -> bool {
    let When {
        operations,
        tiers: None,
        methods: None,
        paths: None,
        networks: None,
        countries: None,
        authenticated: None,
        internal: None,
        attributes,
        not: None,
    } = broad
    else {
        return false;
    };
    let within = |broad: &Vec<_>| {
        let narrow = narrow.operations.as_ref();
        narrow.is_some_and(|narrow| narrow.iter().all(|one| broad.contains(one)))
    };
    attributes.is_empty() && operations.as_ref().is_none_or(within)
}

/// How many requests of one key a limit lets through within a span, by its most generous row.
fn most_of(limit: &Limit, within_us: u64) -> Option<u64> {
    let most = |setting: &Setting| match setting {
        Setting::Limited(spec) => most_by(spec, within_us),
        Setting::Unlimited => None,
    };
    match &limit.settings {
        Settings::Everyone(setting) => most(setting),
        Settings::ByTier(settings) => {
            settings.iter().flatten().map(most).try_fold(0, |all, one| Some(one?.max(all)))
        }
        Settings::ByAttribute { .. } => None,
    }
}

fn most_by(spec: &Spec, within_us: u64) -> Option<u64> {
    let windows = |limit: Amount, number: u64| Some(limit.whole().saturating_mul(number));
    match spec {
        Spec::Plain(algorithm::Spec::SlidingWindow(spec)) => {
            windows(spec.limit, within_us.div_ceil(spec.window_us.max(1)))
        }
        Spec::Plain(algorithm::Spec::FixedWindow(spec)) => {
            windows(spec.limit, within_us.div_ceil(spec.window_us.max(1)).saturating_add(1))
        }
        Spec::Plain(algorithm::Spec::TokenBucket(spec)) => {
            let refilled = u128::from(spec.count.micros()) * u128::from(within_us)
                / u128::from(spec.period_us.max(1));
            let all = refilled.saturating_add(u128::from(spec.burst.micros())) / 1_000_000;
            u64::try_from(all).ok()
        }
        Spec::Calendar { limit, unit } => {
            // The shortest that there are, where clocks are set.
            let shortest_us = match unit {
                Unit::Day => 23 * HOUR_US,
                Unit::Week => (7 * 24 - 1) * HOUR_US,
                Unit::Month => (28 * 24 - 1) * HOUR_US,
            };
            windows(*limit, within_us.div_ceil(shortest_us).saturating_add(1))
        }
        Spec::Plain(_) => None,
    }
}

/// Addresses of a captcha that others on the way can read, or change what they answer.
fn in_the_open(root: &Node, diagnostics: &Reporter) {
    let Some(challenge) = root.get("challenge") else { return };
    for (key, why) in [
        ("verify_url", "the secret travels there unencrypted"),
        ("script_url", "whoever is on the way may put another script in its place"),
    ] {
        let Some(node) = challenge.get(key) else { continue };
        let address = node.text().and_then(|text| text.strip_prefix("http://"));
        if address.is_some_and(|address| !is_loopback(address)) {
            let message = format!("found plain http in `{key}`, expected https: {why}");
            diagnostics.warn(node.at, message, "only a host on loopback needs no https");
        }
    }
}

/// Whether an address, without its scheme, is of this machine.
fn is_loopback(address: &str) -> bool {
    let authority = address.split(['/', '?', '#']).next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    let is_address = host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    is_address || host.eq_ignore_ascii_case("localhost")
}
