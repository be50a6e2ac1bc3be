//! An asynchronous store: the same behaviours while it answers, and what limits do when it does not.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::Amount;
use tidegate::clock::FakeClock;
use tidegate::{Decision, HashKey, Limiter, Outcome, Policy, Request, Settlement};
use tidegate_testkit::behaviours::{OnPlanTime, every_behaviour};
use tidegate_testkit::block_on;
use tidegate_testkit::scripted::{Script, ScriptedStore};

#[test]
fn an_asynchronous_store_shows_every_behaviour() {
    let run = every_behaviour(async || OnPlanTime::new(ScriptedStore::new(Script::new())));
    block_on(run).unwrap_or_else(|failures| panic!("{failures}"));
}

#[test]
fn a_slow_store_shows_every_behaviour() {
    let slow = || (0..1_000).fold(Script::new(), |script, call| script.slow(call % 7));
    let run = every_behaviour(async || OnPlanTime::new(ScriptedStore::new(slow())));
    block_on(run).unwrap_or_else(|failures| panic!("{failures}"));
}

/// A node of a deployment: a limiter on a store that others may share.
struct Node {
    limiter: Limiter<ScriptedStore>,
    clock: FakeClock,
}

impl Node {
    fn new(limits: &str, store: &ScriptedStore, nodes: u32) -> Self {
        let text = format!("tidegate: 1\nname: api\nlimits:\n{limits}");
        let policy = Policy::parse("api.yaml", &text).unwrap();
        let clock = FakeClock::at_unix_seconds(1_767_603_600);
        let limiter = Limiter::builder()
            .policy(policy)
            .clock(clock.clone())
            .hash_key(HashKey::new([7; 16]))
            .nodes(nodes)
            .store(store.clone())
            .build()
            .unwrap();
        Self { limiter, clock }
    }

    fn check(&self, request: &Request<'_>) -> Decision {
        block_on(self.limiter.check_async(request)).unwrap()
    }

    fn outcome(&self, request: &Request<'_>) -> (Outcome, bool) {
        let decision = self.check(request);
        (decision.outcome, decision.degraded)
    }

    /// How many of ten pass.
    fn passing(&self, request: &Request<'_>) -> usize {
        (0..10).filter(|_| self.check(request).is_allowed()).count()
    }
}

