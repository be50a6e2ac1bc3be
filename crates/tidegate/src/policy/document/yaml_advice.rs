//! Advice on what is not YAML: the mistakes that trip most people.

use crate::policy::diagnostics::{Position, shown};

/// What to do about a text that the parser could not read from a position on.
pub(super) fn advise(info: &str, at: Position, text: &str) -> Option<String> {
    let index = usize::try_from(at.line.saturating_sub(1)).unwrap_or(usize::MAX);
    let line = text.lines().nth(index).unwrap_or_default();
    let previous = text.lines().nth(index.wrapping_sub(1)).unwrap_or_default();
    if let Some(quoted) = quoted(line, at) {
        return Some(format!("a colon ends a text, unless it is quoted: `{quoted}`"));
    }
    if info.contains("flow") && line.contains('{') {
        let help = "inside `{ }` and `[ ]`, quote a value that has braces: \"${NAME}\"";
        return Some(help.to_owned());
    }
    if let Some(before) = [line, previous].into_iter().find(|line| lacks_space(line)) {
        return Some(format!("a space belongs after the colon in `{}`", shown(before.trim())));
    }
    if line[..line.len() - line.trim_start().len()].contains('\t') {
        return Some("indent with spaces: YAML takes no tabs".to_owned());
    }
    on_indentation(line, text.lines().take(index))
}

/// `key: "a text: with a colon"`, of a line in which the parser stopped at the second colon.
fn quoted(line: &str, at: Position) -> Option<String> {
    let column = usize::try_from(at.column.saturating_sub(1)).ok()?;
    let place = line.char_indices().nth(column).map(|(place, _)| place)?;
    let (before, behind) = line.split_at(place);
    let start = before.rfind(['{', ',']).map_or(0, |start| start + 1);
    let (key, text) = before[start..].split_once(": ")?;
    let is_plain = !text.trim_start().starts_with(['"', '\'', '{', '[', '&', '*']);
    if !behind.starts_with(": ") || !is_plain {
        return None;
    }
    // In braces, a comma or the brace ends the value.
    let end = if start == 0 { None } else { behind.find([',', '}']) };
    let rest = &behind[..end.unwrap_or(behind.len())];
    let value = format!("{}{}", text.trim_start(), rest.trim_end());
    Some(format!("{}: \"{}\"", shown(key.trim()), shown(&value)))
}

/// `name:acme`, which YAML takes for one word.
fn lacks_space(line: &str) -> bool {
    let line = line.trim();
    let word =
        |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    let (key, value) = line.split_once(':').unwrap_or_default();
    !key.is_empty() && word(key) && !value.is_empty() && !value.starts_with([' ', ':'])
}

/// A line that is indented as no line above it.
fn on_indentation<'t>(line: &str, above: impl Iterator<Item = &'t str>) -> Option<String> {
    let is_content = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with('#');
    let above: Vec<&str> = above.filter(is_content).collect();
    let (found, last) = (indent(line), above.last()?);
    let is_key = line.trim().split(": ").next().is_some_and(|key| !key.starts_with(['{', '[']));
    if !is_key || !line.contains(':') {
        return None;
    }
    if found > indent(last) && !last.trim_end().ends_with(':') {
        let expected = spaces(indent(last));
        return Some(format!("found {} before it, expected {expected} as above", spaces(found)));
    }
    let mut open = above.iter().rev().map(|line| indent(line));
    let inner = open.clone().take_while(|other| *other > found).min()?;
    let outer = open.find(|other| *other <= found)?;
    (outer < found).then(|| {
        let (found, outer, inner) = (spaces(found), spaces(outer), spaces(inner));
        format!("found {found} before it, expected {inner} or {outer}, as above")
    })
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

fn spaces(number: usize) -> String {
    match number {
        0 => "no space".to_owned(),
        1 => "1 space".to_owned(),
        number => format!("{number} spaces"),
    }
}
