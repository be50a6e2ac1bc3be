//! What is wrong with a document, and where. A run collects all problems: none stops it.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;

use crate::rate::RateError;

/// At most this many diagnostics are kept; a file with more is broken in one place.
const DIAGNOSTICS_MAX: usize = 100;
/// At most this many valid words are listed, which is enough for the keys of a policy.
const WORDS_MAX: usize = 25;

/// The longest message or advice, in letters.
const SENTENCE_LETTERS_MAX: usize = 1_000;

/// A place in a source file, both counted from 1, the column in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The document cannot be used.
    Error,
    /// Legal, but probably a mistake.
    Warning,
}

impl Severity {
    /// `error` or `warning`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// One problem at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// Where it is.
    pub at: Position,
    /// What was found and what was expected.
    pub message: String,
    /// Advice, where there is some: the nearest valid word, or a way to write it.
    pub help: Option<String>,
}

/// All diagnostics of one file, in the order of their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics {
    file: String,
    list: Vec<Diagnostic>,
}

impl Diagnostics {
    /// The file that they are about.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// True if one of them is an error.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.list.iter().any(Diagnostic::is_error)
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Each of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Diagnostic> {
        self.list.iter()
    }
}

impl Diagnostic {
    fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// Collects diagnostics while a file is read. All readers share one reporter.
#[derive(Debug, Default)]
pub(crate) struct Reporter {
    list: RefCell<Vec<Diagnostic>>,
}

impl Reporter {
    /// The diagnostics, in the order of the file, each once.
    pub(crate) fn finish(self, file: &str) -> Diagnostics {
        let mut list = self.list.into_inner();
        list.sort_by_key(|diagnostic| (diagnostic.at, diagnostic.severity));
        list.dedup();
        Diagnostics { file: file.to_owned(), list }
    }

    /// What was read, unless an error was reported.
    pub(crate) fn conclude<T>(
        self,
        file: &str,
        read: Option<T>,
    ) -> Result<(T, Diagnostics), Diagnostics> {
        let diagnostics = self.finish(file);
        match read {
            Some(read) if !diagnostics.has_errors() => Ok((read, diagnostics)),
            _ => Err(diagnostics),
        }
    }

    /// The message of the first diagnostic.
    pub(crate) fn first_message(&self) -> Option<String> {
        self.list.borrow().first().map(|diagnostic| diagnostic.message.clone())
    }

    /// The number of diagnostics so far.
    pub(crate) fn len(&self) -> usize {
        self.list.borrow().len()
    }

    /// The number of errors so far.
    pub(crate) fn errors(&self) -> usize {
        self.list.borrow().iter().filter(|diagnostic| diagnostic.is_error()).count()
    }

    /// Adds an error.
    pub(crate) fn error(&self, at: Position, message: impl AsRef<str>) {
        self.push(Severity::Error, at, message.as_ref(), None);
    }

    /// Adds an error with advice.
    pub(crate) fn error_with_help(
        &self,
        at: Position,
        message: impl AsRef<str>,
        help: impl AsRef<str>,
    ) {
        self.push(Severity::Error, at, message.as_ref(), Some(help.as_ref()));
    }

    /// Adds a rate's error.
    pub(crate) fn rate_error(&self, at: Position, error: &RateError) {
        self.push(Severity::Error, at, &error.message, error.help);
    }

    /// Adds a warning with advice.
    pub(crate) fn warn(&self, at: Position, message: impl AsRef<str>, help: impl AsRef<str>) {
        self.push(Severity::Warning, at, message.as_ref(), Some(help.as_ref()));
    }

    /// Adds an error about a word that is none of `valid`. Names and returns the nearest of them.
    pub(crate) fn unknown_word<'w>(
        &self,
        at: Position,
        message: impl AsRef<str>,
        found: &str,
        valid: impl IntoIterator<Item = &'w str>,
    ) -> Option<&'w str> {
        if self.is_full_of_errors() {
            return None;
        }
        let valid: Vec<&str> = valid.into_iter().collect();
        let nearest = nearest(found, &valid);
        let help = match nearest {
            Some(word) => format!("did you mean `{word}`?"),
            None if valid.is_empty() => "none is declared".to_owned(),
            None => format!("expected {}", one_of(&valid)),
        };
        self.push(Severity::Error, at, message.as_ref(), Some(&help));
        nearest
    }

    /// Removes each diagnostic from number `from` on whose place has an earlier diagnostic: the
    /// later one only follows from the earlier one.
    pub(crate) fn remove_consequences(&self, from: usize) {
        let mut list = self.list.borrow_mut();
        let later = list.split_off(from);
        let places: HashSet<Position> = list.iter().map(|one| one.at).collect();
        list.extend(later.into_iter().filter(|one| !places.contains(&one.at)));
    }

    fn push(&self, severity: Severity, at: Position, message: &str, help: Option<&str>) {
        let (message, help) = (harmless(message), help.map(harmless));
        let diagnostic = Diagnostic { severity, at, message, help };
        let mut list = self.list.borrow_mut();
        if list.len() < DIAGNOSTICS_MAX {
            list.push(diagnostic);
        } else if diagnostic.is_error()
            && let Some(warning) = list.iter_mut().find(|other| !other.is_error())
        {
            // However many warnings there are, a document with an error is never accepted.
            *warning = diagnostic;
        }
    }

    fn is_full_of_errors(&self) -> bool {
        let list = self.list.borrow();
        list.len() >= DIAGNOSTICS_MAX && list.iter().all(Diagnostic::is_error)
    }
}

