//! The rate limit headers: `X-RateLimit-*` of the limit that a decision names, and `RateLimit-Policy` with
//! `RateLimit` of all published limits (draft-ietf-httpapi-ratelimit-headers-11).

use super::{HeaderStyle, Sink};
use crate::algorithm::{Spec, token_bucket};
use crate::decision::{Decision, LimitReport};
use crate::plan::Enforcement;
use crate::policy::model::{Algorithm, Limit};
use crate::text::{push_decimal, push_number};
use crate::units::{Amount, SECOND_US, seconds_rounded_up};

/// The unit of a limit on concurrency, as it is and in a JSON string. The others count requests.
const CONCURRENT: [&str; 2] = [";qu=\"concurrent-requests\"", ";qu=\\\"concurrent-requests\\\""];

pub(super) fn render<'d, S: Sink<'d>>(decision: &Decision, sink: &mut S) {
    let style = decision.policy().response.headers;
    if let Some(named) = decision.limit().filter(|_| style != HeaderStyle::Ietf) {
        let limit = named.spec.number();
        sink.header("X-RateLimit-Limit", |text| push_decimal(text, limit.micros()));
        // A bucket may hold more than its rate says.
        let remaining = named.remaining().min(limit.whole());
        sink.header("X-RateLimit-Remaining", |text| push_number(text, remaining));
        if let Some(reset) = reset_unix_seconds(decision, named) {
            sink.header("X-RateLimit-Reset", |text| push_number(text, reset));
        }
    }
    if style != HeaderStyle::X && published_limits(decision).next().is_some() {
        sink.header("RateLimit-Policy", |text| write_policies(decision, S::IN_JSON, text));
        sink.header("RateLimit", |text| write_states(decision, S::IN_JSON, text));
    }
}

/// When nothing is owed any more, as Unix seconds, rounded up.
pub(super) fn reset_unix_seconds(decision: &Decision, report: &LimitReport) -> Option<u64> {
    report.reset_us.map(|us| decision.now.unix_us.saturating_add(us).div_ceil(SECOND_US))
}

/// The limits that a client may know of.
pub(super) fn published_limits(
    decision: &Decision,
) -> impl Iterator<Item = (&Limit, &LimitReport)> {
    let shown = |report: &&LimitReport| report.enforcement != Enforcement::Shadow;
    decision.limits.iter().filter(shown).filter_map(|report| {
        let limit = decision.limit_of(report).filter(|limit| limit.is_published())?;
        Some((limit, report))
    })
}

/// A limit's name in quotes and the name of its first parameter, as the rate limit headers have them:
/// as it is, and as it stands in a JSON string; and the beginning of an object that tells of it. Every
/// answer has a few of them.
#[derive(Debug)]
pub(crate) struct HeaderItems {
    policy: [String; 2],
    state: [String; 2],
    pub(crate) json_head: String,
}

impl HeaderItems {
    pub(crate) fn new(name: &str, algorithm: Algorithm) -> Self {
        let item = |quote, parameter| format!("{quote}{name}{quote};{parameter}=");
        let both = |parameter| [item("\"", parameter), item("\\\"", parameter)];
        let json_head = format!("{{\"name\":\"{name}\",\"algorithm\":\"{}\",", algorithm.name());
        Self { policy: both("q"), state: both("r"), json_head }
    }
}

/// `"per-user";q=100;w=60, …`
fn write_policies(decision: &Decision, in_json: bool, text: &mut String) {
    for (index, (limit, report)) in published_limits(decision).enumerate() {
        text.push_str(if index > 0 { ", " } else { "" });
        text.push_str(&limit.items.policy[usize::from(in_json)]);
        push_number(text, quota(&report.spec));
        if matches!(report.spec, Spec::Concurrency(_)) {
            text.push_str(CONCURRENT[usize::from(in_json)]);
        }
        if let Some(seconds) = window_s(&report.spec) {
            text.push_str(";w=");
            push_number(text, seconds);
        }
    }
}

/// `"per-user";r=99;t=60, …`
fn write_states(decision: &Decision, in_json: bool, text: &mut String) {
    for (index, (limit, report)) in published_limits(decision).enumerate() {
        text.push_str(if index > 0 { ", " } else { "" });
        text.push_str(&limit.items.state[usize::from(in_json)]);
        let remaining = report.remaining().min(quota(&report.spec));
        push_number(text, remaining);
        if let Some(window_s) = window_s(&report.spec) {
            text.push_str(";t=");
            push_number(text, effective_window_s(report, remaining, window_s));
        }
    }
}

/// The most that could remain.
fn quota(spec: &Spec) -> u64 {
    spec.capacity().whole()
}

/// The seconds in which the whole quota comes once: a bucket refills, a window passes.
fn window_s(spec: &Spec) -> Option<u64> {
    spec.refill_us().map(|us| seconds_rounded_up(us).max(1))
}

/// The seconds in which a client can use no more than what remains: until more comes, and not less than
/// the limit takes to give that much, so that nobody concludes a rate above the limit's.
fn effective_window_s(report: &LimitReport, remaining: u64, window_s: u64) -> u64 {
    let pace_s = match remaining.checked_mul(window_s) {
        Some(product) => product.div_ceil(quota(&report.spec).max(1)),
        // What remains is at most the quota.
        None => window_s,
    };
    seconds_rounded_up(us_until_more(report)).max(pace_s).max(1)
}

/// Until a further unit can be spent, as far as that is longer than the pace says.
fn us_until_more(report: &LimitReport) -> u64 {
    match &report.spec {
        Spec::TokenBucket(bucket) if report.remaining() == 0 => us_until_token(bucket, report),
        // The next token comes sooner than the bucket would have given what is left.
        Spec::TokenBucket(_) => 0,
        spec if report.available >= spec.capacity() => 0,
        // A sliding window that passes a request tells only when its newest entry is gone.
        _ => report.retry_after_us().or(report.reset_us).unwrap_or_default(),
    }
}

/// Until an empty bucket has a token: when it is full, without what comes after that token.
fn us_until_token(bucket: &token_bucket::Spec, report: &LimitReport) -> u64 {
    let refill_us = |amount: Amount| {
        let product = u128::from(amount.micros()) * u128::from(bucket.period_us);
        let us = product / u128::from(bucket.count.micros().max(1));
        u64::try_from(us).unwrap_or(u64::MAX)
    };
    let missing = bucket.burst.saturating_sub(report.available);
    let full_us = report.reset_us.unwrap_or_else(|| refill_us(missing));
    full_us.saturating_sub(refill_us(bucket.burst.saturating_sub(Amount::ONE)))
}
