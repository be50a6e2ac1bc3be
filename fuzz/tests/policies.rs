//! Policies: whatever the text, a policy or errors that point into it, the same each time.

#![allow(clippy::unwrap_used, reason = "a target that cannot be set up must fail")]

use std::collections::BTreeMap;
use std::time::Duration;

use bolero::check;
use tidegate::clock::FakeClock;
use tidegate::engine::policy::Options;
use tidegate::engine::policy::diagnostics::Diagnostics;
use tidegate::{Decision, HashKey, Jitter, Limiter, Policy, Request, Response};
use tidegate_fuzz::{Choices, bytes, corpus, is_harmless, mutate};

#[test]
fn the_corpus_holds() {
    let documents = corpus("policies");
    documents.iter().for_each(|text| holds(text));
    let options = Options { profile: None, env: env() };
    let valid = |text: &&String| Policy::check("p.yaml", text, &options).is_ok();
    assert!(documents.iter().filter(valid).count() >= 4, "too few are worth breaking");
}

#[test]
fn arbitrary_policies() {
    check!()
        .with_iterations(3_000)
        .with_generator(bytes(2_048))
        .for_each(|bytes: &Vec<u8>| holds(&String::from_utf8_lossy(bytes)));
}

#[test]
fn broken_policies() {
    let documents = corpus("policies");
    check!().with_iterations(2_500).with_generator(bytes(256)).for_each(|bytes: &Vec<u8>| {
        let mut choices = Choices::new(bytes);
        let document = choices.pick(&documents).cloned().unwrap_or_default();
        holds(&mutate(&document, &documents, &mut choices));
    });
}

/// Asserts what holds for every text.
fn holds(text: &str) {
    let mut profiles = Policy::profile_names(text);
    profiles.truncate(3);
    profiles.push("nobody".to_owned());
    for profile in profiles.into_iter().map(Some).chain([None]) {
        let options = Options { profile, env: env() };
        let (first, second) =
            (Policy::check("p.yaml", text, &options), Policy::check("p.yaml", text, &options));
        match (first, second) {
            (Ok(first), Ok(second)) => {
                assert!(!first.warnings.has_errors());
                assert_eq!(first.warnings, second.warnings);
                point_into(text, &first.warnings);
                assert_eq!(decide(first.policy), decide(second.policy));
            }
            (Err(first), Err(second)) => {
                assert!(first.has_errors());
                assert_eq!(first, second);
                point_into(text, &first);
            }
            (first, second) => assert_eq!(first.is_ok(), second.is_ok(), "read twice"),
        }
    }
}

fn env() -> BTreeMap<String, String> {
    let variables = [("HOME", "/root"), ("NUMBER", "5"), ("SECRET", "s3cret"), ("ODD", "a: [\n")];
    variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Every diagnostic names a place in the text, or just behind it, in words that do no harm.
fn point_into(text: &str, diagnostics: &Diagnostics) {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let widths: Vec<usize> = text.split('\n').map(|line| line.chars().count()).collect();
    for diagnostic in diagnostics.iter() {
        let (line, column) = (diagnostic.at.line as usize, diagnostic.at.column as usize);
        assert!((1..=widths.len() + 1).contains(&line), "{diagnostic:?}");
        let width = widths.get(line - 1).copied().unwrap_or(0);
        assert!((1..=width + 1).contains(&column), "{diagnostic:?} in {text:?}");
        for sentence in [Some(&diagnostic.message), diagnostic.help.as_ref()].into_iter().flatten()
        {
            assert!(is_harmless(sentence) && sentence.chars().count() < 4_000, "{diagnostic:?}");
        }
    }
}

/// Decides a few requests by the policy.
fn decide(policy: Policy) -> Vec<String> {
    let clock = FakeClock::at_unix_seconds(1_767_603_600);
    let builder = Limiter::builder().policy(policy).clock(clock.clone());
    let limiter = builder.hash_key(HashKey::new([7; 16])).build().unwrap();
    let ip = "192.0.2.1".parse().unwrap();
    let requests = [
        Request::new("POST", "/rooms/r1/bookings?page=2").ip(ip).user("u1").tier("free"),
        Request::new("POST", "/auth/login").peer(ip).body(&br#"{"email":"A@b.c"}"#[..]),
        Request::new("PUT", "/orders/7").ip(ip).user("u1").attribute("kyc", "2").country("DE"),
        Request::new("POST", "/users/9/withdrawals").user("u2").attribute("amount_usd", "99.5"),
        Request::default(),
    ];
    let mut answers = Vec::new();
    for _ in 0..3 {
        for request in &requests {
            answers.push(match limiter.check(request) {
                Ok(decision) => shown(&decision),
                Err(error) => error.to_string(),
            });
        }
        clock.advance(Duration::from_micros(400_000));
    }
    answers
}

fn shown(decision: &Decision) -> String {
    let response = Response::of(decision, Jitter::None);
    format!("{:?} {:?} {response:?}", decision.outcome, decision.limits)
}
