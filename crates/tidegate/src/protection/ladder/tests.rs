use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;

use crate::clock::{FakeClock, Now};
use crate::key::{HashKey, Key};
use crate::limiter::Limiter;
use crate::plan::Plan;
use crate::policy::Policy;
use crate::protection::events::{Effect, Report};
use crate::protection::marks::{MarkChange, MarkSink, Subject};
use crate::protection::step_cache::{ENTRIES_MAX, StepCache, StepDuty};
use crate::request::Request;
use crate::store::{Amendment, AmendmentResults, Answer, ImmediateStore, Memory, StoreError};

const START: u64 = 1_767_603_600;

/// A store that charges, and whose replies may be lost; or that is lost itself.
#[derive(Debug, Default)]
struct FlakyStore {
    memory: Memory,
    loses_replies: AtomicBool,
    is_lost: AtomicBool,
    calls: AtomicUsize,
}

impl FlakyStore {
    fn answer<T>(&self, call: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let error = || StoreError { transient: true, detail: "late".to_owned() };
        if self.is_lost.load(Ordering::Relaxed) {
            return Err(error());
        }
        let answer = call();
        if self.loses_replies.load(Ordering::Relaxed) { Err(error()) } else { answer }
    }
}

impl ImmediateStore for FlakyStore {
    fn decide_now(&self, plan: &Plan) -> Result<Answer, StoreError> {
        self.answer(|| self.memory.decide_now(plan))
    }

    fn amend_now(
        &self,
        now: Now,
        amendments: &[Amendment],
    ) -> Result<AmendmentResults, StoreError> {
        self.answer(|| self.memory.amend_now(now, amendments))
    }

    fn announce_now(&self, families: &[u64]) {
        self.memory.announce_now(families);
    }
}

/// Replicates marks to another node.
struct Replication {
    other: Limiter<Arc<FlakyStore>>,
    clock: FakeClock,
}

impl MarkSink for Replication {
    fn changed(&self, change: &MarkChange) {
        use crate::clock::Clock as _;
        self.other.marks().apply(change, self.clock.now());
    }
}

/// Two nodes on one store.
struct Pair {
    nodes: [Limiter<Arc<FlakyStore>>; 2],
    store: Arc<FlakyStore>,
    clock: FakeClock,
}

fn policy(ladder: &str) -> Arc<Policy> {
    let text = format!(
        "
tidegate: 1
name: t
events: {{ bad: {{}}, good: {{}} }}
penalties: {{ p: {{ event: bad, by: user, within: 1h, forgive: good, ladder: {{ {ladder} }} }} }}
notify: {{ n: {{ webhook: 'https://hooks.example.org/x' }} }}
"
    );
    Arc::new(Policy::parse("t.yaml", &text).unwrap_or_else(|errors| panic!("{errors}")))
}

impl Pair {
    fn new(ladder: &str) -> Self {
        let (store, clock) = (Arc::new(FlakyStore::default()), FakeClock::at_unix_seconds(START));
        let node = || {
            let builder = Limiter::builder().policy(policy(ladder)).clock(clock.clone());
            let builder = builder.hash_key(HashKey::new([7; 16]));
            builder.store(Arc::clone(&store)).build().unwrap()
        };
        let nodes = [node(), node()];
        for (one, other) in [(0, 1), (1, 0)] {
            let sink = Replication { other: nodes[other].clone(), clock: clock.clone() };
            nodes[one].marks().set_sink(Arc::new(sink));
        }
        Self { nodes, store, clock }
    }

    /// An event on a node, and what it led to: bans, flags, notices.
    fn bad(&self, node: usize) -> [usize; 3] {
        let report = Report::new("bad", Request::default().user("u"));
        let effects = self.nodes[node].report(&report).unwrap().effects;
        let count = |is: fn(&Effect) -> bool| effects.iter().filter(|effect| is(effect)).count();
        [
            count(|effect| matches!(effect, Effect::Banned { .. })),
            count(|effect| matches!(effect, Effect::Flagged { .. })),
            count(|effect| matches!(effect, Effect::Notify(_))),
        ]
    }

    fn bads(&self, events: &[usize]) -> Vec<[usize; 3]> {
        events.iter().map(|node| self.bad(*node)).collect()
    }