fn user(name: &'static str) -> Request<'static> {
    Request::new("GET", "/things").user(name)
}

fn down() -> Script {
    Script::new().down()
}

const WELL: (Outcome, bool) = (Outcome::Allowed, false);
const PASSED: (Outcome, bool) = (Outcome::Allowed, true);
const REFUSED: (Outcome, bool) = (Outcome::Limited, true);

#[test]
fn a_decision_waits_for_the_store_and_nothing_is_charged_before_it_answers() {
    let store = ScriptedStore::new(Script::new().slow(4));
    let node = Node::new("  a: { by: user, sliding_window: 2/min }", &store, 1);
    let request = user("u");
    let mut decision = pin!(node.limiter.check_async(&request));
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..4 {
        assert!(decision.as_mut().poll(&mut context).is_pending());
        assert_eq!(store.memory().keys(), 0);
    }
    let Poll::Ready(decided) = decision.as_mut().poll(&mut context) else { panic!("late") };
    assert_eq!(decided.unwrap().outcome, Outcome::Allowed);
    assert_eq!(store.memory().keys(), 1);
}

#[test]
fn a_decision_can_be_made_on_another_thread() {
    fn send<T: Send>(value: T) -> T {
        value
    }
    let node =
        Node::new("  a: { by: user, concurrency: 2 }", &ScriptedStore::new(Script::new()), 1);
    let request = user("u");
    let mut lease = block_on(send(node.limiter.check_async(&request))).unwrap().reservation;
    let lease = lease.as_mut().unwrap();
    assert!(block_on(send(node.limiter.renew_async(lease))).unwrap());
    assert!(block_on(send(node.limiter.release_async(lease))).unwrap());
    block_on(send(node.limiter.settle_async(lease, Settlement::Refund))).unwrap();
    assert!(!block_on(send(node.limiter.reset_async("a", &request))).unwrap());
}

#[test]
fn one_store_is_one_truth_for_all_nodes() {
    let store = ScriptedStore::new(Script::new());
    let limits = "  a: { by: user, sliding_window: 4/min }";
    let nodes = [Node::new(limits, &store, 2), Node::new(limits, &store, 2)];
    let passing: usize = nodes.iter().map(|node| node.passing(&user("u"))).sum();
    assert_eq!(passing, 4);
}

#[test]
fn local_gives_each_node_its_share_and_never_less_than_one() {
    let cases = [
        ("sliding_window: 10/min", 4, 3),
        ("fixed_window: 10/min", 4, 3),
        ("token_bucket: 8/h burst 8", 4, 2),
        ("token_bucket: 8/h burst 10", 4, 2),
        ("total: 10", 3, 4),
        ("sliding_counter: 3/min", 100, 1),
        ("token_bucket: 1/h burst 2", 100, 1),
    ];
    for (spec, nodes, share) in cases {
        let limits = format!("  a: {{ by: user, {spec} }}");
        let node = Node::new(&limits, &ScriptedStore::new(down()), nodes);
        assert_eq!(node.passing(&user("u")), share, "{spec} of {nodes}");
        assert_eq!(node.outcome(&user("u")), REFUSED, "{spec} of {nodes}");
    }
}

#[test]
fn a_changed_number_of_nodes_keeps_what_was_spent_locally() {
    let node = Node::new("  a: { by: user, sliding_window: 8/h }", &ScriptedStore::new(down()), 4);
    assert_eq!(node.passing(&user("u")), 2);
    node.limiter.set_nodes(2);
    assert_eq!(node.passing(&user("u")), 2);
    node.limiter.set_nodes(0);
    assert_eq!(node.passing(&user("u")), 4, "nobody else is left");
}

#[test]
fn allow_passes_everything_and_is_not_charged_afterwards() {
    let store = ScriptedStore::new(down());
    let limits = "  a: { by: user, sliding_window: 2/min, on_store_failure: allow }";
    let node = Node::new(limits, &store, 1);
    assert_eq!(node.passing(&user("u")), 10);
    assert_eq!(node.outcome(&user("u")), PASSED);
    store.play(Script::new());
    assert_eq!(node.passing(&user("u")), 2);
}

#[test]
fn deny_refuses_as_its_limit_does() {
    let store = ScriptedStore::new(Script::new().ok(1).down());
    let limits = "  a: { by: user, sliding_window: 9/min, on_store_failure: deny, status: 503 }";
    let node = Node::new(limits, &store, 1);
    assert_eq!(node.outcome(&user("u")), WELL);
    let refused = node.check(&user("u"));
    assert_eq!((refused.outcome, refused.degraded), REFUSED);
    assert_eq!((refused.limit_name(), refused.status()), (Some("a"), 503));
    assert_eq!(refused.retry_after(), None, "nobody knows when the store comes back");
}

/// One limit of each kind, each with room for two.
const MIXED: &str = "
  strict: { when: { method: POST }, by: global, sliding_window: 2/min, on_store_failure: deny }
  loose:  { by: global, sliding_window: 2/min, on_store_failure: allow }
  own:    { by: user, sliding_window: 4/min }
  ample:  { by: global, sliding_window: 8/min }
";

#[test]
fn mixed_limits_are_charged_together_or_not_at_all_while_the_store_is_lost() {
    let node = Node::new(MIXED, &ScriptedStore::new(down()), 2);
    for _ in 0..5 {
        let refused = node.check(&Request::new("POST", "/things").user("u"));
        assert_eq!((refused.limit_name(), refused.degraded), (Some("strict"), true));
    }
    assert_eq!(node.passing(&user("u")), 2, "strict has not burnt what own has");
    assert_eq!(node.passing(&user("v")), 2, "nor has own burnt what ample has");
    assert_eq!(node.passing(&user("w")), 0);
    let refused = node.check(&user("w"));
    assert_eq!(refused.limit_name(), Some("ample"));
    assert_eq!(refused.retry_after(), Some(Duration::from_secs(60)));
}

#[test]
fn soft_limits_that_deny_on_a_lost_store_let_requests_through() {
    let limits = "
  soft: { by: user, sliding_window: 2/min, on_store_failure: deny, exceed: warn }
  dark: { by: user, sliding_window: 2/min, on_store_failure: deny, shadow: true }
";
    let node = Node::new(limits, &ScriptedStore::new(down()), 1);
    assert_eq!(node.outcome(&user("u")), (Outcome::Warned, true));
}

#[test]
fn a_ceiling_holds_whatever_the_store_does() {
    let text = "tidegate: 1\nname: api\nidentity: { attributes: { size: given } }\nlimits:
  big: { value: size, ceiling: 10, on_store_failure: allow, by: global }";
    let limiter = Limiter::builder()
        .policy(Policy::parse("api.yaml", text).unwrap())
        .store(ScriptedStore::new(down()))
        .build()
        .unwrap();
    let check = |size: &'static str| {
        let request = Request::new("GET", "/").attribute("size", size);
        block_on(limiter.check_async(&request)).unwrap().outcome
    };
    assert_eq!(check("10"), Outcome::Allowed);
    assert_eq!(check("10.000001"), Outcome::Limited);
}

