//! Advice on words that other languages have, and on texts that YAML cuts in two.

use super::fields::{is_header_name, is_name};
use crate::policy::diagnostics::shown;
use crate::policy::document::{Entry, Node, Value};
use crate::policy::model::Algorithm;
use crate::rate::BurstRate;

/// Words for a number of requests, in the configurations of other limiters.
const COUNT_WORDS: [&str; 8] =
    ["rate", "limit", "max", "requests", "max_requests", "capacity", "points", "tokens"];
/// Words for a time.
const PERIOD_WORDS: [&str; 6] = ["window", "period", "per", "interval", "duration", "seconds"];
const BURST: &str = "burst";
/// The conditions of a limit.
const CONDITIONS: [&str; 7] =
    ["operation", "method", "path", "country", "authenticated", "internal", "attributes"];

/// What to do about an unknown key, and the key that was meant.
pub(super) struct Advice {
    pub(super) help: String,
    pub(super) meant: Option<&'static str>,
}

/// True if a word is a part of a spec in other languages: `rate`, `burst`, `window`.
pub(super) fn is_spec_word(word: &str) -> bool {
    word == BURST || COUNT_WORDS.contains(&word) || PERIOD_WORDS.contains(&word)
}

/// True if a map takes a spec apart, instead of giving one to each tier.
pub(super) fn is_spec_map(entries: &[Entry]) -> bool {
    !entries.is_empty() && entries.iter().all(|entry| is_spec_word(&entry.key))
}

/// The spec that a map takes apart, such as `20/min burst 5`, if it is complete.
pub(super) fn joined_spec(entries: &[Entry]) -> Option<String> {
    let find = |words: &[&str]| {
        let entry = entries.iter().find(|entry| words.contains(&entry.key.as_str()));
        entry.and_then(|entry| entry.value.text())
    };
    let count = find(&COUNT_WORDS)?;
    let rate = match find(&PERIOD_WORDS) {
        _ if count.contains('/') => count.to_owned(),
        Some(period) => {
            let unit =
                period.strip_prefix('1').filter(|unit| unit.starts_with(char::is_alphabetic));
            format!("{count}/{}", unit.unwrap_or(period))
        }
        None => return None,
    };
    let spec = find(&[BURST]).map_or(rate.clone(), |burst| format!("{rate} burst {burst}"));
    spec.parse::<BurstRate>().is_ok().then_some(spec)
}

/// Advice on a key that a limit does not have.
pub(super) fn on_limit_key(entries: &[Entry], entry: &Entry) -> Option<Advice> {
    let key = entry.key.as_str();
    let spec = |algorithm: Algorithm| {
        let find = |entry: &&Entry| entry.key == algorithm.name();
        entries.iter().find(find).and_then(|entry| entry.value.text())
    };
    if let Some(condition) = CONDITIONS.iter().find(|condition| **condition == key) {
        let value = entry.value.text().map_or_else(|| "…".to_owned(), shown);
        let help = format!("write it under `when`: `when: {{ {condition}: {value} }}`");
        return Some(Advice { help, meant: Some("when") });
    }
    if !is_spec_word(key) {
        return None;
    }
    let named = Algorithm::ALL.into_iter().find(|algorithm| spec(*algorithm).is_some());
    let help = match (named, entry.value.text()) {
        (Some(Algorithm::TokenBucket), Some(burst)) if key == BURST => {
            let rate = spec(Algorithm::TokenBucket).unwrap_or_default();
            format!("write it in the spec: `token_bucket: {} burst {}`", shown(rate), shown(burst))
        }
        (Some(_), _) if key == BURST => {
            "only a `token_bucket` has a burst: `token_bucket: 20/min burst 5`".to_owned()
        }
        _ => {
            let spec = joined_spec(entries);
            let algorithm = if spec.as_ref().is_some_and(|spec| spec.contains(BURST)) {
                Algorithm::TokenBucket
            } else {
                named.unwrap_or(Algorithm::SlidingWindow)
            };
            let spec = spec.as_deref().map_or("5/min".to_owned(), shown);
            format!("a spec is one text: write `{}: {spec}`", algorithm.name())
        }
    };
    Some(Advice { help, meant: Some(Algorithm::SlidingWindow.name()) })
}

/// Advice on an unknown key that is the rest of a text, or that should be indented. `known` tells the
/// keys that the map has.
pub(super) fn on_place(
    entries: &[Entry],
    place: usize,
    known: impl Fn(&str) -> bool,
) -> Option<Advice> {
    let entry = entries.get(place)?;
    let (before, behind) = entries.split_at(place);
    if entry.value.is_null() {
        // In `{ message: Wait, please }` the comma ends the text, and `please` is a key.
        let is_rest = |one: &Entry| one.value.is_null() && !known(&one.key);
        let (text_place, text) = before.iter().enumerate().rev().find(|(_, one)| !is_rest(one))?;
        let is_text = matches!(&text.value.value, Value::Scalar(scalar) if !scalar.quoted);
        if is_text && !text.value.is_null() && text.value.at.line == entry.key_at.line {
            let rest =
                before[text_place + 1..].iter().chain(behind.iter().take_while(|one| is_rest(one)));
            let rest: String = rest.map(|one| format!(", {}", one.key)).collect();
            let whole = format!("{}{rest}", text.value.text().unwrap_or_default());
            let help = format!(
                "a comma ends a text, unless it is quoted: `{}: \"{}\"`",
                text.key,
                shown(&whole)
            );
            return Some(Advice { help, meant: None });
        }
    }
    let parent = before.iter().rev().find(|one| known(&one.key))?;
    let is_empty = parent.value.is_null() && parent.key_at.line < entry.key_at.line;
    let help = format!("if it belongs to `{}`, indent it further", parent.key);
    is_empty.then_some(Advice { help, meant: None })
}

/// Advice on a part of `by` that is neither a word of the language nor an attribute.
pub(super) fn on_part(name: &str) -> Option<String> {
    let parts: Vec<&str> = name.split(['+', ',', '&', '|', ':', ' ']).map(str::trim).collect();
    if parts.len() > 1 && parts.iter().all(|part| is_name(part)) {
        return Some(format!("write several parts as a list: `[{}]`", parts.join(", ")));
    }
    let is_header =
        name.starts_with(|first: char| first.is_ascii_uppercase()) || name.starts_with("x-");
    (is_header && is_header_name(name))
        .then(|| format!("write `header.{name}` for the value of a header"))
}

/// Advice on something that should be a map.
pub(super) fn on_map(node: &Node, what: &str) -> Option<String> {
    match &node.value {
        Value::List(_)
            if ["`limits`", "`operations`", "`attributes`", "`events`", "`penalties`"]
                .contains(&what) =>
        {
            Some("write `NAME: …` instead of `- …`".to_owned())
        }
        Value::Scalar(scalar) if what == "an exemption" && scalar.text.starts_with('/') => {
            Some(format!("write `path: {}`", shown(&scalar.text)))
        }
        Value::Scalar(scalar) if scalar.is_null() => {
            Some("write its keys below it, indented by two spaces more".to_owned())
        }
        _ => None,
    }
}
