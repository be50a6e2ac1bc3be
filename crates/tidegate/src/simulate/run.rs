//! Running policy tests.

use std::collections::HashMap;
use std::sync::Arc;

use super::expect::{Mismatch, seconds};
use super::file::{Test, TestFile};
use super::request;
use super::step::{Action, Step};
use super::switch::Switch;
use crate::clock::FakeClock;
use crate::decision::Decision;
use crate::key::HashKey;
use crate::lease::{Lease, Settlement};
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::policy::diagnostics::{Diagnostics, Position};
use crate::policy::document::{Node, Value};
use crate::request::RequestError;

/// What became of a test file.
#[derive(Clone, Debug)]
pub struct FileReport {
    /// The file's name.
    pub file: String,
    /// Each test that ran.
    pub tests: Vec<TestReport>,
}

/// What became of a test.
#[derive(Clone, Debug)]
pub struct TestReport {
    /// The test's name.
    pub name: String,
    /// How many requests it made.
    pub requests: u64,
    /// Why it failed, if it did.
    pub failure: Option<Failure>,
}

/// The first step that did not go as expected.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Where the step stands.
    pub place: Position,
    /// The step, counted from 1.
    pub step: usize,
    /// Which repetition of it, counted from 1, and of how many.
    pub repetition: (u32, u32),
    /// When it happened, from the start.
    pub at: String,
    /// What was expected and what came.
    pub mismatches: Vec<Mismatch>,
    /// Each limit that applied, with its state.
    pub limits: Vec<String>,
}

impl TestFile {
    /// Runs the tests whose names contain `filter`, each against the policy afresh.
    ///
    /// # Errors
    /// The policy is not valid, or no limiter can be made of it.
    pub fn run(
        &self,
        policy_file: &str,
        policy: &str,
        filter: Option<&str>,
    ) -> Result<FileReport, Diagnostics> {
        let policy = Arc::new(Policy::check(policy_file, policy, &self.options())?.policy);
        let selected = |test: &&Test| filter.is_none_or(|filter| test.name.contains(filter));
        let tests = self
            .tests
            .iter()
            .filter(selected)
            .map(|test| run(test, &policy, self.start_us))
            .collect();
        Ok(FileReport { file: self.file.clone(), tests })
    }
}

/// A test in progress.
struct Run {
    limiter: Limiter<Switch>,
    clock: FakeClock,
    leases: HashMap<String, Lease>,
    latest: String,
    requests: u64,
}

fn run(test: &Test, policy: &Arc<Policy>, start_us: u64) -> TestReport {
    let clock = FakeClock::at_unix_us(start_us);
    let builder = Limiter::builder().policy(Arc::clone(policy)).clock(clock.clone());
    let limiter = builder.store(Switch::default()).hash_key(HashKey::new([0; 16])).assemble();
    let mut run =
        Run { limiter, clock, leases: HashMap::new(), latest: String::new(), requests: 0 };
    let mut elapsed_us = 0;
    let steps = test.steps.iter().enumerate();
    let failure =
        steps.map(|(index, step)| run.step(index, step, &mut elapsed_us)).find_map(Result::err);
    TestReport { name: test.name.clone(), requests: run.requests, failure }
}

impl Run {
    fn step(&mut self, index: usize, step: &Step, elapsed_us: &mut u64) -> Result<(), Failure> {
        let request = step.action.request().unwrap_or_else(|| Node::made(Value::Map(Vec::new())));
        for repetition in 1..=step.times {
            let at_us = step.at_us + step.spread_us * u64::from(repetition - 1);
            self.clock.advance_us(at_us.saturating_sub(*elapsed_us));
            *elapsed_us = at_us;
            self.act(step, &request, repetition).map_err(|(mismatches, limits)| Failure {
                place: step.place,
                step: index + 1,
                repetition: (repetition, step.times),
                at: seconds(Some(at_us)),
                mismatches,
                limits,
            })?;
        }
        Ok(())
    }

