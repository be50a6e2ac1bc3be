//! Bans and flags for people to read. Nothing of what they say drives the terminal.

use serde_json::Value;

use crate::command::validate::plural;
use crate::{paint, say};

/// One line for each.
pub(super) fn list(what: &str, marks: &[Value], more: bool) {
    let width = marks.iter().map(|mark| subject_of(mark).chars().count()).max().unwrap_or_default();
    for mark in marks {
        let subject = subject_of(mark);
        say!("{}  {}", paint::strong(format!("{subject:<width$}")), rest(mark));
    }
    let counted = format!("{} {}", marks.len(), plural(marks.len(), what));
    let more = if more { ", and there are more" } else { "" };
    say!("{}", paint::faint(format!("{counted}{more}")));
}

/// One that was made.
pub(super) fn one(mark: &Value) {
    say!("{}  {}", paint::strong(subject_of(mark)), rest(mark));
}

pub(super) fn removed(what: &str, removed: u64) {
    let many = plural(usize::try_from(removed).unwrap_or(usize::MAX), what);
    match removed {
        0 => say!("There is no such {what}."),
        _ => say!("removed {removed} {many}"),
    }
}

/// `user u1`.
fn subject_of(mark: &Value) -> String {
    let parts = mark["key"].as_object().into_iter().flatten();
    let parts: Vec<String> =
        parts.map(|(name, value)| format!("{} {}", paint::plain(name), text(value))).collect();
    parts.join(", ")
}

/// Which flag, until when, by what and why.
fn rest(mark: &Value) -> String {
    let flag = mark["flag"].as_str().map(|flag| paint::careful(paint::plain(flag)));
    let left = match mark["left_ms"].as_u64() {
        None => "until it is removed".to_owned(),
        Some(ms) => format!("for another {}s", ms.div_ceil(1_000)),
    };
    let source = format!("by {}", text(&mark["source"]));
    let policy = mark["policy"].as_str().map(|policy| format!("in {}", paint::plain(policy)));
    let reason = mark["reason"].as_str().filter(|reason| !reason.is_empty()).map(paint::plain);
    let parts = [flag, Some(left), Some(source), policy, reason];
    parts.into_iter().flatten().collect::<Vec<_>>().join("  ")
}

fn text(value: &Value) -> String {
    paint::plain(value.as_str().unwrap_or_default())
}
