//! Breaking documents: a good one with a few edits reaches what no random text does.

use std::ops::Range;

use crate::Choices;

/// Texts that YAML or the policy language treats specially.
const NASTY: [&str; 48] = [
    "*a",
    "&a",
    "&a x",
    "<<",
    "!!str",
    "!x",
    "null",
    "~",
    "{}",
    "[]",
    "{",
    "}",
    "[",
    "]",
    "- ",
    ": ",
    "? ",
    "# ",
    "---",
    "...",
    "|",
    ">-",
    "'",
    "\"",
    "\\",
    "\t",
    "${HOME}",
    "${UNSET}",
    "${NUMBER}",
    "${X:-5}",
    "${",
    "$${X}",
    "0",
    "-1",
    "1.10",
    "4000000000",
    "99999999999999999999",
    "1000d",
    "1ms",
    "unlimited",
    "default",
    "true",
    "10.0.0.0/8",
    "::1/128",
    "{limit}",
    "{nobody}",
    "{n}",
    "/**/{x}",
];

/// The document after a few edits. Lines and words may also come from `others`.
#[must_use]
pub fn mutate(document: &str, others: &[String], choices: &mut Choices<'_>) -> String {
    let mut text = document.to_owned();
    let edits = choices.word(&["x", "x", "xx", "xxx", "xxxxxx"]).len();
    for _ in 0..edits {
        if choices.is_empty() {
            break;
        }
        edit(&mut text, others, choices);
    }
    text
}

fn edit(text: &mut String, others: &[String], choices: &mut Choices<'_>) {
    match choices.byte() % 12 {
        0 => {
            let line = one_of(&lines(text), choices);
            text.replace_range(line, "");
        }
        1 => {
            let line = text[one_of(&lines(text), choices)].to_owned();
            insert_line(text, &line, choices);
        }
        2 => {
            let other = choices.pick(others).cloned().unwrap_or_default();
            let line = other[one_of(&lines(&other), choices)].to_owned();
            insert_line(text, &line, choices);
        }
        3 => swap(text, choices),
        4 | 5 => {
            let word = one_of(&words(text), choices);
            text.replace_range(word, choices.word(&NASTY));
        }
        6 => {
            let other = choices.pick(others).cloned().unwrap_or_default();
            let replacement = other[one_of(&words(&other), choices)].to_owned();
            let word = one_of(&words(text), choices);
            text.replace_range(word, &replacement);
        }
        7 => {
            let word = one_of(&words(text), choices);
            text.insert_str(word.start, choices.word(&["&a ", "*a ", "${X:-", "- ", "? ", "!x "]));
        }
        8 => {
            let line = one_of(&lines(text), choices);
            text.insert_str(line.start, choices.word(&["  ", " ", "    ", "\t"]));
        }
        9 => {
            let place = one_of(&words(text), choices);
            text.insert(place.end, choices.letter());
        }
        10 => {
            let word = one_of(&words(text), choices);
            text.replace_range(word, &choices.number().to_string());
        }
        _ => {
            let end = one_of(&words(text), choices).start;
            text.truncate(end);
        }
    }
}

fn insert_line(text: &mut String, line: &str, choices: &mut Choices<'_>) {
    let place = one_of(&lines(text), choices).start;
    text.insert_str(place, line);
}

fn swap(text: &mut String, choices: &mut Choices<'_>) {
    let all = words(text);
    let (a, b) = (one_of(&all, choices), one_of(&all, choices));
    let (first, second) = if a.start <= b.start { (a, b) } else { (b, a) };
    if first.end <= second.start {
        let (left, right) = (text[first.clone()].to_owned(), text[second.clone()].to_owned());
        text.replace_range(second, &left);
        text.replace_range(first, &right);
    }
}

/// Where the lines are, each with its end.
fn lines(text: &str) -> Vec<Range<usize>> {
    let mut start = 0;
    let range = |line: &str| {
        start += line.len();
        start - line.len()..start
    };
    text.split_inclusive('\n').map(range).collect()
}

/// Where the scalars are, roughly.
fn words(text: &str) -> Vec<Range<usize>> {
    let is_between = |letter: char| letter.is_whitespace() || ",:{}[]\"'".contains(letter);
    let pieces = text.split(is_between).filter(|piece| !piece.is_empty());
    let offset = |piece: &str| piece.as_ptr().addr() - text.as_ptr().addr();
    pieces.map(|piece| offset(piece)..offset(piece) + piece.len()).collect()
}

/// One of these ranges; the start if there is none.
fn one_of(places: &[Range<usize>], choices: &mut Choices<'_>) -> Range<usize> {
    choices.pick(places).cloned().unwrap_or(0..0)
}
