//! The steps of a test: as written → checked.

use std::sync::Arc;
use std::time::Duration;

use super::expect::{Came, Kind};
use super::expect::{Expectation, Mismatch};
use super::{request, said};
use crate::policy::compile::fields::{Fields, Keys, boolean, integer, text, unit, word};
use crate::policy::diagnostics::{Diagnostic, Diagnostics, Position};
use crate::policy::document::{Node, Value};
use crate::policy::overlay::{Place, lay_over};
use crate::reservation::Settlement;
use crate::units::{Amount, DURATION_US_MAX, parse_exact_duration};

const STEP_KEYS: Keys = Keys {
    known: &[
        "at", "times", "spread", "expect", "request", "acquire", "status", "as", "settle",
        "release", "renew", "store", "report", "load", "ban",
    ],
    later: &["source", "override"],
};
const SETTLE_KEYS: Keys = Keys { known: &["cost", "status", "lease"], later: &[] };
const ACQUIRE_KEYS: Keys = Keys { known: &["max_wait"], later: &[] };
const RELEASE_KEYS: Keys = Keys { known: &["lease"], later: &[] };
const RENEW_KEYS: Keys = Keys { known: &["lease", "held"], later: &[] };

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
    fn kind(&self) -> Kind {
        match self {
            Self::Request { .. } => Kind::Request,
            Self::Report { .. } => Kind::Report,
            _ => Kind::Other,
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
    /// What a repetition must meet.
    pub(super) fn mismatches(&self, repetition: u32, came: &Came<'_>) -> Vec<Mismatch> {
        match &self.expect {
            Expect::Same(expectation) => expectation.mismatches(came),
            Expect::Numbered(node) => {
                let node = request::numbered(node, repetition);
                let mut faults = Diagnostics::new("");
                let kind = self.action.kind();
                let mismatches = Expectation::read(&node, kind, &mut faults).mismatches(came);
                let fault = |fault: &Diagnostic| Mismatch {
                    what: "expect".to_owned(),
                    expected: "what can be read".to_owned(),
                    found: fault.message.clone(),
                };
                faults.iter().map(fault).chain(mismatches).collect()
            }
        }
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
    diagnostics: &mut Diagnostics,
) -> Option<Step> {
    let fields = Fields::of(node, "a step", &STEP_KEYS, diagnostics)?;
    let at_us = fields.get("at").and_then(|node| at_us(node, previous_us, diagnostics));
    let times =
        fields.get("times").and_then(|node| integer(node, 1, TIMES_MAX, diagnostics)).unwrap_or(1);
    let spread_us = fields.get("spread").and_then(|node| spread_us(node, diagnostics)).unwrap_or(0);
    let action = action(node, &fields, base, diagnostics);
    let kind = action.as_ref().map_or(Kind::Request, Action::kind);
    let expect = fields.get("expect").map(|node| expect(node, kind, diagnostics));
    let step = Step {
        place: node.at,
        at_us: at_us.unwrap_or(previous_us),
        times: u32::try_from(times).unwrap_or(u32::MAX),
        spread_us,
        action: action?,
        expect: expect.unwrap_or_else(|| Expect::Same(Box::default())),
    };
    if step.end_us() > DURATION_US_MAX {
        let message = "found repetitions that end after more than 1000d from the start";
        diagnostics.error(node.at, message);
    }
    Some(step)
}

fn expect(node: &Node, kind: Kind, diagnostics: &mut Diagnostics) -> Expect {
    let first = Expectation::read(&request::numbered(node, 1), kind, diagnostics);
    if request::is_numbered(node) {
        Expect::Numbered(node.clone())
    } else {
        Expect::Same(Box::new(first))
    }
}

/// The time between repetitions.
fn spread_us(node: &Node, diagnostics: &mut Diagnostics) -> Option<u64> {
    let text = text(node, "a duration such as 1s", diagnostics)?;
    unit(parse_exact_duration(text), node.at, diagnostics)
}

/// When a step happens, from the start.
fn at_us(node: &Node, previous_us: u64, diagnostics: &mut Diagnostics) -> Option<u64> {
    let text = text(node, "a time from the start, such as 30s", diagnostics)?;
    let at_us = unit(parse_exact_duration(text), node.at, diagnostics)?;
    if at_us < previous_us {
        let message = format!(
            "found `{text}`, which is before the step above ends; time never runs backwards"
        );
        diagnostics.error(node.at, message);
    }
    Some(at_us)
}

fn action(
    node: &Node,
    fields: &Fields<'_>,
    base: &Arc<Node>,
    diagnostics: &mut Diagnostics,
) -> Option<Action> {
    let kinds = ["request", "settle", "release", "renew", "store", "report", "load", "ban"];
    let said: Vec<&str> = kinds.into_iter().filter(|kind| fields.get(kind).is_some()).collect();
    let waits = fields.entry("acquire");
    if let (Some(acquire), Some(kind)) = (waits, said.iter().find(|kind| **kind != "request")) {
        let message = format!("found both `acquire` and `{kind}`, expected one of them");
        diagnostics.error(acquire.key_at, message);
        return None;
    }
    if let [first, second, ..] = said.as_slice() {
        diagnostics
            .error(node.at, format!("found both `{first}` and `{second}`, expected one of them"));
        return None;
    }
    for key in ["status", "as"] {
        if let Some(entry) =
            fields.entry(key).filter(|_| !matches!(said.as_slice(), [] | ["request"]))
        {
            diagnostics.error(entry.key_at, format!("found `{key}`, which only a request has"));
        }
    }
    let lease = |node: Option<&Node>, diagnostics: &mut Diagnostics| {
        node.and_then(|node| text(node, "the name of a lease", diagnostics)).map(str::to_owned)
    };
    match said.first() {
        Some(&"settle") => settle(fields.get("settle")?, diagnostics),
        Some(&"release") => {
            let node = fields.get("release")?;
            if is_bare(node) {
                return Some(Action::Release { lease: None });
            }
            let fields = Fields::of(node, "`release`", &RELEASE_KEYS, diagnostics)?;
            Some(Action::Release { lease: lease(fields.get("lease"), diagnostics) })
        }
        Some(&"renew") => {
            let node = fields.get("renew")?;
            if is_bare(node) {
                return Some(Action::Renew { lease: None, held: true });
            }
            let fields = Fields::of(node, "`renew`", &RENEW_KEYS, diagnostics)?;
            let held = fields.get("held").and_then(|node| boolean(node, diagnostics));
            let lease = lease(fields.get("lease"), diagnostics);
            Some(Action::Renew { lease, held: held.unwrap_or(true) })
        }
        Some(&"store") => {
            let words = [("down", true), ("up", false)];
            let down = word(fields.get("store")?, &words, diagnostics)?;
            Some(Action::Store { down })
        }
        Some(&"report") => {
            let over = fields.get("report")?.clone();
            said::report(&request::numbered(&over, 1), &request::numbered(base, 1), diagnostics)?;
            Some(Action::Report { base: Arc::clone(base), over })
        }
        Some(&"load") => {
            let ppm = said::load_ppm(fields.get("load")?, diagnostics)?;
            Some(Action::Load { ppm })
        }
        Some(&"ban") => {
            let node = fields.get("ban")?;
            said::ban(&request::numbered(node, 1), diagnostics)?;
            Some(Action::Ban(node.clone()))
        }
        _ => {
            let over = fields.get("request").cloned();
            if let Some(over) = &over {
                // Over nothing, a null leaves nothing; over the test's request it deletes.
                let mut alone = Node { at: over.at, value: Value::Map(Vec::new()) };
                lay_over(&mut alone, over, Place::Plain);
                request::read(&request::numbered(&alone, 1), diagnostics);
                // A word that no request has is none to delete either.
                let _ = Fields::of(over, "a request", &request::KEYS, diagnostics);
            }
            let max_wait = match fields.get("acquire") {
                Some(node) => Some(max_wait(node, diagnostics)?),
                None => None,
            };
            let status = fields.get("status").and_then(|node| status(node, diagnostics));
            let name = lease(fields.get("as"), diagnostics).unwrap_or_default();
            Some(Action::Request { base: Arc::clone(base), over, max_wait, status, lease: name })
        }
    }
}

/// `acquire: { max_wait: 5s }`
fn max_wait(node: &Node, diagnostics: &mut Diagnostics) -> Option<Duration> {
    let fields = Fields::of(node, "`acquire`", &ACQUIRE_KEYS, diagnostics)?;
    let Some(node) = fields.get("max_wait") else {
        if !fields.is_misspelt(&["max_wait"]) {
            diagnostics.error(node.at, "found no `max_wait`, expected how long it may wait");
        }
        return None;
    };
    let text = text(node, "a duration such as 5s", diagnostics)?;
    unit(parse_exact_duration(text), node.at, diagnostics).map(Duration::from_micros)
}

/// `release: true`: of the latest lease.
fn is_bare(node: &Node) -> bool {
    node.is_null() || node.text() == Some("true")
}

fn settle(node: &Node, diagnostics: &mut Diagnostics) -> Option<Action> {
    let fields = Fields::of(node, "`settle`", &SETTLE_KEYS, diagnostics)?;
    let settlement = match (fields.get("cost"), fields.get("status")) {
        (Some(node), None) => {
            let cost = text(node, "the true cost", diagnostics)?;
            Settlement::Cost(unit(Amount::parse(cost), node.at, diagnostics)?)
        }
        (None, Some(node)) if node.text() == Some("aborted") => Settlement::Aborted,
        (None, Some(node)) => Settlement::Status(status(node, diagnostics)?),
        _ => {
            diagnostics.error(node.at, "expected either `cost` or `status`");
            return None;
        }
    };
    let lease = fields.get("lease").and_then(|node| text(node, "the name of a lease", diagnostics));
    Some(Action::Settle { settlement, lease: lease.map(str::to_owned) })
}

fn status(node: &Node, diagnostics: &mut Diagnostics) -> Option<u16> {
    integer(node, 100, 599, diagnostics).and_then(|status| u16::try_from(status).ok())
}
