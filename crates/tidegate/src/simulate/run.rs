//! Running policy tests.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::expect::{Mismatch, StepResult, seconds};
use super::file::{Test, TestFile};
use super::operator_steps::{read_ban, read_report};
use super::request::{self, NUMBER};
use super::step::{Action, Step};
use super::switchable_store::{SwitchableMemory, SwitchableStore};
use super::template::Template;
use crate::clock::{Clock as _, FakeClock};
use crate::decision::{Decision, LimitReport};
use crate::key::HashKey;
use crate::limiter::{Acquisition, Limiter, Turn, Wait, block_on_ready};
use crate::policy::Policy;
use crate::policy::diagnostics::{Diagnostics, Position, Reporter};
use crate::policy::document::Node;
use crate::policy::model::Exceed;
use crate::protection::events::Consequences;
use crate::request::{Request, RequestError};
use crate::reservation::{Reservation, Settlement};
use crate::store::{Memory, StoreError};

/// The room for keys of each limit. It is so large that no test depends on what a store evicts.
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
        let tests = self.tests.iter().filter(selected);
        let tests = tests.map(|test| run(test, &policy, self.start_us)).collect();
        Ok(FileReport { file: self.file.clone(), tests })
    }
}

/// What did not come as expected, and each limit's state.
type StepFailure = (Vec<Mismatch>, Vec<String>);

/// A test in progress.
struct Run<'t, S> {
    limiter: Limiter<S>,
    clock: FakeClock,
    start_us: u64,
    reservations: HashMap<String, Reservation>,
    /// The name of the latest reservation.
    latest: String,
    requests: u64,
    /// Whether a limit of the policy says `exceed: wait`.
    policy_waits: bool,
    /// Requests that wait for their turn, in the order in which they came.
    waiting: Vec<WaitingRequest<'t, S>>,
}

/// One repetition of a step.
#[derive(Clone, Copy)]
struct Repetition<'t> {
    step: &'t Step,
    /// The step's place in the test.
    index: usize,
    /// Counted from 1.
    number: u32,
    at_us: u64,
}

/// A request that waits.
struct WaitingRequest<'t, S> {
    turn: Turn<S>,
    request: Rc<Request<'static>>,
    /// When it tries again at the latest, by the steady clock.
    until_us: u64,
    repetition: Repetition<'t>,
}

fn run(test: &Test, policy: &Arc<Policy>, start_us: u64) -> TestReport {
    let is_switched = |step: &Step| matches!(step.action, Action::Store { .. });
    if test.steps.iter().any(is_switched) {
        return run_on(SwitchableMemory::default(), test, policy, start_us);
    }
    let max_keys = KEYS_PER_LIMIT * policy.limits.len().max(1);
    // Each request may be of a new key.
    let times = test.steps.iter().map(|step| usize::try_from(step.times).unwrap_or(usize::MAX));
    let expected = times.fold(0, usize::saturating_add).min(KEYS_PER_LIMIT);
    let store = Memory::with_max_keys(max_keys).with_expected_keys(expected);
    run_on(store, test, policy, start_us)
}

fn run_on<S: SwitchableStore>(
    store: S,
    test: &Test,
    policy: &Arc<Policy>,
    start_us: u64,
) -> TestReport {
    let clock = FakeClock::at_unix(Duration::from_micros(start_us));
    let builder = Limiter::builder().policy(Arc::clone(policy)).clock(clock.clone());
    let limiter = builder.store(store).hash_key(HashKey::new([0; 16])).assemble();
    let mut run = Run {
        limiter,
        clock,
        start_us,
        reservations: HashMap::new(),
        latest: String::new(),
        requests: 0,
        policy_waits: policy.limits.iter().any(|limit| matches!(limit.exceed, Exceed::Wait { .. })),
        waiting: Vec::new(),
    };
    let failure = run.steps(test).err();
    TestReport { name: test.name.clone(), requests: run.requests, failure }
}

impl<'t, S: SwitchableStore> Run<'t, S> {
    fn steps(&mut self, test: &'t Test) -> Result<(), Failure> {
        for (index, step) in test.steps.iter().enumerate() {
            let mut template = step.action.request().map(Template::new);
            for number in 1..=step.times {
                let at_us = step.at_us + step.spread_us * u64::from(number - 1);
                self.pass_time(Some(at_us))?;
                let repetition = Repetition { step, index, number, at_us };
                let acted = self.act(repetition, template.as_mut());
                acted.map_err(|failure| repetition.fail(failure))?;
            }
        }
        self.pass_time(None)
    }

