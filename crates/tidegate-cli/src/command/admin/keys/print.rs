//! Keys for people to read. Nothing of a name drives the terminal.

use serde_json::Value;

use crate::command::validate::plural;
use crate::{paint, say};

/// One line for each key.
pub(super) fn list(keys: &[Value], more: bool) {
    let width = |of: fn(&Value) -> String| {
        keys.iter().map(|key| of(key).chars().count()).max().unwrap_or_default()
    };
    let (names, limits) = (width(name), width(limit));
    for key in keys {
        let (name, limit) = (name(key), limit(key));
        let limit = paint::good(format!("{limit:<limits$}"));
        say!("{name:<names$}  {limit}  {}", text(&key["meaning"]));
    }
    total(keys.len(), more);
}

/// All that is known of each key.
pub(super) fn each(keys: &[Value], more: bool) {
    for (place, key) in keys.iter().enumerate() {
        if place > 0 {
            say!("");
        }
        one(key);
    }
    if keys.len() > 1 || more {
        say!("");
        total(keys.len(), more);
    }
}

fn one(key: &Value) {
    let line = |label: &str, value: &str| {
        say!("{} {value}", paint::faint(format!("{label:<10}")));
    };
    line("key", &paint::strong(name(key)));
    line("limit", &limit(key));
    line("policy", &optional(&key["policy"]));
    reading(key, &line);
    line("expires in", &time(&key["expires_ms"]));
    line("means", &text(&key["meaning"]));
    for pace in key["paces"].as_array().into_iter().flatten() {
        say!("{}", paint::faint("at this pace:"));
        reading(pace, &line);
    }
}

fn reading(key: &Value, line: &impl Fn(&str, &str)) {
    if key["algorithm"].is_null() {
        return;
    }
    line("algorithm", &text(&key["algorithm"]));
    line("spec", &text(&key["spec"]));
    line("used", &format!("{} of {}", key["used"], key["capacity"]));
    line("available", &key["available"].to_string());
    line("as new in", &time(&key["reset_ms"]));
}

fn total(count: usize, more: bool) {
    let counted = format!("{count} {}", plural(count, "key"));
    let more = if more { ", and there are more" } else { "" };
    say!("{}", paint::faint(format!("{counted}{more}")));
}

fn name(key: &Value) -> String {
    text(&key["key"])
}

fn limit(key: &Value) -> String {
    match &key["limit"] {
        Value::Null => "of no limit".to_owned(),
        limit => text(limit),
    }
}

fn optional(value: &Value) -> String {
    if value.is_null() { paint::faint("none in force") } else { text(value) }
}

/// Milliseconds, as seconds where there are some.
fn time(ms: &Value) -> String {
    match ms.as_u64() {
        None => "never by itself".to_owned(),
        Some(ms) if ms < 1_000 => format!("{ms}ms"),
        Some(ms) => format!("{}s", ms.div_ceil(1_000)),
    }
}

fn text(value: &Value) -> String {
    paint::plain(value.as_str().unwrap_or_default())
}
