//! The steps of a test: as written → checked.

use std::sync::Arc;
use std::time::Duration;

use super::expect::{Expectation, Mismatch, StepKind, StepResult};
use super::operator_steps::{read_ban, read_duration_us, read_load_ppm, read_report};
use super::request;
use crate::policy::compile::fields::{Fields, Keys, integer, parsed, text, word};
use crate::policy::diagnostics::{Position, Reporter};
use crate::policy::document::{Node, Value};
use crate::policy::overlay::{Place, lay_over};
use crate::reservation::Settlement;
use crate::units::{Amount, DURATION_US_MAX};

const STEP_KEYS: Keys = Keys::with_later(
    "at times spread expect request acquire status as settle release renew store report load \
     ban",
    "source override",
);
const SETTLE_KEYS: Keys = Keys::new("cost status lease");
const ACQUIRE_KEYS: Keys = Keys::new("max_wait");
const RELEASE_KEYS: Keys = Keys::new("lease");
const RENEW_KEYS: Keys = Keys::new("lease held");

const TIMES_MAX: u64 = 10_000_000;

/// One step: what happens, how often, and what must come of it.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) place: Position,
    pub(super) at_us: u64,
    pub(super) times: u32,
    pub(super) spread_us: u64,
    pub(super) action: Action,
    expect: Expect,
}

/// What every repetition must meet, or each its own.
#[derive(Debug)]
enum Expect {
    Same(Box<Expectation>),
    Numbered(Node),
}

#[derive(Debug)]
pub(super) enum Action {
    /// The test's request and what is laid over it; how long it may wait, if not as long as the
    /// policy says; the upstream's status, if it answers; the lease's name.
    Request {
        base: Arc<Node>,
        over: Option<Node>,
        max_wait: Option<Duration>,
        status: Option<u16>,
        lease: String,
    },
    Settle {
        settlement: Settlement,
        lease: Option<String>,
    },
    Release {
        lease: Option<String>,
    },
    /// `held` is whether the place must still be held.
    Renew {
        lease: Option<String>,
        held: bool,
    },
    Store {
        down: bool,
    },
    /// The test's request and what is laid over it: an event besides.
    Report {
        base: Arc<Node>,
        over: Node,
    },
    Load {
        ppm: u64,
    },
    Ban(Node),
}

impl Action {
    /// What can be expected of it.
    fn kind(&self) -> StepKind {
        match self {
            Self::Request { .. } => StepKind::Request,
            Self::Report { .. } => StepKind::Report,
            _ => StepKind::Other,
        }
    }

    /// The request that it makes, before its repetitions are numbered.
    pub(super) fn request(&self) -> Option<Node> {
        let Self::Request { base, over, .. } = self else { return None };
        let mut request = Node::clone(base);
        if let Some(over) = over {
            lay_over(&mut request, over, Place::Plain);
        }
        Some(request)
    }
}

impl Step {
    /// What did not come as a repetition expects it.
    pub(super) fn mismatches(&self, repetition: u32, result: &StepResult<'_>) -> Vec<Mismatch> {
        let node = match &self.expect {
            Expect::Same(expectation) => return expectation.mismatches(result),
            Expect::Numbered(node) => request::numbered(node, repetition),
        };
        let faults = Reporter::default();
        let expectation = Expectation::read(&node, self.action.kind(), &faults);
        let fault = faults.first_message().map(|found| Mismatch {
            what: "expect".to_owned(),
            expected: "what can be read".to_owned(),
            found,
        });
        fault.into_iter().chain(expectation.mismatches(result)).collect()
    }

    /// When its last repetition happens.
    pub(super) fn end_us(&self) -> u64 {
        self.at_us
            .saturating_add(self.spread_us.saturating_mul(u64::from(self.times.saturating_sub(1))))
    }
}

/// Reads a step that stands after one which ends at `previous_us`.
pub(super) fn step(
    node: &Node,
    base: &Arc<Node>,
    previous_us: u64,
    diagnostics: &Reporter,
) -> Option<Step> {
    let fields = Fields::of(node, "a step", &STEP_KEYS, diagnostics)?;
    let at_us = fields.get("at").and_then(|node| at_us(node, previous_us, diagnostics));
    let times = fields.integer("times", 1..=TIMES_MAX).unwrap_or(1);
    let spread = fields.get("spread");
    let spread_us =
        spread.and_then(|node| read_duration_us(node, "a duration such as 1s", diagnostics));
    let action = action(node, &fields, base, diagnostics);
    let kind = action.as_ref().map_or(StepKind::Request, Action::kind);
    let expect = fields.get("expect").map(|node| expect(node, kind, diagnostics));
    let step = Step {
        place: node.at,
        at_us: at_us.unwrap_or(previous_us),
        times,
        spread_us: spread_us.unwrap_or(0),
        action: action?,
        expect: expect.unwrap_or_else(|| Expect::Same(Box::default())),
    };
    if step.end_us() > DURATION_US_MAX {
        let message = "found repetitions that end after more than 1000d from the start";
        diagnostics.error(node.at, message);
    }
    Some(step)
}

fn expect(node: &Node, kind: StepKind, diagnostics: &Reporter) -> Expect {
    let first = Expectation::read(&request::numbered(node, 1), kind, diagnostics);
    match request::is_numbered(node) {
        true => Expect::Numbered(node.clone()),
        false => Expect::Same(Box::new(first)),
    }
}