impl fmt::Display for Diagnostics {
    /// One line each: `file:line:column: error: message; help`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, diagnostic) in self.list.iter().enumerate() {
            let Diagnostic { severity, at, message, help } = diagnostic;
            let newline = if index == 0 { "" } else { "\n" };
            let Position { line, column } = at;
            write!(f, "{newline}{}:{line}:{column}: {}: {message}", self.file, severity.word())?;
            if let Some(help) = help {
                write!(f, "; {help}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

/// A scalar as it is shown in a message: short, on one line.
pub(crate) fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(60).flat_map(char::escape_debug).collect();
    if text.chars().nth(60).is_some() {
        shown.push('…');
    }
    shown
}

/// `a`, `b` or `c`.
pub(crate) fn one_of(words: &[&str]) -> String {
    let quoted: Vec<String> =
        words.iter().take(WORDS_MAX).map(|word| format!("`{word}`")).collect();
    let more = words.len().saturating_sub(WORDS_MAX);
    match quoted.split_last() {
        None => String::new(),
        Some((last, [])) => last.clone(),
        Some(_) if more > 0 => format!("{} or {more} more", quoted.join(", ")),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
    }
}

/// The valid word that was probably meant.
pub(crate) fn nearest<'w>(found: &str, valid: &[&'w str]) -> Option<&'w str> {
    if found.is_empty() {
        return None;
    }
    let lower = |text: &str| text.chars().take(120).flat_map(char::to_lowercase).collect();
    let found: String = lower(found);
    let letters = found.chars().count();
    let tolerated = (letters / 3).max(1);
    let distance = |word: &&'w str| {
        let lowered: String = lower(word);
        // Most words of a long list differ by their length alone.
        let comparable = lowered.chars().count().abs_diff(letters) <= tolerated;
        comparable.then(|| (strsim::osa_distance(&found, &lowered), *word))
    };
    let best = valid.iter().filter_map(distance).min()?;
    (best.0 <= tolerated).then_some(best.1)
}

/// A sentence that neither controls a terminal nor fills a log.
fn harmless(sentence: &str) -> String {
    let mut letters = sentence.chars();
    let mut result = String::new();
    for letter in letters.by_ref().take(SENTENCE_LETTERS_MAX) {
        match letter.is_control() {
            true => result.extend(letter.escape_default()),
            false => result.push(letter),
        }
    }
    if letters.next().is_some() {
        result.push('…');
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_named_only_when_it_is_near() {
        assert_eq!(nearest("sliding_windw", &["sliding_window", "total"]), Some("sliding_window"));
        assert_eq!(nearest("Tier", &["tier", "ip"]), Some("tier"));
        assert_eq!(nearest("banana", &["tier", "ip"]), None);
        assert_eq!(nearest("", &["x", "ietf"]), None);
    }

    #[test]
    fn what_a_document_says_does_no_harm_in_a_terminal() {
        let diagnostics = Reporter::default();
        let at = Position { line: 1, column: 1 };
        diagnostics.unknown_word(at, "found `\u{1b}[2J\n`", "fre", ["fre\u{7}"]);
        diagnostics.error(at, "x".repeat(1 << 20));
        let shown = diagnostics.finish("p.yaml").to_string();
        assert!(shown.contains(r"found `\u{1b}[2J\n`; did you mean `fre\u{7}`?"), "{shown}");
        assert!(shown.len() < 2_000);
    }

    #[test]
    fn an_error_behind_a_flood_of_warnings_is_not_lost() {
        let diagnostics = Reporter::default();
        let at = Position { line: 1, column: 1 };
        for _ in 0..DIAGNOSTICS_MAX {
            diagnostics.warn(at, "hm", "no");
        }
        assert_eq!(diagnostics.errors(), 0);
        diagnostics.unknown_word(at, "no", "fre", ["free"]);
        assert_eq!((diagnostics.errors(), diagnostics.len()), (1, DIAGNOSTICS_MAX));
    }

    #[test]
    fn a_word_of_any_length_is_compared_quickly() {
        let (long, longer) = ("x".repeat(1 << 20), "x".repeat((1 << 20) + 1));
        assert_eq!(nearest("login", &[&long, "logins"]), Some("logins"));
        assert_eq!(nearest(&long, &[&longer]), Some(longer.as_str()));
    }

    #[test]
    fn a_flood_of_errors_is_cut_off() {
        let diagnostics = Reporter::default();
        for line in 0..1_000 {
            diagnostics.error(Position { line, column: 1 }, "no");
        }
        assert_eq!(diagnostics.len(), DIAGNOSTICS_MAX);
    }
}
