//! `tidegate test`

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tidegate::clock::{Clock as _, SystemClock};
use tidegate::engine::policy::diagnostics::Diagnostics;
use tidegate::engine::simulate::{Failure, FileReport, TestFile, TestReport};
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
type Outcome = Result<FileReport, FileError>;

/// Why a file could not be run.
enum FileError {
    /// The test file or its policy is not valid.
    Invalid {
        found: Diagnostics,
        source: String,
    },
    Unreadable(String),
}

impl<E: std::error::Error> From<E> for FileError {
    fn from(error: E) -> Self {
        Self::Unreadable(error.to_string())
    }
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
    let matched = |outcome: &Outcome| !matches!(outcome, Ok(report) if report.tests.is_empty());
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
    let work = || {
        let mut outcomes = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(file) = files.get(index) else { return outcomes };
            outcomes.push((index, run_file(file, filter)));
            bar.inc(1);
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(files.len());
    let mut outcomes: Vec<(usize, Outcome)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let outcomes = workers.into_iter().flat_map(|worker| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        outcomes.collect()
    });
    bar.finish_and_clear();
    outcomes.sort_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
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
    let source = files::read(path)?;
    let test_file = match TestFile::parse(&path.display().to_string(), &source) {
        Ok(test_file) => test_file,
        Err(found) => return Err(FileError::Invalid { found, source }),
    };
    let policy_path = path.parent().unwrap_or(Path::new("")).join(test_file.policy());
    let policy = files::read(&policy_path)?;
    let report = test_file.run(&policy_path.display().to_string(), &policy, filter);
    report.map_err(|found| FileError::Invalid { found, source: policy })
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
            let Ok(report) = outcome else {
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
        Ok(report) => report.tests.iter().for_each(|test| print_test(&report.file, test)),
        Err(FileError::Unreadable(error)) => say!("  {} {error}", paint::bad("✗")),
        Err(FileError::Invalid { found, source }) => {
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
        Ok(report) => {
            json!({ "file": file, "tests": report.tests.iter().map(test_json).collect::<Vec<_>>() })
        }
        Err(FileError::Unreadable(error)) => json!({ "file": file, "error": error }),
        Err(FileError::Invalid { found, .. }) => {
            let diagnostics: Vec<Value> =
                found.iter().map(|diagnostic| diagnostic_json(None, diagnostic)).collect();
            json!({ "file": file, "invalid": found.file(), "diagnostics": diagnostics })
        }
    }
}

fn test_json(test: &TestReport) -> Value {
    let failure = test.failure.as_ref().map(|failure| {
        let mismatch = |one: &tidegate::engine::simulate::Mismatch| json!({ "what": one.what, "expected": one.expected, "found": one.found });
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
