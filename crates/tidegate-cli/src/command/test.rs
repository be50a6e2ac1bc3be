//! `tidegate test`

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tidegate::clock::{Clock as _, SystemClock};
use tidegate::policy::diagnostics::Diagnostics;
use tidegate::simulate::{Failure, FileReport, TestFile, TestReport};
use tidegate_server::files;

use super::Error;
use super::validate::{diagnostic_json, plural};
use crate::{paint, say};

/// Run policy tests under a simulated clock.
///
/// Files run in parallel; each test starts empty. A folder stands for every *.test.yaml in it. Ends
/// with 1 if a test fails or a file cannot be run. The last line is always `N passed, M failed`.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  tidegate test policy.test.yaml\n  tidegate test --filter 'premium' policies/\n  tidegate test --json policies/*.test.yaml"
)]
pub(crate) struct Arguments {
    /// Test files, or folders of them (not their subfolders)
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Run only tests whose name contains this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// What became of one file.
enum Outcome {
    Ran(FileReport),
    /// The test file or its policy is not valid.
    Invalid {
        found: Diagnostics,
        source: String,
    },
    Unreadable(String),
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool, Error> {
    let clock = SystemClock::new();
    let started_us = clock.now().steady_us;
    let files = expand(&arguments.files)?;
    let outcomes = run_all(&files, arguments.filter.as_deref(), !arguments.json);
    let took = Duration::from_micros(clock.now().steady_us - started_us);
    let tally = Tally::of(&outcomes);
    if arguments.json {
        say!("{:#}", as_json(&files, &outcomes, &tally, arguments));
        return Ok(tally.is_good());
    }
    let matched =
        |outcome: &Outcome| !matches!(outcome, Outcome::Ran(report) if report.tests.is_empty());
    for (file, outcome) in files.iter().zip(&outcomes).filter(|(_, outcome)| matched(outcome)) {
        print(file, outcome);
    }
    let summary = format!(
        "{} {}, {} simulated {} in {took:.2?}",
        files.len(),
        plural(files.len(), "file"),
        tally.requests,
        plural(usize::try_from(tally.requests)?, "request"),
    );
    say!("{}", paint::faint(summary));
    if let Some(note) = tally.note(arguments) {
        say!("{}", paint::careful(note));
    }
    let closing = format!("{} passed, {} failed", tally.passed, tally.failed);
    say!("{}", if tally.is_good() { paint::good(closing) } else { paint::bad(closing) });
    Ok(tally.is_good())
}

/// Folders become the test files in them.
fn expand(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let listed = std::fs::read_dir(path)
            .map_err(|error| format!("cannot list {}: {error}", path.display()))?;
        let mut found: Vec<PathBuf> = listed
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| is_test(path))
            .collect();
        if found.is_empty() {
            return Err(format!("{} holds no *.test.yaml", path.display()).into());
        }
        found.sort();
        files.append(&mut found);
    }
    Ok(files)
}

fn is_test(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.ends_with(".test.yaml") || name.ends_with(".test.yml")
}

/// Runs all files on all cores; the results are in the files' order.
fn run_all(files: &[PathBuf], filter: Option<&str>, visible: bool) -> Vec<Outcome> {
    let bar = if visible { progress(files.len()) } else { ProgressBar::hidden() };
    let next = AtomicUsize::new(0);
    let outcomes: Mutex<Vec<Option<Outcome>>> = Mutex::new(files.iter().map(|_| None).collect());
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(files.len());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((index, file)) = take(&next, files) {
                    let outcome = run_file(file, filter);
                    outcomes.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(outcome);
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcomes
        .into_iter()
        .map(|outcome| outcome.unwrap_or(Outcome::Unreadable("did not run".into())))
        .collect()
}

fn take<'f>(next: &AtomicUsize, files: &'f [PathBuf]) -> Option<(usize, &'f PathBuf)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    files.get(index).map(|file| (index, file))
}

/// A bar on a terminal, and only there.
fn progress(files: usize) -> ProgressBar {
    let bar = ProgressBar::new(u64::try_from(files).unwrap_or(u64::MAX));
    if let Ok(style) = ProgressStyle::with_template("testing {bar:30} {pos}/{len} files") {
        bar.set_style(style);
    }
    bar
}

fn run_file(path: &Path, filter: Option<&str>) -> Outcome {
    let source = match files::read(path) {
        Ok(source) => source,
        Err(error) => return Outcome::Unreadable(error.to_string()),
    };
    let test_file = match TestFile::parse(&path.display().to_string(), &source) {
        Ok(test_file) => test_file,
        Err(found) => return Outcome::Invalid { found, source },
    };
    let policy_path = path.parent().unwrap_or(Path::new("")).join(test_file.policy());
    let policy = match files::read(&policy_path) {
        Ok(policy) => policy,
        Err(error) => return Outcome::Unreadable(error.to_string()),
    };
    match test_file.run(&policy_path.display().to_string(), &policy, filter) {
        Ok(report) => Outcome::Ran(report),
        Err(found) => Outcome::Invalid { found, source: policy },
    }
}

