//! Colours and marks; on anything but a terminal they vanish.

use std::fmt::Display;

use anstyle::{AnsiColor, Style};
use tidegate::policy::diagnostics::{Diagnostic, Position, Severity};

const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();
const CAREFUL: Style = AnsiColor::Yellow.on_default().bold();
const FAINT: Style = Style::new().dimmed();
const STRONG: Style = Style::new().bold();

pub(crate) fn good(text: impl Display) -> String {
    styled(GOOD, text)
}

pub(crate) fn bad(text: impl Display) -> String {
    styled(BAD, text)
}

pub(crate) fn careful(text: impl Display) -> String {
    styled(CAREFUL, text)
}

pub(crate) fn faint(text: impl Display) -> String {
    styled(FAINT, text)
}

pub(crate) fn strong(text: impl Display) -> String {
    styled(STRONG, text)
}

fn styled(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}

/// A diagnostic as people read it: place, what is wrong, the line itself, what to do.
pub(crate) fn diagnostic(file: &str, source: &str, diagnostic: &Diagnostic) -> String {
    let Diagnostic { severity, at, message, help } = diagnostic;
    let word = match severity {
        Severity::Error => bad(severity.word()),
        Severity::Warning => careful(severity.word()),
    };
    let Position { line, column } = at;
    let mut text = format!("{}: {word}: {}", strong(format!("{file}:{line}:{column}")), message);
    if let Some(excerpt) =
        usize::try_from(*line).ok().and_then(|line| source.lines().nth(line.checked_sub(1)?))
    {
        let number = line.to_string();
        let margin = " ".repeat(number.len());
        let indent: String = excerpt
            .chars()
            .take(usize::try_from(*column).unwrap_or(1).saturating_sub(1))
            .map(blank)
            .collect();
        let excerpt: String = excerpt.chars().take(160).collect();
        text.push_str(&format!(
            "\n  {} {excerpt}\n  {margin} {} {indent}{}",
            faint(format!("{number} |")),
            faint("|"),
            careful("^")
        ));
    }
    if let Some(help) = help {
        text.push_str(&format!("\n  {} {help}", faint("help:")));
    }
    text
}

/// Keeps a caret below its character, whatever stands before it.
fn blank(character: char) -> char {
    if character == '\t' { '\t' } else { ' ' }
}
