//! Whether the output of a command is the documented one.
//!
//! `…` stands for any text within a line, and a line of its own for any lines. A wait may be up to
//! twenty seconds shorter than shown, because a machine may be slow.

const ANY: &str = "…";
/// The texts before a wait, and how much shorter the wait may be.
const WAITS: [(&str, u64); 8] = [
    ("retry-after: ", 20),
    ("\"Retry-After\":\"", 20),
    ("\"Retry-After\": \"", 20),
    ("\"retryAfter\":", 20),
    (";t=", 20),
    ("retry_after_ms\":", 20_000),
    ("reset_ms\":", 20_000),
    ("_ms\": ", 20_000),
];

pub(crate) fn fits(shown: &[String], came: &[&str]) -> bool {
    match shown.split_first() {
        None => came.is_empty(),
        Some((any, rest)) if any == ANY => (0..=came.len()).any(|skip| fits(rest, &came[skip..])),
        Some((line, rest)) => came
            .split_first()
            .is_some_and(|(first, further)| line_fits(line, first) && fits(rest, further)),
    }
}

pub(crate) fn line_fits(shown: &str, came: &str) -> bool {
    fits_from(shown, 0, came.trim_end())
}

/// Whether the rest of a shown line, from an index on, fits the output.
fn fits_from(shown: &str, mut at: usize, mut came: &str) -> bool {
    loop {
        let rest = &shown[at..];
        if let Some(behind) = rest.strip_prefix(ANY) {
            let at = shown.len() - behind.len();
            let mut ends = came.char_indices().map(|(end, _)| end).chain([came.len()]);
            return ends.any(|end| fits_from(shown, at, &came[end..]));
        }
        if let Some(slack) = slack_before(&shown[..at])
            && let (Some(most), Some(found)) = (number(rest), number(came))
        {
            let range = most.1.saturating_sub(slack)..=most.1;
            if !range.contains(&found.1) {
                return false;
            }
            (at, came) = (at + most.0, &came[found.0..]);
            continue;
        }
        match (rest.chars().next(), came.chars().next()) {
            (None, None) => return true,
            (Some(wanted), Some(found)) if wanted == found => {
                at += wanted.len_utf8();
                came = &came[found.len_utf8()..];
            }
            _ => return false,
        }
    }
}

fn slack_before(shown: &str) -> Option<u64> {
    WAITS.iter().find(|(label, _)| shown.ends_with(label)).map(|(_, slack)| *slack)
}

/// The whole number at the start of a text: its length and its value.
fn number(text: &str) -> Option<(usize, u64)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    text[..digits].parse().ok().map(|number| (digits, number))
}

#[test]
fn dots_stand_for_any_text_and_a_line_of_them_for_any_lines() {
    assert!(line_fits("a … d", "a b c d") && line_fits("a…", "a") && line_fits("…", "x"));
    assert!(!line_fits("a … d", "a b c") && !line_fits("a", "ab") && !line_fits("ab", "a"));
    let shown = ["one".to_owned(), ANY.to_owned(), "four".to_owned()];
    assert!(fits(&shown, &["one", "two", "three", "four"]) && fits(&shown, &["one", "four"]));
    assert!(!fits(&shown, &["one", "four", "five"]) && !fits(&shown, &["one"]));
}

#[test]
fn a_wait_may_be_a_little_shorter_and_nothing_else_may() {
    assert!(line_fits("retry-after: 60", "retry-after: 56"));
    assert!(!line_fits("retry-after: 60", "retry-after: 61"));
    assert!(!line_fits("retry-after: 60", "retry-after: 30"));
    assert!(line_fits(r#"{"reset_ms":900,"a":…}"#, r#"{"reset_ms":0,"a":1}"#));
    assert!(!line_fits("x-ratelimit-limit: 5", "x-ratelimit-limit: 4"));
}
