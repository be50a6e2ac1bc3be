//! Problem details (RFC 9457), for policies that write no body of their own. Their types are those of
//! draft-ietf-httpapi-ratelimit-headers-11.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::body::Values;
use super::headers::published_limits;
use crate::decision::{Decision, Outcome};
use crate::plan::Enforcement;
use crate::text::{push_json, push_number};
use crate::units::seconds_rounded_up;

pub(super) fn write(values: &Values<'_>, out: &mut String) {
    let decision = values.decision;
    out.push_str("{\"type\":\"");
    out.push_str(problem_type(decision));
    out.push('"');
    if let Some(title) = title(decision.status()) {
        out.push_str(",\"title\":");
        push_json(out, title);
    }
    out.push_str(",\"status\":");
    push_number(out, u64::from(decision.status()));
    out.push_str(",\"detail\":\"");
    match decision.outcome {
        Outcome::Blocked => out.push_str("This address is blocked"),
        Outcome::Banned => write_banned(decision, out),
        Outcome::Challenged if values.own_message().is_none() => {
            out.push_str("A challenge must be solved first");
        }
        _ => values.write_message(out),
    }
    out.push('"');
    if let Some(name) = decision.limit_name() {
        out.push_str(",\"limit\":");
        push_json(out, name);
    }
    write_violated_policies(decision, out);
    if let Some(us) = values.retry_after_us {
        out.push_str(",\"retryAfter\":");
        push_number(out, seconds_rounded_up(us).max(1));
    }
    out.push('}');
}

fn problem_type(decision: &Decision) -> &'static str {
    match decision.outcome {
        Outcome::Limited if decision.has_reduced_capacity() => {
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
        }
        Outcome::Limited => "https://iana.org/assignments/http-problem-types#quota-exceeded",
        Outcome::Banned | Outcome::Challenged => {
            "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
        }
        _ => "about:blank",
    }
}

/// The published limits that refuse; left out if none does.
fn write_violated_policies(decision: &Decision, out: &mut String) {
    let refusing = published_limits(decision)
        .filter(|(_, report)| report.enforcement == Enforcement::Reject && !report.is_allowed());
    let mut open = ",\"violated-policies\":[";
    for (limit, _) in refusing {
        out.push_str(std::mem::replace(&mut open, ","));
        push_json(out, limit.name());
    }
    if open == "," {
        out.push(']');
    }
}

/// That a client is banned, and until when, where that ends by itself.
fn write_banned(decision: &Decision, out: &mut String) {
    out.push_str("This client is banned");
    let until_us = decision.ban().and_then(|ban| ban.until_unix_us);
    let until = until_us.and_then(|us| i64::try_from(seconds_rounded_up(us)).ok());
    if let Some(until) = until.and_then(|seconds| Timestamp::from_second(seconds).ok()) {
        // Writing to a String cannot fail.
        let _ = write!(out, " until {until}");
    }
}

/// What HTTP calls a status, for those that a policy is likely to refuse with.
fn title(status: u16) -> Option<&'static str> {
    Some(match status {
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        409 => "Conflict",
        423 => "Locked",
        429 => "Too Many Requests",
        503 => "Service Unavailable",
        _ => return None,
    })
}
