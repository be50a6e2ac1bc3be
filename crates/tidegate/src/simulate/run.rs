//! Running policy tests.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::expect::{Came, Mismatch, seconds};
use super::file::{Test, TestFile};
use super::step::{Action, Step};
use super::switch::{Switch, Switched};
use super::template::Template;
use super::{request, said};
use crate::clock::{Clock as _, FakeClock};
use crate::decision::Decision;
use crate::key::HashKey;
use crate::limiter::{Acquisition, Limiter, NewMark, Turn, at_once};
use crate::policy::Policy;
use crate::policy::diagnostics::{Diagnostics, Position};
use crate::policy::document::Node;
use crate::policy::model::Exceed;
use crate::protection::events::Consequences;
use crate::request::{Request, RequestError};
use crate::reservation::{Reservation, Settlement};
use crate::store::Memory;

/// How many keys each limit has room for: so many that no test is about what a store forgets.
const KEYS_PER_LIMIT: usize = 1_000_000;

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

/// What did not come as expected, and each limit's state.
type Trouble = (Vec<Mismatch>, Vec<String>);

/// A test in progress.
struct Run<'t, S> {
    limiter: Limiter<S>,
    clock: FakeClock,
    start_us: u64,
    leases: HashMap<String, Reservation>,
    latest: String,
    requests: u64,
    /// Whether the policy lets requests wait without being asked to.
    policy_waits: bool,
    /// Requests that wait for their turn, in the order in which they came.
    held: Vec<Held<'t, S>>,
}

/// One repetition of a step.
#[derive(Clone, Copy)]
struct Moment<'t> {
    step: &'t Step,
    index: usize,
    repetition: u32,
    at_us: u64,
}

/// A request that waits.
struct Held<'t, S> {
    turn: Turn<S>,
    request: Rc<Request<'static>>,
    /// When it looks again at the latest, by the steady clock.
    until_us: u64,
    moment: Moment<'t>,
}

fn run(test: &Test, policy: &Arc<Policy>, start_us: u64) -> TestReport {
    let is_switched = |step: &Step| matches!(step.action, Action::Store { .. });
    if test.steps.iter().any(is_switched) {
        run_on(Switch::default(), test, policy, start_us)
    } else {
        let max_keys = KEYS_PER_LIMIT * policy.limits.len().max(1);
        // Each request may be of a new key.
        let times = test.steps.iter().map(|step| usize::try_from(step.times).unwrap_or(usize::MAX));
        let expected = times.fold(0, usize::saturating_add).min(KEYS_PER_LIMIT);
        let store = Memory::with_max_keys(max_keys).expecting(expected);
        run_on(store, test, policy, start_us)
    }
}

fn run_on<S: Switched>(store: S, test: &Test, policy: &Arc<Policy>, start_us: u64) -> TestReport {
    let clock = FakeClock::at_unix_us(start_us);
    let builder = Limiter::builder().policy(Arc::clone(policy)).clock(clock.clone());
    let limiter = builder.store(store).hash_key(HashKey::new([0; 16])).assemble();
    let mut run = Run {
        limiter,
        clock,
        start_us,
        leases: HashMap::new(),
        latest: String::new(),
        requests: 0,
        policy_waits: policy.limits.iter().any(|limit| matches!(limit.exceed, Exceed::Wait { .. })),
        held: Vec::new(),
    };
    let failure = run.steps(test).err();
    TestReport { name: test.name.clone(), requests: run.requests, failure }
}

impl<'t, S: Switched> Run<'t, S> {
    fn steps(&mut self, test: &'t Test) -> Result<(), Failure> {
        for (index, step) in test.steps.iter().enumerate() {
            let mut template = step.action.request().map(Template::new);
            for repetition in 1..=step.times {
                let at_us = step.at_us + step.spread_us * u64::from(repetition - 1);
                self.pass_time(Some(at_us))?;
                let moment = Moment { step, index, repetition, at_us };
                self.act(moment, template.as_mut()).map_err(|trouble| moment.failed(trouble))?;
            }
        }
        self.pass_time(None)
    }

