//! Paths and patterns: one normal form, and a matcher that agrees with trying every pattern.

use bolero::check;
use tidegate::engine::operation::{
    LetterCase, Matcher, NormalPath, Pattern, SEGMENTS_MAX, forwarded_path,
};
use tidegate_fuzz::{Choices, bytes, corpus, is_harmless};

const PATHS: [&str; 34] = [
    "/", "//", "/a", "/b", "a", ".", "..", "/..", "/.", "%2e", "%2E%2e", "%2f", "%5C", "%00", "%",
    "%zz", "%25", "%3F", "%3B", "%c3%a9", "%ff", ";x=1", ";%2f", "?q=/../", "#f", "\\", "\0", "*",
    "é", " ", "/A", "/B", "%0a", "%7f",
];

const PATTERNS: [&str; 28] = [
    "/", "/a", "/b", "/*", "/**", "/{x}", "/{y}", "GET ", "PUT|GET ", "HEAD ", "get ", "|", " ",
    "\t", "*", "**", "{", "}", "%2e", "%41", "%2f", ";", "?", ".", "..", "é", "/A", "/B",
];

#[test]
fn the_corpus_holds() {
    let lines: Vec<String> =
        corpus("paths").iter().flat_map(|text| text.lines()).map(str::to_owned).collect();
    lines.iter().for_each(|line| path_holds(line));
    let patterns: Vec<Pattern> = lines.iter().filter_map(|line| pattern(line)).collect();
    lines.iter().for_each(|line| matcher_agrees(&patterns, line));
}

#[test]
fn arbitrary_paths() {
    check!().with_iterations(20_000).with_generator(bytes(128)).for_each(|bytes: &Vec<u8>| {
        path_holds(&Choices::new(bytes).text(&PATHS, 24));
        path_holds(&format!("/{}", String::from_utf8_lossy(bytes)));
    });
}

#[test]
fn arbitrary_patterns() {
    check!().with_iterations(10_000).with_generator(bytes(256)).for_each(|bytes: &Vec<u8>| {
        let mut choices = Choices::new(bytes);
        let texts: Vec<String> =
            (0..=choices.below(10)).map(|_| choices.text(&PATTERNS, 8)).collect();
        let patterns: Vec<Pattern> = texts.iter().filter_map(|text| pattern(text)).collect();
        for _ in 0..4 {
            matcher_agrees(&patterns, &choices.text(&PATHS, 8));
        }
    });
}

fn path_holds(raw: &str) {
    let path = match NormalPath::parse(raw) {
        Ok(path) => path,
        Err(error) => return assert!(is_harmless(&error.to_string()), "{raw:?}: {error}"),
    };
    let text = path.as_str();
    assert!(text.starts_with('/') && !text.contains("//"), "{raw:?}: {text}");
    assert!(text == "/" || !text.ends_with('/'), "{raw:?}: {text}");
    assert!(!text.contains('\\') && !text.contains(char::is_control), "{raw:?}: {text}");
    let forwarded = forwarded_path(raw);
    assert_eq!(
        forwarded.and_then(|raw| Ok(NormalPath::parse(&raw)?.to_string())),
        Ok(text.to_owned())
    );
    assert!(path.segments().all(|segment| !matches!(segment, "" | "." | "..")), "{raw:?}: {text}");
    assert!(path.segments().count() <= SEGMENTS_MAX);
    assert_eq!(
        path.segments().map(|segment| format!("/{segment}")).collect::<String>(),
        text.strip_suffix('/').unwrap_or(text)
    );
    // Written as it was read: letters that decoding would interpret again are escaped first.
    let escaped = text.replace('%', "%25").replace('?', "%3F").replace('#', "%23");
    let written = escaped.replace(';', "%3B");
    let again = NormalPath::parse(&written).map(|path| path.to_string());
    assert_eq!(again, Ok(text.to_owned()), "{raw:?}");
}

fn pattern(text: &str) -> Option<Pattern> {
    match Pattern::parse(text) {
        Ok(pattern) => Some(pattern),
        Err(error) => {
            assert!(is_harmless(&error.to_string()), "{text:?}: {error}");
            None
        }
    }
}

fn matcher_agrees(patterns: &[Pattern], raw: &str) {
    for case in [LetterCase::Matters, LetterCase::Ignored] {
        let patterns: Vec<_> = patterns.iter().map(|one| one.clone().with_case(case)).collect();
        matcher_agrees_in(case, &patterns, raw);
        let folded = raw.to_ascii_lowercase();
        if case == LetterCase::Ignored && NormalPath::parse(raw).is_ok() {
            assert_eq!(first_match(&patterns, raw), first_match(&patterns, &folded), "{raw:?}");
        }
    }
}

/// The first pattern that matches, by trying all.
fn first_match(patterns: &[Pattern], raw: &str) -> Option<usize> {
    let path = NormalPath::parse(raw).ok()?;
    patterns.iter().position(|pattern| pattern.matches("GET", &path))
}

fn matcher_agrees_in(case: LetterCase, patterns: &[Pattern], raw: &str) {
    let Ok(path) = NormalPath::parse(raw) else { return };
    let rules = (0..).zip(patterns.iter().cloned()).map(|(n, pattern)| (n, pattern, Vec::new()));
    let matcher = Matcher::new(case, rules);
    for method in ["GET", "HEAD", "PUT", ""] {
        let expected = patterns.iter().position(|pattern| pattern.matches(method, &path));
        let found = matcher.find(method, &path, |_| None);
        assert_eq!(found.map(|found| found.pattern as usize), expected, "{raw:?} {patterns:?}");
        let Some(found) = found else { continue };
        let pattern = &patterns[found.pattern as usize];
        let names = pattern.path().names().count();
        for place in 0..names {
            let captured = matcher.capture(found, &path, place);
            assert!(captured.is_some_and(|text| path.segments().any(|segment| segment == text)));
        }
        assert_eq!(matcher.capture(found, &path, names), None);
        let covers = |earlier: &&Pattern| earlier.covers(pattern);
        assert_eq!(patterns[..found.pattern as usize].iter().find(covers), None, "{patterns:?}");
    }
}
