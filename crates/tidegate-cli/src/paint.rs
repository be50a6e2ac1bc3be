//! Colours and marks; on anything but a terminal they vanish.

use std::fmt::{Arguments, Display};
use std::io::{ErrorKind, Write as _};

use anstyle::{AnsiColor, Style};
use tidegate::engine::policy::diagnostics::{Diagnostic, Position, Severity};

/// The widest excerpt of a line.
const EXCERPT_CHARACTERS_MAX: usize = 160;

const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();
const CAREFUL: Style = AnsiColor::Yellow.on_default().bold();
const FAINT: Style = Style::new().dimmed();
const STRONG: Style = Style::new().bold();

/// Prints a line on standard output.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::paint::line(format_args!($($text)*)) };
}

/// A closed pipe (`| head`) is no error. A full disk is one.
pub(crate) fn line(text: Arguments<'_>) {
    match writeln!(anstream::stdout(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            anstream::eprintln!("{}: cannot write: {error}", bad("error"));
            std::process::exit(1);
        }
        _ => {}
    }
}

/// Replaces control characters, so that a text from elsewhere cannot control the terminal.
pub(crate) fn plain(text: impl Display) -> String {
    let harmless = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.to_string().chars().map(harmless).collect()
}

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

/// A diagnostic for people: place, problem, the line itself, and help.
pub(crate) fn diagnostic(file: &str, source: &str, diagnostic: &Diagnostic) -> String {
    let Diagnostic { severity, at, message, help } = diagnostic;
    let word = match severity {
        Severity::Error => bad(severity.word()),
        Severity::Warning => careful(severity.word()),
    };
    let Position { line, column } = at;
    let mut text = format!("{}: {word}: {}", strong(format!("{file}:{line}:{column}")), message);
    text.push_str(&excerpt(source, *line, *column).unwrap_or_default());
    if let Some(help) = help {
        text.push_str(&format!("\n  {} {help}", faint("help:")));
    }
    text
}

/// The line itself without control characters, with a caret below the place.
fn excerpt(source: &str, line: u32, column: u32) -> Option<String> {
    let index = usize::try_from(line.checked_sub(1)?).ok()?;
    let before = usize::try_from(column.checked_sub(1)?).ok()?;
    if before >= EXCERPT_CHARACTERS_MAX {
        return None;
    }
    let shown = source.lines().nth(index)?.chars().take(EXCERPT_CHARACTERS_MAX);
    let shown: String = shown.map(|c| if c.is_control() { ' ' } else { c }).collect();
    let number = line.to_string();
    let (margin, indent) = (" ".repeat(number.len()), " ".repeat(before));
    let (head, bar, caret) = (faint(format!("{number} |")), faint("|"), careful("^"));
    Some(format!("\n  {head} {shown}\n  {margin} {bar} {indent}{caret}"))
}