/// When a step happens, from the start.
fn at_us(node: &Node, previous_us: u64, diagnostics: &Reporter) -> Option<u64> {
    let at_us = read_duration_us(node, "a time from the start, such as 30s", diagnostics)?;
    if at_us < previous_us {
        let message = format!(
            "found {}, which is before the step above ends; time never runs backwards",
            node.kind()
        );
        diagnostics.error(node.at, message);
    }
    Some(at_us)
}

/// Which action a step has; a request if it names none.
fn action_key(node: &Node, fields: &Fields<'_>, diagnostics: &Reporter) -> Option<&'static str> {
    let keys = ["request", "settle", "release", "renew", "store", "report", "load", "ban"];
    let named: Vec<&str> = keys.into_iter().filter(|key| fields.get(key).is_some()).collect();
    let other = named.iter().find(|key| **key != "request");
    if let (Some(acquire), Some(other)) = (fields.entry("acquire"), other) {
        let message = format!("found both `acquire` and `{other}`, expected one of them");
        diagnostics.error(acquire.key_at, message);
        return None;
    }
    if let [first, second, ..] = named.as_slice() {
        let message = format!("found both `{first}` and `{second}`, expected one of them");
        diagnostics.error(node.at, message);
        return None;
    }
    for key in ["status", "as"] {
        if let Some(entry) = fields.entry(key).filter(|_| other.is_some()) {
            diagnostics.error(entry.key_at, format!("found `{key}`, which only a request has"));
        }
    }
    Some(named.first().copied().unwrap_or("request"))
}

fn action(
    node: &Node,
    fields: &Fields<'_>,
    base: &Arc<Node>,
    diagnostics: &Reporter,
) -> Option<Action> {
    let key = action_key(node, fields, diagnostics)?;
    let Some(node) = fields.get(key) else {
        return request_action(fields, base, None, diagnostics);
    };
    match key {
        "settle" => settle(node, diagnostics),
        "release" => {
            let lease = match is_bare(node) {
                true => None,
                false => lease_name(&Fields::of(node, "`release`", &RELEASE_KEYS, diagnostics)?),
            };
            Some(Action::Release { lease })
        }
        "renew" if is_bare(node) => Some(Action::Renew { lease: None, held: true }),
        "renew" => {
            let fields = Fields::of(node, "`renew`", &RENEW_KEYS, diagnostics)?;
            let held = fields.boolean("held").unwrap_or(true);
            Some(Action::Renew { lease: lease_name(&fields), held })
        }
        "store" => {
            let down = word(node, &[("down", true), ("up", false)], diagnostics)?;
            Some(Action::Store { down })
        }
        "report" => {
            let (first, base_of_first) = (request::numbered(node, 1), request::numbered(base, 1));
            read_report(&first, &base_of_first, diagnostics)?;
            Some(Action::Report { base: Arc::clone(base), over: node.clone() })
        }
        "load" => Some(Action::Load { ppm: read_load_ppm(node, diagnostics)? }),
        "ban" => {
            read_ban(&request::numbered(node, 1), diagnostics)?;
            Some(Action::Ban(node.clone()))
        }
        _ => request_action(fields, base, Some(node), diagnostics),
    }
}

fn request_action(
    fields: &Fields<'_>,
    base: &Arc<Node>,
    over: Option<&Node>,
    diagnostics: &Reporter,
) -> Option<Action> {
    if let Some(over) = over {
        // Over nothing, a null leaves nothing; over the test's request it deletes.
        let mut alone = Node { at: over.at, value: Value::Map(Vec::new()) };
        lay_over(&mut alone, over, Place::Plain);
        request::read(&request::numbered(&alone, 1), diagnostics);
        request::check_keys(over, diagnostics);
    }
    let max_wait = match fields.get("acquire") {
        Some(node) => Some(max_wait(node, diagnostics)?),
        None => None,
    };
    Some(Action::Request {
        base: Arc::clone(base),
        over: over.cloned(),
        max_wait,
        status: fields.integer("status", 100..=599),
        lease: fields.owned_text("as", "the name of a lease").unwrap_or_default(),
    })
}

/// `acquire: { max_wait: 5s }`
fn max_wait(node: &Node, diagnostics: &Reporter) -> Option<Duration> {
    let fields = Fields::of(node, "`acquire`", &ACQUIRE_KEYS, diagnostics)?;
    let missing = "found no `max_wait`, expected how long it may wait";
    let node = fields.require("max_wait", node.at, missing)?;
    read_duration_us(node, "a duration such as 5s", diagnostics).map(Duration::from_micros)
}

/// `release: true`: of the latest lease.
fn is_bare(node: &Node) -> bool {
    node.is_null() || node.text() == Some("true")
}

fn lease_name(fields: &Fields<'_>) -> Option<String> {
    fields.owned_text("lease", "the name of a lease")
}

fn settle(node: &Node, diagnostics: &Reporter) -> Option<Action> {
    let fields = Fields::of(node, "`settle`", &SETTLE_KEYS, diagnostics)?;
    let settlement = match (fields.get("cost"), fields.get("status")) {
        (Some(node), None) => {
            let cost = text(node, "the true cost", diagnostics)?;
            Settlement::Cost(parsed(Amount::parse(cost), node.at, diagnostics)?)
        }
        (None, Some(node)) if node.text() == Some("aborted") => Settlement::Aborted,
        (None, Some(node)) => Settlement::Status(integer(node, 100..=599, diagnostics)?),
        _ => {
            diagnostics.error(node.at, "expected either `cost` or `status`");
            return None;
        }
    };
    Some(Action::Settle { settlement, lease: lease_name(&fields) })
}
