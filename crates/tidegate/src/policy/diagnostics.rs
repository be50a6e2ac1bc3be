//! What is wrong with a document, and where. Every problem of a run is collected, none stops it.

use std::collections::HashSet;
use std::fmt;

/// At most this many diagnostics are kept; a file with more is broken in one place.
const DIAGNOSTICS_MAX: usize = 100;

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
    /// Legal, but surely not meant.
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
    /// What to do about it, where that can be said: the nearest valid word, a way to write it.
    pub help: Option<String>,
}

/// All diagnostics of one file, in the order of their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics {
    file: String,
    list: Vec<Diagnostic>,
}

impl Diagnostics {
    /// None yet, for the file of this name.
    #[must_use]
    pub fn new(file: &str) -> Self {
        Self { file: file.to_owned(), list: Vec::new() }
    }

    /// The file they speak of.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Whether any of them is an error.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.list.iter().any(|diagnostic| diagnostic.severity == Severity::Error)
    }

    /// How many errors there are.
    pub(crate) fn errors(&self) -> usize {
        self.list.iter().filter(|one| one.severity == Severity::Error).count()
    }

    /// Whether there is nothing to say.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Each of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Diagnostic> {
        self.list.iter()
    }

    /// Adds an error.
    pub(crate) fn error(&mut self, at: Position, message: impl Into<String>) {
        self.push(Severity::Error, at, message.into(), None);
    }

    /// Adds an error with advice.
    pub(crate) fn error_with_help(
        &mut self,
        at: Position,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.push(Severity::Error, at, message.into(), Some(help.into()));
    }

    /// Adds a warning with advice.
    pub(crate) fn warn(
        &mut self,
        at: Position,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.push(Severity::Warning, at, message.into(), Some(help.into()));
    }

    /// Adds an error about a word that is none of `valid`, naming the nearest of them, which is
    /// returned.
    pub(crate) fn unknown_word<'w>(
        &mut self,
        at: Position,
        message: impl Into<String>,
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
        self.push(Severity::Error, at, message.into(), Some(help));
        nearest
    }

    /// Forgets what was said, from the diagnostic of this number on, of places of which an error had
    /// been said before: it only follows from that.
    pub(crate) fn forget_consequences(&mut self, from: usize) {
        let later = self.list.split_off(from.min(self.list.len()));
        let places: HashSet<Position> = self.list.iter().map(|one| one.at).collect();
        self.list.extend(later.into_iter().filter(|one| !places.contains(&one.at)));
    }

    /// Puts them in the order of the file, and each once.
    pub(crate) fn sort(&mut self) {
        self.list.sort_by_key(|diagnostic| (diagnostic.at, diagnostic.severity));
        self.list.dedup();
    }

    fn push(&mut self, severity: Severity, at: Position, message: String, help: Option<String>) {
        let (message, help) = (harmless(message), help.map(harmless));
        let diagnostic = Diagnostic { severity, at, message, help };
        if self.list.len() < DIAGNOSTICS_MAX {
            self.list.push(diagnostic);
        } else if severity == Severity::Error
            && let Some(warning) =
                self.list.iter_mut().find(|other| other.severity == Severity::Warning)
        {
            // However many warnings there are, a document with an error is never taken for good.
            *warning = diagnostic;
        }
    }

    fn is_full_of_errors(&self) -> bool {
        let is_error = |diagnostic: &Diagnostic| diagnostic.severity == Severity::Error;
        self.list.len() >= DIAGNOSTICS_MAX && self.list.iter().all(is_error)
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
    let quoted: Vec<String> = words.iter().take(20).map(|word| format!("`{word}`")).collect();
    let more = words.len().saturating_sub(20);
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
        // Most words of a long list are told apart by their length alone.
        let comparable = lowered.chars().count().abs_diff(letters) <= tolerated;
        comparable.then(|| (strsim::osa_distance(&found, &lowered), *word))
    };
    let best = valid.iter().filter_map(distance).min()?;
    (best.0 <= tolerated).then_some(best.1)
}

/// A sentence that neither drives a terminal nor fills a log, whatever the document holds.
fn harmless(sentence: String) -> String {
    let fits = sentence.len() <= SENTENCE_LETTERS_MAX;
    if fits && !sentence.chars().any(char::is_control) {
        return sentence;
    }
    let mut result = String::new();
    for letter in sentence.chars().take(SENTENCE_LETTERS_MAX) {
        match letter {
            letter if letter.is_control() => result.extend(letter.escape_default()),
            letter => result.push(letter),
        }
    }
    if sentence.chars().nth(SENTENCE_LETTERS_MAX).is_some() {
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
        let mut diagnostics = Diagnostics::new("p.yaml");
        let at = Position { line: 1, column: 1 };
        diagnostics.unknown_word(at, "found `\u{1b}[2J\n`", "fre", ["fre\u{7}"]);
        diagnostics.error(at, "x".repeat(1 << 20));
        let shown = diagnostics.to_string();
        assert!(shown.contains(r"found `\u{1b}[2J\n`; did you mean `fre\u{7}`?"), "{shown}");
        assert!(shown.len() < 2_000);
    }

    #[test]
    fn an_error_behind_a_flood_of_warnings_is_not_lost() {
        let mut diagnostics = Diagnostics::new("p.yaml");
        let at = Position { line: 1, column: 1 };
        for _ in 0..DIAGNOSTICS_MAX {
            diagnostics.warn(at, "hm", "no");
        }
        assert!(!diagnostics.has_errors());
        diagnostics.unknown_word(at, "no", "fre", ["free"]);
        assert!(diagnostics.has_errors());
        assert_eq!(diagnostics.iter().len(), DIAGNOSTICS_MAX);
    }

    #[test]
    fn a_word_of_any_length_is_compared_quickly() {
        let (long, longer) = ("x".repeat(1 << 20), "x".repeat((1 << 20) + 1));
        assert_eq!(nearest("login", &[&long, "logins"]), Some("logins"));
        assert_eq!(nearest(&long, &[&longer]), Some(longer.as_str()));
    }

    #[test]
    fn a_flood_of_errors_is_cut_off() {
        let mut diagnostics = Diagnostics::new("p.yaml");
        for line in 0..1_000 {
            diagnostics.error(Position { line, column: 1 }, "no");
        }
        assert_eq!(diagnostics.iter().len(), DIAGNOSTICS_MAX);
    }
}