    fn act(
        &mut self,
        step: &Step,
        request: &Node,
        repetition: u32,
    ) -> Result<(), (Vec<Mismatch>, Vec<String>)> {
        let named = |name: &String| name.replace("{n}", &repetition.to_string());
        match &step.action {
            Action::Request { status, lease, .. } => {
                let mut faults = Diagnostics::new("");
                let request = request::read(&request::numbered(request, repetition), &mut faults);
                if let Some(fault) = faults.iter().next() {
                    return Err(trouble("request", "one that can be read", &fault.message));
                }
                let mut decided = self.limiter.check(&request);
                self.requests += 1;
                let mismatches = step.mismatches(repetition, &decided);
                if !mismatches.is_empty() {
                    return Err((mismatches, states(&decided)));
                }
                let Some(granted) =
                    decided.as_mut().ok().and_then(|decision| decision.lease.take())
                else {
                    return Ok(());
                };
                let lease = named(lease);
                self.keep(&lease, granted);
                if let Some(status) = status {
                    self.settle(Some(&lease), Settlement::Status(*status))?;
                    self.release(Some(&lease))?;
                }
                Ok(())
            }
            Action::Settle { settlement, lease } => {
                self.settle(lease.as_ref().map(named).as_ref(), *settlement)
            }
            Action::Release { lease } => self.release(lease.as_ref().map(named).as_ref()),
            Action::Renew { lease, held } => self.renew(lease.as_ref().map(named).as_ref(), *held),
            Action::Store { down } => {
                self.limiter.store().set_down(*down);
                Ok(())
            }
        }
    }

    fn keep(&mut self, name: &str, lease: Lease) {
        self.leases.insert(name.to_owned(), lease);
        name.clone_into(&mut self.latest);
    }

    fn settle(
        &mut self,
        name: Option<&String>,
        settlement: Settlement,
    ) -> Result<(), (Vec<Mismatch>, Vec<String>)> {
        let limiter = self.limiter.clone();
        let lease = self.lease(name)?;
        limiter
            .settle(lease, settlement)
            .map_err(|error| trouble("settle", "the store to answer", &error.to_string()))
    }

    fn release(&mut self, name: Option<&String>) -> Result<(), (Vec<Mismatch>, Vec<String>)> {
        let limiter = self.limiter.clone();
        let lease = self.lease(name)?;
        match limiter.release(lease) {
            Ok(_) => Ok(()),
            Err(error) => Err(trouble("release", "the store to answer", &error.to_string())),
        }
    }

    fn renew(
        &mut self,
        name: Option<&String>,
        held: bool,
    ) -> Result<(), (Vec<Mismatch>, Vec<String>)> {
        let limiter = self.limiter.clone();
        let lease = self.lease(name)?;
        let word = |held| if held { "held" } else { "lost" };
        match limiter.renew(lease) {
            Ok(found) if found == held => Ok(()),
            Ok(found) => Err(trouble("place", word(held), word(found))),
            Err(error) => Err(trouble("renew", "the store to answer", &error.to_string())),
        }
    }

    fn lease(&mut self, name: Option<&String>) -> Result<&mut Lease, (Vec<Mismatch>, Vec<String>)> {
        let name = name.unwrap_or(&self.latest);
        let found = self.leases.get_mut(name);
        found.ok_or_else(|| {
            let expected =
                if name.is_empty() { "a lease".to_owned() } else { format!("a lease `{name}`") };
            trouble("lease", &expected, "none was given; ask with `reserve: true`")
        })
    }
}

fn trouble(what: &str, expected: &str, found: &str) -> (Vec<Mismatch>, Vec<String>) {
    let (what, expected, found) = (what.to_owned(), expected.to_owned(), found.to_owned());
    (vec![Mismatch { what, expected, found }], Vec::new())
}

/// Each limit that applied, with its state, for people.
fn states(decided: &Result<Decision, RequestError>) -> Vec<String> {
    let Ok(decision) = decided else { return Vec::new() };
    let state = |report: &crate::decision::LimitReport| {
        let name = decision.limit_of(report).map(|limit| limit.name()).unwrap_or_default();
        let algorithm =
            decision.limit_of(report).map(|limit| limit.algorithm().name()).unwrap_or_default();
        let verdict = if report.is_allowed() { "allows" } else { "denies" };
        let wait = report.retry_after_us().map(|us| format!(", retry after {}", seconds(Some(us))));
        let (spec, remaining, cost) = (report.spec, report.available, report.cost);
        let reset = seconds(report.reset_us);
        format!(
            "{name}: {algorithm} {spec} {verdict} cost {cost}, remaining {remaining}, reset {reset}{}",
            wait.unwrap_or_default()
        )
    };
    decision.limits.iter().map(state).collect()
}