    fn wait(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    fn reload(&self, ladder: &str) {
        for node in &self.nodes {
            node.replace_policies(vec![policy(ladder)]).unwrap();
        }
    }

    fn calls(&self, act: impl FnOnce()) -> usize {
        let before = self.store.calls.load(Ordering::Relaxed);
        act();
        self.store.calls.load(Ordering::Relaxed) - before
    }
}

const NOTHING: [usize; 3] = [0; 3];
const BANNED_AND_TOLD: [usize; 3] = [1, 0, 1];
const TOLD: [usize; 3] = [0, 0, 1];

#[test]
fn a_step_whose_reply_got_lost_is_applied_late_and_once_on_all_nodes() {
    let pair = Pair::new("3: { ban: 1min, notify: n }, 9: {}");
    assert_eq!(pair.bads(&[1, 1]), [NOTHING; 2]);
    pair.store.loses_replies.store(true, Ordering::Relaxed);
    assert_eq!(pair.bad(0), NOTHING, "this node alone has counted one");
    pair.store.loses_replies.store(false, Ordering::Relaxed);
    assert_eq!(pair.bads(&[0, 1, 1]), [NOTHING; 3], "whoever reached it may still be at it");
    pair.wait(5);
    assert_eq!(pair.bads(&[1, 0, 1]), [BANNED_AND_TOLD, NOTHING, NOTHING]);
    for _ in 0..300 {
        pair.wait(60);
        assert_eq!(pair.bads(&[0, 1]), [NOTHING; 2], "while the count stays there");
    }
}

#[test]
fn a_step_that_debts_of_an_outage_jump_over_is_applied_late() {
    let pair = Pair::new("5: { flag: many, notify: n }, 9: {}");
    assert_eq!(pair.bads(&[0, 0]), [NOTHING; 2]);
    pair.store.is_lost.store(true, Ordering::Relaxed);
    assert_eq!(pair.bads(&[1, 1, 1, 1]), [NOTHING; 4]);
    pair.store.is_lost.store(false, Ordering::Relaxed);
    assert!(crate::limiter::block_on_ready(pair.nodes[1].merge()).done);
    assert_eq!(pair.bads(&[0, 1]), [NOTHING; 2]);
    pair.wait(5);
    assert_eq!(pair.bads(&[0, 1]), [[0, 1, 1], NOTHING]);
}

#[test]
fn what_a_node_did_without_the_store_is_not_done_again_once_it_is_back() {
    let pair = Pair::new("3: { ban: 1min, notify: n }, 9: {}");
    pair.store.is_lost.store(true, Ordering::Relaxed);
    assert_eq!(pair.bads(&[0, 0, 0]), [NOTHING, NOTHING, BANNED_AND_TOLD]);
    pair.store.is_lost.store(false, Ordering::Relaxed);
    assert!(crate::limiter::block_on_ready(pair.nodes[0].merge()).done);
    for _ in 0..20 {
        pair.wait(600);
        assert_eq!(pair.bads(&[0, 1, 0]), [NOTHING; 3]);
    }
}

#[test]
fn a_step_that_a_reload_puts_below_the_count_is_applied_late() {
    let pair = Pair::new("9: { ban: 1h }");
    assert_eq!(pair.bads(&[0, 1, 0, 1, 0]), [NOTHING; 5]);
    pair.reload("3: { flag: early }, 4: { ban: 10min, notify: n }, 9: {}");
    assert_eq!(pair.bad(0), NOTHING);
    pair.wait(5);
    assert_eq!(pair.bads(&[0, 1]), [[1, 1, 1], NOTHING], "all that it is above");
}

#[test]
fn a_step_that_was_applied_and_is_moved_is_not_applied_again() {
    let pair = Pair::new("4: { ban: 1min }, 9: {}");
    assert_eq!(pair.bads(&[0, 0, 0, 0]).pop(), Some([1, 0, 0]));
    pair.wait(120);
    pair.reload("3: { ban: 1min }, 9: {}");
    for _ in 0..20 {
        pair.wait(10);
        assert_eq!(pair.bads(&[0, 1]), [NOTHING; 2]);
    }
}

#[test]
fn a_ban_that_has_ended_or_was_lifted_does_not_come_again_while_the_count_stays() {
    for lifts in [false, true] {
        let pair = Pair::new("3: { ban: 1min, notify: n }, 9: {}");
        assert_eq!(pair.bads(&[0, 1, 0]).pop(), Some(BANNED_AND_TOLD));
        if lifts {
            assert!(pair.nodes[1].unban(Some("t"), &Subject::user("u")));
        }
        // The second node hears of it only after a long time.
        for events in [[0, 0], [1, 1]].iter().cycle().take(40) {
            pair.wait(400);
            assert_eq!(pair.bads(events), [NOTHING; 2]);
        }
        pair.wait(3_700);
        assert_eq!(pair.bads(&[0, 1, 0]).pop(), Some(BANNED_AND_TOLD), "a run of its own");
    }
}

#[test]
fn a_count_that_is_forgiven_begins_anew() {
    let pair = Pair::new("2: { ban: 1min }, 9: {}");
    assert_eq!(pair.bads(&[0, 0]).pop(), Some([1, 0, 0]));
    pair.wait(120);
    pair.nodes[0].report(&Report::new("good", Request::default().user("u"))).unwrap();
    assert_eq!(pair.bad(1), NOTHING);
    pair.store.loses_replies.store(true, Ordering::Relaxed);
    pair.nodes[0].report(&Report::new("bad", Request::default().user("u"))).unwrap();
    pair.store.loses_replies.store(false, Ordering::Relaxed);
    assert_eq!(pair.bad(1), NOTHING);
    pair.wait(5);
    assert_eq!(pair.bad(1), [1, 0, 0], "the missed step of the second run");
}

#[test]
fn a_step_that_only_notifies_does_so_once_in_the_span_however_the_count_dips() {
    let pair = Pair::new("3: { notify: n }, 9: {}");
    pair.bad(0);
    pair.wait(1_200);
    pair.bad(1);
    let mut told = Vec::new();
    for minute in 0..120 {
        // Twenty minutes apart: the count goes from two to three and back.
        pair.wait(60);
        if minute % 20 == 19 {
            told.push(pair.bad(minute / 20 % 2));
        }
    }
    assert_eq!(told, [TOLD, NOTHING, NOTHING, TOLD, NOTHING, NOTHING]);
}

#[test]
fn an_event_asks_the_store_once_unless_a_step_is_reached() {
    let pair = Pair::new("3: { ban: 1min }, 9: {}");
    let mut calls = Vec::new();
    for _ in 0..8 {
        calls.push(pair.calls(|| _ = pair.bad(0)));
    }
    assert_eq!(calls, [1, 1, 2, 1, 1, 1, 1, 1]);
    assert_eq!(pair.calls(|| _ = pair.bad(1)), 2, "another node asks whether it is applied");
    assert_eq!(pair.calls(|| _ = pair.bad(1)), 2, "full: the oldest makes room");
}

#[test]
fn the_step_cache_has_a_bound() {
    let (cache, policy) = (StepCache::default(), policy("3: { ban: 1min }"));
    let penalty = &policy.protection.penalties[0];
    for number in 0..200_000 {
        cache.set_applied(Key(number), 0);
    }
    assert!(cache.entries().len() <= ENTRIES_MAX);
    assert_eq!(cache.duty(Key(199_999), penalty, 1), StepDuty::Nothing);
    assert_eq!(cache.duty(Key(0), penalty, 1), StepDuty::LookUp);
}

proptest! {
    /// If no step is missed, none is late: a ban comes when a plain count rises to its step, whichever
    /// nodes see the events.
    #[test]
    fn no_step_is_applied_late_that_was_not_missed(
        events in proptest::collection::vec((0..2_usize, 2..40_u64), 1..200)
    ) {
        let pair = Pair::new("2: { ban: 1ms }, 4: { ban: 2ms, notify: n }, 6: {}");
        let (mut list, mut now) = (Vec::new(), 0);
        for (node, minutes) in events {
            pair.wait(minutes * 60);
            now += minutes;
            list.push(now);
            let within = list.iter().filter(|at| **at + 60 > now).count();
            let expected = match within {
                2 => [1, 0, 0],
                4 => BANNED_AND_TOLD,
                _ => NOTHING,
            };
            prop_assert_eq!(pair.bad(node), expected, "{}", within);
        }
    }
}