    /// Lets time pass up to an instant from the start, or until no request waits. A waiting request
    /// tries again when it is woken or its instant comes, before anything else happens then.
    fn pass_time(&mut self, at_us: Option<u64>) -> Result<(), Failure> {
        let target_us = at_us.map(|at_us| self.start_us.saturating_add(at_us));
        loop {
            let now_us = self.clock.now().steady_us;
            let is_due =
                |one: &WaitingRequest<'_, S>| one.turn.is_woken() || one.until_us <= now_us;
            if let Some(index) = self.waiting.iter().position(is_due) {
                let due = self.waiting.remove(index);
                let repetition = due.repetition;
                self.attempt(due, index).map_err(|failure| repetition.fail(failure))?;
                continue;
            }
            let next_us = self.waiting.iter().map(|one| one.until_us).min();
            let next_us = next_us.filter(|next_us| target_us.is_none_or(|us| *next_us <= us));
            let Some(until_us) = next_us.or(target_us) else { return Ok(()) };
            self.clock.advance(Duration::from_micros(until_us.saturating_sub(now_us)));
            if next_us.is_none() {
                return Ok(());
            }
        }
    }

    fn act(
        &mut self,
        repetition: Repetition<'t>,
        template: Option<&mut Template>,
    ) -> Result<(), StepFailure> {
        let number = |name: &Option<String>| name.as_ref().map(|name| repetition.number_name(name));
        match &repetition.step.action {
            Action::Request { max_wait, .. } => {
                let Some(template) = template else { return Ok(()) };
                let request = template.request(repetition.number);
                let request = request.map_err(|fault| reading_failure("request", &fault))?;
                self.requests += 1;
                if max_wait.is_none() && !self.policy_waits {
                    let answer = self.limiter.check(&request);
                    return self.conclude(repetition, &request, answer, Duration::ZERO);
                }
                let wait = max_wait.map_or(Wait::ByPolicy, Wait::AtMost);
                let turn = Turn::new(&self.limiter, self.clock.now(), wait);
                let waiting = WaitingRequest { turn, request, until_us: 0, repetition };
                self.attempt(waiting, self.waiting.len())
            }
            Action::Settle { settlement, lease } => {
                let settle = |limiter: &Limiter<S>, reservation: &mut Reservation| {
                    limiter.settle(reservation, *settlement)
                };
                self.amend(number(lease), "settle", settle)
            }
            Action::Release { lease } => self.release(number(lease)),
            Action::Renew { lease, held } => {
                let found =
                    self.amend(number(lease), "renew", |limiter, one| limiter.renew(one))?;
                let word = |held| if held { "held" } else { "lost" };
                let fails = found != *held;
                if fails { Err(failure("place", word(*held), word(found))) } else { Ok(()) }
            }
            Action::Store { down } => {
                self.limiter.store().set_down(*down);
                if !*down {
                    block_on_ready(self.limiter.merge());
                }
                Ok(())
            }
            Action::Report { base, over } => self.report(repetition, over, base),
            Action::Load { ppm } => {
                self.limiter.set_load(*ppm);
                Ok(())
            }
            Action::Ban(node) => self.ban(repetition, node),
        }
    }

    /// Lets a request try its turn: it is answered, or goes on waiting at this place.
    fn attempt(
        &mut self,
        mut waiting: WaitingRequest<'t, S>,
        index: usize,
    ) -> Result<(), StepFailure> {
        let (answer, waited) = match block_on_ready(waiting.turn.try_request(&waiting.request)) {
            Ok(ControlFlow::Continue(until_us)) => {
                self.waiting.insert(index, WaitingRequest { until_us, ..waiting });
                return Ok(());
            }
            Ok(ControlFlow::Break(Acquisition { decision, waited })) => (Ok(decision), waited),
            Err(error) => (Err(error), Duration::ZERO),
        };
        let WaitingRequest { request, repetition, .. } = waiting;
        self.conclude(repetition, &request, answer, waited)
    }

    /// Compares an answer with what the step expects, and keeps the reservation.
    fn conclude(
        &mut self,
        repetition: Repetition<'t>,
        request: &Request<'static>,
        mut answer: Result<Decision, RequestError>,
        waited: Duration,
    ) -> Result<(), StepFailure> {
        let led_to = self.upstream_answers(repetition, request, &answer);
        let result = match (&answer, &led_to) {
            (Ok(decision), Ok(led_to)) => StepResult::Decision(decision, waited, led_to),
            (Err(error), _) | (_, Err(error)) => StepResult::InvalidRequest(error),
        };
        repetition.compare(&result, || answer.as_ref().map(states).unwrap_or_default())?;
        let granted = answer.as_mut().ok().and_then(|decision| decision.reservation.take());
        if let (Some(granted), Action::Request { status, lease, .. }) =
            (granted, &repetition.step.action)
        {
            let name = repetition.number_name(lease);
            self.reservations.insert(name.clone(), granted);
            self.latest.clone_from(&name);
            if let Some(status) = status {
                let settlement = Settlement::Status(*status);
                let settle = |limiter: &Limiter<S>, reservation: &mut Reservation| {
                    limiter.settle(reservation, settlement)
                };
                self.amend(Some(name.clone()), "settle", settle)?;
                self.release(Some(name))?;
            }
        }
        Ok(())
    }