#[test]
fn a_recovered_store_decides_again_and_has_kept_what_it_knew() {
    let store = ScriptedStore::new(Script::new().ok(3).fail(2));
    let node = Node::new("  a: { by: user, sliding_window: 4/min }", &store, 4);
    let seen: Vec<_> = (0..7).map(|_| node.outcome(&user("u"))).collect();
    let refused = (Outcome::Limited, false);
    assert_eq!(seen, [WELL, WELL, WELL, PASSED, REFUSED, WELL, refused]);
    node.clock.advance(Duration::from_secs(60));
    assert_eq!(node.outcome(&user("u")), WELL);
}

#[test]
fn an_answer_that_got_lost_counts_as_spent() {
    let store = ScriptedStore::new(Script::new().lose(2));
    let node = Node::new("  a: { by: user, sliding_window: 4/min }", &store, 1);
    assert_eq!([node.outcome(&user("u")), node.outcome(&user("u"))], [PASSED, PASSED]);
    assert_eq!(node.passing(&user("u")), 2, "two are spent though nobody heard of it");
}

#[test]
fn a_lease_granted_while_the_store_was_lost_settles_locally_also_afterwards() {
    let store = ScriptedStore::new(down());
    let limits = "  a: { by: user, concurrency: 2 }\n  b: { by: user, total: 4 }";
    let node = Node::new(limits, &store, 2);
    let mut lease = node.check(&user("u")).reservation.unwrap();
    assert_eq!(node.outcome(&user("u")), REFUSED, "half of two places is held");
    assert!(block_on(node.limiter.renew_async(&lease)).unwrap());
    store.play(Script::new());
    assert_eq!(node.outcome(&user("u")), WELL, "the store knows of no holder");
    assert!(block_on(node.limiter.release_async(&mut lease)).unwrap());
    block_on(node.limiter.settle_async(&mut lease, Settlement::Refund)).unwrap();
    store.play(down());
    let again = node.check(&user("u"));
    assert_eq!(again.outcome, Outcome::Allowed, "its place is free again");
    assert_eq!(again.limits[1].available, Amount::ONE, "and its charge given back");
}

#[test]
fn a_lease_granted_by_the_store_cannot_settle_while_it_is_lost() {
    let store = ScriptedStore::new(Script::new().ok(1).down());
    let node = Node::new("  a: { by: user, total: 1 }", &store, 1);
    let mut lease = node.check(&user("u").reserve()).reservation.unwrap();
    assert!(
        block_on(node.limiter.settle_async(&mut lease, Settlement::Refund)).unwrap_err().transient
    );
    store.play(Script::new());
    block_on(node.limiter.settle_async(&mut lease, Settlement::Refund)).unwrap();
    assert_eq!(node.outcome(&user("u")), (Outcome::Limited, false), "never repeated blindly");
}

#[test]
fn a_lost_place_frees_itself_though_its_release_never_arrived() {
    let store = ScriptedStore::new(Script::new().ok(1).fail(1));
    let node = Node::new("  a: { by: user, concurrency: 1, lease: 10s }", &store, 1);
    let mut lease = node.check(&user("u")).reservation.unwrap();
    assert!(block_on(node.limiter.release_async(&mut lease)).is_err());
    assert_eq!(node.outcome(&user("u")), (Outcome::Limited, false));
    node.clock.advance(Duration::from_secs(10));
    assert_eq!(node.outcome(&user("u")), WELL);
}

#[test]
fn a_reload_while_the_store_is_lost_keeps_what_was_spent_locally() {
    let node =
        Node::new("  a: { by: user, sliding_window: 4/min }", &ScriptedStore::new(down()), 2);
    assert_eq!(node.passing(&user("u")), 2);
    let text = "tidegate: 1\nname: api\nlimits:\n  a: { by: user, sliding_window: 6/min }";
    let policy = Arc::new(Policy::parse("api.yaml", text).unwrap());
    node.limiter.replace_policies(vec![policy]).unwrap();
    assert_eq!(node.passing(&user("u")), 1);
}

#[test]
fn an_abandoned_decision_charges_nothing() {
    let store = ScriptedStore::new(Script::new().slow(4));
    let node = Node::new("  a: { by: user, total: 1 }\n  b: { by: ip, total: 1 }", &store, 1);
    {
        let request = user("u");
        let mut dropped = pin!(node.limiter.check_async(&request));
        assert!(dropped.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert_eq!(store.memory().keys(), 0);
    assert_eq!(node.outcome(&user("u")), WELL);
}