    /// Lets time pass up to an instant from the start, or until nobody waits any more. Whoever
    /// waits looks again when it is woken or its instant comes, before anything else happens then.
    fn pass_time(&mut self, at_us: Option<u64>) -> Result<(), Failure> {
        let target_us = at_us.map(|at_us| self.start_us.saturating_add(at_us));
        loop {
            let now_us = self.clock.now().steady_us;
            let due = |held: &Held<'_, S>| held.turn.is_woken() || held.until_us <= now_us;
            if let Some(index) = self.held.iter().position(due) {
                let held = self.held.remove(index);
                let moment = held.moment;
                self.resume(held, index).map_err(|trouble| moment.failed(trouble))?;
                continue;
            }
            let next_us = self.held.iter().map(|held| held.until_us).min();
            let next_us = next_us.filter(|next_us| target_us.is_none_or(|us| *next_us <= us));
            let Some(until_us) = next_us.or(target_us) else { return Ok(()) };
            self.clock.advance_us(until_us.saturating_sub(now_us));
            if next_us.is_none() {
                return Ok(());
            }
        }
    }

    fn act(&mut self, moment: Moment<'t>, template: Option<&mut Template>) -> Result<(), Trouble> {
        let named = |name: &String| moment.named(name);
        match &moment.step.action {
            Action::Request { max_wait, .. } => {
                let Some(template) = template else { return Ok(()) };
                let request = template
                    .request(moment.repetition)
                    .map_err(|fault| trouble("request", "one that can be read", &fault))?;
                self.requests += 1;
                if max_wait.is_none() && !self.policy_waits {
                    let answer = self.limiter.check(&request);
                    return self.answered(moment, &request, answer, Duration::ZERO);
                }
                let turn = self.limiter.turn(*max_wait);
                self.resume(Held { turn, request, until_us: 0, moment }, self.held.len())
            }
            Action::Settle { settlement, lease } => {
                self.settle(lease.as_ref().map(named).as_ref(), *settlement)
            }
            Action::Release { lease } => self.release(lease.as_ref().map(named).as_ref()),
            Action::Renew { lease, held } => self.renew(lease.as_ref().map(named).as_ref(), *held),
            Action::Store { down } => {
                self.limiter.store().set_down(*down);
                if !*down {
                    at_once(self.limiter.merge());
                }
                Ok(())
            }
            Action::Report { base, over } => self.report(moment, over, base),
            Action::Load { ppm } => {
                self.limiter.set_load(*ppm);
                Ok(())
            }
            Action::Ban(node) => self.ban(moment, node),
        }
    }

    /// Lets a request try its turn: it is answered, or goes on waiting at this place.
    fn resume(&mut self, mut held: Held<'t, S>, index: usize) -> Result<(), Trouble> {
        let (answer, waited) = match at_once(held.turn.attempt(&held.request)) {
            Ok(ControlFlow::Continue(until_us)) => {
                self.held.insert(index, Held { until_us, ..held });
                return Ok(());
            }
            Ok(ControlFlow::Break(Acquisition { decision, waited })) => (Ok(decision), waited),
            Err(error) => (Err(error), Duration::ZERO),
        };
        let Held { request, moment, .. } = held;
        self.answered(moment, &request, answer, waited)
    }

    fn answered(
        &mut self,
        moment: Moment<'t>,
        request: &Request<'static>,
        mut answer: Result<Decision, RequestError>,
        waited: Duration,
    ) -> Result<(), Trouble> {
        let led_to = self.upstream_answers(moment, request, &answer);
        let came = match (&answer, &led_to) {
            (Ok(decision), Ok(reported)) => Came::Decision(decision, waited, reported),
            (Err(error), _) | (_, Err(error)) => Came::Refused(error),
        };
        let mismatches = moment.step.mismatches(moment.repetition, &came);
        if !mismatches.is_empty() {
            return Err((mismatches, states(&answer)));
        }
        let granted = answer.as_mut().ok().and_then(|decision| decision.reservation.take());
        let (Some(granted), Action::Request { status, lease, .. }) = (granted, &moment.step.action)
        else {
            return Ok(());
        };
        let lease = moment.named(lease);
        self.keep(&lease, granted);
        if let Some(status) = status {
            self.settle(Some(&lease), Settlement::Status(*status))?;
            self.release(Some(&lease))?;
        }
        Ok(())
    }

    /// What the upstream's answer leads to, where the request passes and the step says its status.
    fn upstream_answers(
        &self,
        moment: Moment<'t>,
        request: &Request<'static>,
        answer: &Result<Decision, RequestError>,
    ) -> Result<Consequences, RequestError> {
        let passed = answer.as_ref().is_ok_and(Decision::is_allowed);
        match &moment.step.action {
            Action::Request { status: Some(status), .. } if passed => {
                self.limiter.answered_now(request, *status)
            }
            _ => Ok(Consequences::default()),
        }
    }

