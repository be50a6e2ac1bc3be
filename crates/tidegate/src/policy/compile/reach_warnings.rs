//! Warnings about numbers that do not fit each other: steps and samples that are never reached, bans
//! that end while their events still count, and secrets that travel unencrypted.

use super::warnings::{Warnings, position};
use crate::algorithm;
use crate::algorithm::calendar::Unit;
use crate::decision::Outcome;
use crate::policy::document::Node;
use crate::policy::model::{Cost, Counts, Exceed, Limit, Part, Policy, Setting, Settings, Spec};
use crate::policy::protection::{BUILT_IN_EVENTS, Event, EventId, Penalty, Ratio, Step};
use crate::policy::when::When;
use crate::units::{Amount, SECOND_US, written_duration};

const HOUR_US: u64 = 3_600 * SECOND_US;

impl Warnings<'_> {
    /// Warns about numbers of penalties and ratios that do not go together.
    pub(super) fn warn_about_reach(&self) {
        for penalty in &self.policy.protection.penalties {
            self.warn_if_above_limits(penalty);
            self.warn_if_behind_a_ban(penalty);
            self.warn_if_ban_is_short(penalty);
        }
        for ratio in &self.policy.protection.ratios {
            self.warn_if_sample_is_too_large(ratio);
        }
        self.warn_about_plain_http();
    }

    /// Warns at the step of a penalty.
    fn warn_at_step(&self, penalty: &Penalty, from: u32, message: String, help: String) {
        let section = self.root.get("penalties").and_then(|node| node.get(&penalty.name));
        let ladder = section.and_then(|node| node.get("ladder")).and_then(Node::entries);
        let step = ladder.unwrap_or_default().iter().find(|entry| entry.key.parse() == Ok(from));
        let penalty = || position(self.root, "penalties", &penalty.name);
        let at = step.map_or_else(penalty, |entry| entry.key_at);
        self.diagnostics.warn(at, message, help);
    }

    /// A step above what limits let through within the span.
    fn warn_if_above_limits(&self, penalty: &Penalty) {
        let Penalty { name, events, by, within_us, ladder, .. } = penalty;
        let Some(Bound { number, limit }) = Bound::of(self.policy, events, by, *within_us) else {
            return;
        };
        if let Some(step) = ladder.iter().find(|step| u64::from(step.from) > number) {
            let (span, from) = (written_duration(*within_us), step.from);
            let message = format!(
                "the step {from} of `{name}` is not reached by requests: found at most {number} such \
                 answers within {span}, as many as the limit `{limit}` lets through"
            );
            let help = format!("expected a step of at most {number}, or a longer span");
            self.warn_at_step(penalty, from, message, help);
        }
    }

    /// A step that no request reaches, because a lower one bans for as long as events count.
    fn warn_if_behind_a_ban(&self, penalty: &Penalty) {
        let Penalty { name, within_us, ladder, .. } = penalty;
        let bans = |step: &Step| {
            let ban = step.ban.as_ref();
            ban.is_some_and(|ban| ban.by.is_none() && ban.for_us >= *within_us)
        };
        let banning = ladder.windows(2).find(|steps| bans(&steps[0]));
        let Some([lower, step]) = banning else { return };
        if penalty.events.iter().all(|id| ends_with_a_ban(self.policy, *id)) {
            let (span, from, lower) = (written_duration(*within_us), step.from, lower.from);
            let message = format!(
                "the step {from} of `{name}` is not reached by requests: from {lower} on they are \
                 refused until the ban is over, and by then all {lower} are older than {span}"
            );
            let help =
                format!("expected a ban shorter than {span} below it, or `banned` counted too");
            self.warn_at_step(penalty, from, message, help);
        }
    }

    /// A ban that is over while its events still count, and no step above it. A step bans once, until
    /// the count has fallen below it (rule 6).
    fn warn_if_ban_is_short(&self, penalty: &Penalty) {
        let Penalty { name, within_us, ladder, .. } = penalty;
        let banning = ladder.iter().rev().find_map(|step| Some((step.from, step.ban.as_ref()?)));
        let Some((from, ban)) = banning.filter(|(_, ban)| ban.for_us < *within_us) else { return };
        let (lasts, span) = (written_duration(ban.for_us), written_duration(*within_us));
        let message = format!(
            "the ban of `{name}` is over after {lasts}, but its events count for {span}: whoever goes \
             on is not banned again until fewer than {from} of them are within {span}"
        );
        let help =
            format!("ban for {span} or longer, shorten `within`, or add a higher step that bans");
        self.warn_at_step(penalty, from, message, help);
    }

    /// A sample that limits never let grow large enough.
    fn warn_if_sample_is_too_large(&self, ratio: &Ratio) {
        let Ratio { name, to, by, within_us, at_least, .. } = ratio;
        let bound = Bound::of(self.policy, &[*to], by, *within_us);
        if let Some(Bound { number, limit }) =
            bound.filter(|bound| bound.number < u64::from(*at_least))
        {
            let span = written_duration(*within_us);
            let message = format!(
                "the ratio `{name}` never means anything: found at most {number} events to compare \
                 with within {span}, as many as the limit `{limit}` lets through, expected {at_least}"
            );
            let help = format!("lower `at_least` to {number} or less, or choose a longer span");
            self.diagnostics.warn(position(self.root, "ratios", name), message, help);
        }
    }

    /// Addresses of a captcha that others on the way can read, or whose answers they can change.
    fn warn_about_plain_http(&self) {
        let Some(challenge) = self.root.get("challenge") else { return };
        for (key, why) in [
            ("verify_url", "the secret travels there unencrypted"),
            ("script_url", "whoever is on the way may put another script in its place"),
        ] {
            let Some(node) = challenge.get(key) else { continue };
            let address = node.text().and_then(|text| text.strip_prefix("http://"));
            if address.is_some_and(|address| !is_loopback(address)) {
                let message = format!("found plain http in `{key}`, expected https: {why}");
                let help = "only a host on loopback needs no https";
                self.diagnostics.warn(node.at, message, help);
            }
        }
    }
}

