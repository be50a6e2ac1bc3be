//! Finding the operation of a request: 2,000 operations against 20.

#![allow(clippy::unwrap_used, reason = "a benchmark may stop at the first surprise")]

use tidegate::engine::operation::{LetterCase, Matcher, NormalPath, Pattern};
use tidegate_benches::{Candidate, compare};

/// An API of resources, each with the usual five operations.
fn api(operations: u32) -> Matcher {
    let patterns =
        ["GET /v1/R", "POST /v1/R", "GET /v1/R/{id}", "DELETE /v1/R/{id}", "/v1/R/{id}/files/**"];
    let pattern = |index: u32| {
        let text = patterns[index as usize % patterns.len()]
            .replace('R', &format!("resource{}", index / 5));
        (index + 1, Pattern::parse(&text).unwrap(), Vec::new())
    };
    Matcher::new(LetterCase::Matters, (0..operations).map(pattern))
}

fn main() {
    let paths = [
        ("first resource", "/v1/resource0/42"),
        ("third resource, deep", "/v1/resource3/42/files/a/b/c"),
        ("no operation", "/v2/nothing/here"),
    ];
    for (name, path) in paths {
        let path = NormalPath::parse(path).unwrap();
        let (few, many) = (api(20), api(2_000));
        let find = |matcher: &Matcher| matcher.find("GET", &path, |_| None);
        compare(
            name,
            vec![
                Candidate::new("20 operations", || find(&few)),
                Candidate::new("2,000 operations", || find(&many)),
            ],
        );
    }
}