/// How it all ended. A file that cannot be run counts as one failure.
struct Tally {
    passed: usize,
    failed: usize,
    requests: u64,
}

impl Tally {
    fn of(outcomes: &[Outcome]) -> Self {
        let mut tally = Self { passed: 0, failed: 0, requests: 0 };
        for outcome in outcomes {
            let Outcome::Ran(report) = outcome else {
                tally.failed += 1;
                continue;
            };
            let failed = report.tests.iter().filter(|test| test.failure.is_some()).count();
            tally.failed += failed;
            tally.passed += report.tests.len() - failed;
            tally.requests += report.tests.iter().map(|test| test.requests).sum::<u64>();
        }
        tally
    }

    /// Why nothing ran, if nothing did.
    fn note(&self, arguments: &Arguments) -> Option<String> {
        let filter = arguments.filter.as_deref().unwrap_or_default();
        (self.passed + self.failed == 0).then(|| format!("no test's name contains `{filter}`"))
    }

    /// Nothing failed, and something ran.
    fn is_good(&self) -> bool {
        self.failed == 0 && self.passed > 0
    }
}

fn print(file: &Path, outcome: &Outcome) {
    say!("{}", paint::strong(file.display()));
    match outcome {
        Outcome::Ran(report) => report.tests.iter().for_each(|test| print_test(&report.file, test)),
        Outcome::Unreadable(error) => say!("  {} {error}", paint::bad("✗")),
        Outcome::Invalid { found, source } => {
            for diagnostic in found.iter() {
                say!("{}", paint::diagnostic(found.file(), source, diagnostic));
            }
        }
    }
    say!("");
}

fn print_test(file: &str, test: &TestReport) {
    let Some(failure) = &test.failure else {
        say!("  {} {}", paint::good("✓"), paint::plain(&test.name));
        return;
    };
    let Failure { place, step, repetition, at, mismatches, limits } = failure;
    say!("  {} {}", paint::bad("✗"), paint::plain(&test.name));
    let which = match repetition {
        (_, 1) => String::new(),
        (repetition, times) => format!(", repetition {repetition} of {times}"),
    };
    say!("      step {step} ({file}:{}:{}), at {at}{which}", place.line, place.column);
    for mismatch in mismatches {
        let (expected, found) = (paint::plain(&mismatch.expected), paint::plain(&mismatch.found));
        let (expected, found) = (paint::good(expected), paint::bad(found));
        say!("        {}: expected {expected}, found {found}", paint::plain(&mismatch.what));
    }
    if !limits.is_empty() {
        say!("      {}", paint::faint("the limits that applied:"));
    }
    for limit in limits {
        say!("        {}", paint::plain(limit));
    }
}

fn as_json(files: &[PathBuf], outcomes: &[Outcome], tally: &Tally, arguments: &Arguments) -> Value {
    let files: Vec<Value> =
        files.iter().zip(outcomes).map(|(file, outcome)| file_json(file, outcome)).collect();
    json!({
        "passed": tally.passed,
        "failed": tally.failed,
        "requests": tally.requests,
        "note": tally.note(arguments),
        "files": files,
    })
}

fn file_json(file: &Path, outcome: &Outcome) -> Value {
    let file = file.display().to_string();
    match outcome {
        Outcome::Ran(report) => {
            json!({ "file": file, "tests": report.tests.iter().map(test_json).collect::<Vec<_>>() })
        }
        Outcome::Unreadable(error) => json!({ "file": file, "error": error }),
        Outcome::Invalid { found, .. } => {
            let diagnostics: Vec<Value> =
                found.iter().map(|diagnostic| diagnostic_json(None, diagnostic)).collect();
            json!({ "file": file, "invalid": found.file(), "diagnostics": diagnostics })
        }
    }
}

fn test_json(test: &TestReport) -> Value {
    let failure = test.failure.as_ref().map(|failure| {
        let mismatch = |one: &tidegate::simulate::Mismatch| json!({ "what": one.what, "expected": one.expected, "found": one.found });
        json!({
            "line": failure.place.line,
            "column": failure.place.column,
            "step": failure.step,
            "repetition": failure.repetition.0,
            "at": failure.at,
            "mismatches": failure.mismatches.iter().map(mismatch).collect::<Vec<_>>(),
            "limits": failure.limits,
        })
    });
    json!({ "name": test.name, "passed": failure.is_none(), "requests": test.requests, "failure": failure })
}
