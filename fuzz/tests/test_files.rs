//! Policy tests: whatever the file, it is read and run to an end, the same each time.

use bolero::check;
use tidegate::engine::simulate::TestFile;
use tidegate_fuzz::{Choices, bytes, corpus, is_harmless, mutate};

/// Files that would take more steps are read, but not run.
const REPETITIONS_MAX: u64 = 2_000;

#[test]
fn the_corpus_holds() {
    let policies = corpus("policies");
    let documents = corpus("test_files");
    let valid = |text: &&String| TestFile::parse("t.yaml", text).is_ok();
    assert!(documents.iter().filter(valid).count() >= 2, "too few are worth breaking");
    for text in documents {
        policies.iter().for_each(|policy| holds(&text, policy));
    }
}

#[test]
fn arbitrary_test_files() {
    let policies = corpus("policies");
    check!().with_iterations(2_000).with_generator(bytes(2_048)).for_each(|bytes: &Vec<u8>| {
        holds(&String::from_utf8_lossy(bytes), &policies[0]);
    });
}

#[test]
fn broken_test_files() {
    let (documents, policies) = (corpus("test_files"), corpus("policies"));
    check!().with_iterations(4_000).with_generator(bytes(256)).for_each(|bytes: &Vec<u8>| {
        let mut choices = Choices::new(bytes);
        let document = choices.pick(&documents).cloned().unwrap_or_default();
        let policy = choices.pick(&policies).cloned().unwrap_or_default();
        holds(&mutate(&document, &documents, &mut choices), &policy);
    });
}

fn holds(text: &str, policy: &str) {
    let file = match TestFile::parse("t.yaml", text) {
        Ok(file) => file,
        Err(diagnostics) => {
            assert!(diagnostics.has_errors());
            assert!(diagnostics.iter().all(|one| is_harmless(&one.message)), "{diagnostics:?}");
            return;
        }
    };
    assert!(file.test_names().len() > 0);
    if file.repetitions() > REPETITIONS_MAX {
        return;
    }
    let run = || file.run("p.yaml", policy, None).map_err(|diagnostics| diagnostics.to_string());
    let report = run();
    assert_eq!(format!("{report:?}"), format!("{:?}", run()), "run twice");
    let Ok(report) = report else { return };
    assert_eq!(report.tests.len(), file.test_names().len());
    let requests: u64 = report.tests.iter().map(|test| test.requests).sum();
    assert!(requests <= file.repetitions());
    for failure in report.tests.iter().filter_map(|test| test.failure.as_ref()) {
        assert!(!failure.mismatches.is_empty() && failure.step > 0, "{failure:?}");
    }
}