    fn report(&self, moment: Moment<'t>, over: &Node, base: &Node) -> Result<(), Trouble> {
        let mut faults = Diagnostics::new("");
        let (over, base) = (
            request::numbered(over, moment.repetition),
            request::numbered(base, moment.repetition),
        );
        let Some(report) = said::report(&over, &base, &mut faults) else {
            let fault = faults.iter().next().map(|fault| fault.message.clone());
            return Err(trouble("report", "one that can be read", &fault.unwrap_or_default()));
        };
        let reported = self.limiter.report_now(&report);
        let came = match &reported {
            Ok(reported) => Came::Consequences(reported),
            Err(error) => Came::Refused(error),
        };
        let mismatches = moment.step.mismatches(moment.repetition, &came);
        if mismatches.is_empty() { Ok(()) } else { Err((mismatches, Vec::new())) }
    }

    fn ban(&self, moment: Moment<'t>, node: &Node) -> Result<(), Trouble> {
        let mut faults = Diagnostics::new("");
        let node = request::numbered(node, moment.repetition);
        let Some(ban) = said::ban(&node, &mut faults) else {
            let fault = faults.iter().next().map(|fault| fault.message.clone());
            return Err(trouble("ban", "one that can be read", &fault.unwrap_or_default()));
        };
        let order =
            NewMark { lasts: ban.for_us.map(Duration::from_micros), ..NewMark::new(ban.subject) };
        let banned = self.limiter.ban(&order.reason(ban.reason));
        banned.map(drop).map_err(|error| trouble("ban", "one that holds", &error.to_string()))
    }

    fn keep(&mut self, name: &str, lease: Reservation) {
        self.leases.insert(name.to_owned(), lease);
        name.clone_into(&mut self.latest);
    }

    fn settle(&mut self, name: Option<&String>, settlement: Settlement) -> Result<(), Trouble> {
        let limiter = self.limiter.clone();
        let lease = self.lease(name)?;
        limiter
            .settle(lease, settlement)
            .map_err(|error| trouble("settle", "the store to answer", &error.to_string()))
    }

    fn release(&mut self, name: Option<&String>) -> Result<(), Trouble> {
        let limiter = self.limiter.clone();
        let lease = self.lease(name)?;
        match limiter.release(lease) {
            Ok(_) => Ok(()),
            Err(error) => Err(trouble("release", "the store to answer", &error.to_string())),
        }
    }

    fn renew(&mut self, name: Option<&String>, held: bool) -> Result<(), Trouble> {
        let limiter = self.limiter.clone();
        let lease = self.lease(name)?;
        let word = |held| if held { "held" } else { "lost" };
        match limiter.renew(lease) {
            Ok(found) if found == held => Ok(()),
            Ok(found) => Err(trouble("place", word(held), word(found))),
            Err(error) => Err(trouble("renew", "the store to answer", &error.to_string())),
        }
    }

    fn lease(&mut self, name: Option<&String>) -> Result<&mut Reservation, Trouble> {
        let name = name.unwrap_or(&self.latest);
        let found = self.leases.get_mut(name);
        found.ok_or_else(|| {
            let expected =
                if name.is_empty() { "a lease".to_owned() } else { format!("a lease `{name}`") };
            trouble("lease", &expected, "none was given; ask with `reserve: true`")
        })
    }
}

impl Moment<'_> {
    /// A name with the number of the repetition.
    fn named(&self, name: &str) -> String {
        name.replace("{n}", &self.repetition.to_string())
    }

    fn failed(&self, (mismatches, limits): Trouble) -> Failure {
        Failure {
            place: self.step.place,
            step: self.index + 1,
            repetition: (self.repetition, self.step.times),
            at: seconds(Some(self.at_us)),
            mismatches,
            limits,
        }
    }
}

fn trouble(what: &str, expected: &str, found: &str) -> Trouble {
    let (what, expected, found) = (what.to_owned(), expected.to_owned(), found.to_owned());
    (vec![Mismatch { what, expected, found }], Vec::new())
}

/// Each limit that applied, with its state, for people.
fn states(answer: &Result<Decision, RequestError>) -> Vec<String> {
    let Ok(decision) = answer else { return Vec::new() };
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