/// True if a banned client makes no more of an event. An event that applications report may go on.
fn ends_with_a_ban(policy: &Policy, id: EventId) -> bool {
    let failed_challenge = BUILT_IN_EVENTS.get(usize::from(id)) == Some(&"challenge_failed");
    let event = policy.protection.events.get(usize::from(id));
    failed_challenge
        || event.is_some_and(|event| match event.outcome {
            Some(outcome) => matches!(outcome, Outcome::Limited | Outcome::Challenged),
            None => !event.statuses.is_empty(),
        })
}

/// The largest number of answers that a limit lets through.
struct Bound<'p> {
    number: u64,
    limit: &'p str,
}

impl<'p> Bound<'p> {
    /// Of answers to one subject within a span; `None` where limits do not bound them.
    fn of(policy: &'p Policy, events: &[EventId], by: &[Part], within_us: u64) -> Option<Self> {
        let mut sum: Option<Self> = None;
        for id in events {
            let event = policy.protection.events.get(usize::from(*id))?;
            let limits = policy.limits.iter().filter(|limit| bounds(policy, limit, event, by));
            let numbers =
                limits.filter_map(|limit| Some((largest_number(limit, within_us)?, limit)));
            let (number, limit) = numbers.min_by_key(|(number, _)| *number)?;
            let number = number.saturating_add(sum.map_or(0, |sum| sum.number));
            sum = Some(Self { number, limit: &limit.name });
        }
        sum
    }
}

/// True if a limit bounds how often answers make an event of one subject.
fn bounds(policy: &Policy, limit: &Limit, event: &Event, by: &[Part]) -> bool {
    let protection = &policy.protection;
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
    seen && always_refuses(policy, limit)
        && !scales
        && stays
        && costs
        && of_subject
        && limit.row.is_none()
        && covers(&limit.when, &event.when)
}

/// True if no request passes a limit that it exceeds: on trial, with a warning, a challenge or grace.
pub(super) fn always_refuses(policy: &Policy, limit: &Limit) -> bool {
    let refuses = !limit.shadow && matches!(limit.exceed, Exceed::Reject | Exceed::Wait { .. });
    refuses && !policy.protection.steps().any(|step| step.allow)
}

/// True if a condition on operations alone holds wherever another does.
fn covers(broad: &When, narrow: &When) -> bool {
    let within = |broad: &Vec<_>| {
        let narrow = narrow.operations.as_ref();
        narrow.is_some_and(|narrow| narrow.iter().all(|one| broad.contains(one)))
    };
    broad.is_only_operations() && broad.operations.as_ref().is_none_or(within)
}

/// How many requests of one key a limit lets through within a span, by its most generous row.
fn largest_number(limit: &Limit, within_us: u64) -> Option<u64> {
    let number = |setting: &Setting| match setting {
        Setting::Limited(spec) => number_within(spec, within_us),
        Setting::Unlimited => None,
    };
    match &limit.settings {
        Settings::ByAttribute { .. } => None,
        settings => settings.all().map(number).try_fold(0, |all, one| Some(one?.max(all))),
    }
}

/// How many requests of one key a spec lets through within a span.
pub(super) fn number_within(spec: &Spec, within_us: u64) -> Option<u64> {
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
            // The shortest ones, when clocks are put forward.
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

/// True if an address, without its scheme, is of this machine.
fn is_loopback(address: &str) -> bool {
    let authority = address.split(['/', '?', '#']).next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    let is_address = host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    is_address || host.eq_ignore_ascii_case("localhost")
}