    /// What the upstream's answer leads to, where the request passes and the step says its status.
    fn upstream_answers(
        &self,
        repetition: Repetition<'t>,
        request: &Request<'static>,
        answer: &Result<Decision, RequestError>,
    ) -> Result<Consequences, RequestError> {
        let passed = answer.as_ref().is_ok_and(Decision::is_allowed);
        match &repetition.step.action {
            Action::Request { status: Some(status), .. } if passed => {
                self.limiter.record_status(request, *status)
            }
            _ => Ok(Consequences::default()),
        }
    }

    fn report(
        &self,
        repetition: Repetition<'t>,
        over: &Node,
        base: &Node,
    ) -> Result<(), StepFailure> {
        let numbered = |node| request::numbered(node, repetition.number);
        let faults = Reporter::default();
        let report = read_report(&numbered(over), &numbered(base), &faults).ok_or_else(|| {
            reading_failure("report", &faults.first_message().unwrap_or_default())
        })?;
        let reported = self.limiter.report(&report);
        let result = match &reported {
            Ok(reported) => StepResult::Consequences(reported),
            Err(error) => StepResult::InvalidRequest(error),
        };
        repetition.compare(&result, Vec::new)
    }

    fn ban(&self, repetition: Repetition<'t>, node: &Node) -> Result<(), StepFailure> {
        let faults = Reporter::default();
        let ban = read_ban(&request::numbered(node, repetition.number), &faults)
            .ok_or_else(|| reading_failure("ban", &faults.first_message().unwrap_or_default()))?;
        let banned = self.limiter.ban(&ban);
        banned.map(drop).map_err(|error| failure("ban", "one that holds", &error.to_string()))
    }

    fn release(&mut self, name: Option<String>) -> Result<(), StepFailure> {
        self.amend(name, "release", Limiter::release).map(drop)
    }

    /// Amends the reservation of a name, or the latest.
    fn amend<T>(
        &mut self,
        name: Option<String>,
        what: &str,
        amend: impl FnOnce(&Limiter<S>, &mut Reservation) -> Result<T, StoreError>,
    ) -> Result<T, StepFailure> {
        let name = name.unwrap_or_else(|| self.latest.clone());
        let reservation = self.reservations.get_mut(&name).ok_or_else(|| {
            let expected =
                if name.is_empty() { "a lease".to_owned() } else { format!("a lease `{name}`") };
            failure("lease", &expected, "none was given; ask with `reserve: true`")
        })?;
        let amended = amend(&self.limiter, reservation);
        amended.map_err(|error| failure(what, "the store to answer", &error.to_string()))
    }
}

impl Repetition<'_> {
    /// A name with the number of the repetition.
    fn number_name(&self, name: &str) -> String {
        name.replace(NUMBER, &self.number.to_string())
    }

    /// Fails if the result is not what the step expects. `states` describes the limits.
    fn compare(
        &self,
        result: &StepResult<'_>,
        states: impl FnOnce() -> Vec<String>,
    ) -> Result<(), StepFailure> {
        let mismatches = self.step.mismatches(self.number, result);
        if mismatches.is_empty() { Ok(()) } else { Err((mismatches, states())) }
    }

    fn fail(&self, (mismatches, limits): StepFailure) -> Failure {
        Failure {
            place: self.step.place,
            step: self.index + 1,
            repetition: (self.number, self.step.times),
            at: seconds(Some(self.at_us)),
            mismatches,
            limits,
        }
    }
}

fn failure(what: &str, expected: &str, found: &str) -> StepFailure {
    let (what, expected, found) = (what.to_owned(), expected.to_owned(), found.to_owned());
    (vec![Mismatch { what, expected, found }], Vec::new())
}

fn reading_failure(what: &str, fault: &str) -> StepFailure {
    failure(what, "one that can be read", fault)
}

/// Each limit that applied, with its state, for people.
fn states(decision: &Decision) -> Vec<String> {
    let state = |report: &LimitReport| {
        let limit = decision.limit_of(report);
        let name = limit.map(|limit| limit.name()).unwrap_or_default();
        let algorithm = limit.map(|limit| limit.algorithm().name()).unwrap_or_default();
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
