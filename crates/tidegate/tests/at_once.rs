//! A store that must be waited for, except for what this process holds already.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

use std::future::{Future, ready};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate::clock::Now;
use tidegate::engine::plan::Plan;
use tidegate::engine::store::{
    Amendment, AmendmentResults, Answer, ImmediateStore, Memory, Store, StoreError, Tables,
};
use tidegate::engine::{Progress, Wait};
use tidegate::{Decision, Limiter, Policy, Request};

#[derive(Default)]
struct Held {
    memory: Memory,
    holds: AtomicBool,
}

impl Store for Held {
    fn names_keys(&self) -> bool {
        true
    }

    fn try_decide(
        &self,
        plan: &Plan,
        _: Option<&Tables>,
        answer: &mut Answer,
    ) -> Option<Result<(), StoreError>> {
        let holds = self.holds.load(Ordering::Relaxed);
        holds.then(|| self.memory.decide_now(plan).map(|decided| *answer = decided))
    }

    fn decide(&self, plan: &Plan) -> impl Future<Output = Result<Answer, StoreError>> + Send {
        assert_eq!(plan.names.len(), plan.levels.len(), "by the names of its keys");
        ready(self.memory.decide_now(plan))
    }

    fn amend(
        &self,
        now: Now,
        amendments: &[Amendment],
    ) -> impl Future<Output = Result<AmendmentResults, StoreError>> + Send {
        assert!(amendments.iter().all(|amendment| amendment.name.is_some()), "by its key's name");
        ready(self.memory.amend_now(now, amendments))
    }

    fn announce(&self, families: &[u64]) {
        self.memory.announce_now(families);
    }
}

fn limiter(limit: &str) -> Limiter<Held> {
    let text = format!("tidegate: 1\nname: n\nlimits:\n  a: {{ by: user, {limit} }}");
    let policy = Policy::parse("n.yaml", &text).unwrap();
    Limiter::builder().policy(policy).store(Held::default()).build().unwrap()
}

/// The decision on a request that need not wait; `None` where the store must be waited for.
fn started(limiter: &Limiter<Held>, request: &Request<'_>) -> Option<Decision> {
    let context = limiter.context(request).unwrap();
    match limiter.start(&context, Wait::Never).unwrap() {
        Progress::Decided(decision) => Some(decision),
        Progress::Pending(_) => None,
    }
}

fn request() -> Request<'static> {
    Request::new("GET", "/").user("u1")
}

#[test]
fn what_is_held_is_decided_without_waiting_and_the_rest_not_at_all() {
    let limiter = limiter("token_bucket: 1/h burst 9, consistency: leased");
    assert!(started(&limiter, &request()).is_none());
    limiter.store().holds.store(true, Ordering::Relaxed);
    let decision = started(&limiter, &request()).unwrap();
    assert!(decision.is_allowed() && !decision.degraded);
    assert_eq!(decision.limits[0].remaining(), 8, "nothing was charged before");
}

#[test]
fn an_exact_limit_is_never_decided_without_the_store() {
    let limiter = limiter("token_bucket: 1/h burst 9");
    limiter.store().holds.store(true, Ordering::Relaxed);
    assert!(started(&limiter, &request()).is_none());
}

#[test]
fn what_may_be_given_back_is_known_by_its_name() {
    let limiter = limiter("token_bucket: 1/h burst 9, consistency: leased");
    limiter.store().holds.store(true, Ordering::Relaxed);
    let reserved = started(&limiter, &request().reserve()).unwrap();
    let mut lease = reserved.reservation.unwrap();
    let settled = limiter.settle_async(&mut lease, tidegate::Settlement::Refund);
    let settled = at_once(settled);
    assert!(settled.is_ok());
    let decision = started(&limiter, &request()).unwrap();
    assert_eq!(decision.limits[0].remaining(), 8, "the first was given back");
}

#[test]
fn a_refusal_that_makes_an_event_is_left_to_the_store_and_grace_knows_all_names() {
    let text = "
tidegate: 1
name: n
limits:
  a: { by: user, token_bucket: 1/h burst 1, consistency: leased }
  b: { by: user, total: 9 }
penalties:
  p: { event: limited, by: user, within: 1h, ladder: { 1: { allow: true }, 2: {} } }
";
    let policy = Policy::parse("n.yaml", text).unwrap();
    let limiter = Limiter::builder().policy(policy).store(Held::default()).build().unwrap();
    limiter.store().holds.store(true, Ordering::Relaxed);
    assert!(started(&limiter, &request()).unwrap().is_allowed());
    assert!(started(&limiter, &request()).is_none());
    let graced = at_once(limiter.check_async(&request())).unwrap();
    assert_eq!(graced.outcome, tidegate::Outcome::Warned);
    assert_eq!([graced.limits[0].charged, graced.limits[1].charged], [false, true]);
    let refused = at_once(limiter.check_async(&request())).unwrap();
    assert_eq!((refused.outcome, refused.limits[1].remaining()), (tidegate::Outcome::Limited, 7));
}

/// Puts another policy in force while a plan is decided.
#[derive(Default)]
struct ReloadingStore {
    memory: Memory,
    limiter: OnceLock<Limiter<ReloadingStore>>,
}

impl Store for ReloadingStore {
    fn names_keys(&self) -> bool {
        true
    }

    fn try_decide(
        &self,
        plan: &Plan,
        _: Option<&Tables>,
        answer: &mut Answer,
    ) -> Option<Result<(), StoreError>> {
        let decided = self.memory.decide_now(plan);
        if let Some(limiter) = self.limiter.get() {
            let text = "{tidegate: 1, name: n, penalties: {p: {event: limited, by: user, \
                within: 1h, ladder: {1: {allow: true}, 2: {}}}}}";
            let policy = Policy::parse("n.yaml", text).unwrap();
            limiter.replace_policies(vec![policy.into()]).unwrap();
        }
        Some(decided.map(|decided| *answer = decided))
    }

    fn decide(&self, plan: &Plan) -> impl Future<Output = Result<Answer, StoreError>> + Send {
        ready(self.memory.decide_now(plan))
    }

    fn amend(
        &self,
        now: Now,
        amendments: &[Amendment],
    ) -> impl Future<Output = Result<AmendmentResults, StoreError>> + Send {
        ready(self.memory.amend_now(now, amendments))
    }

    /// The limits that are gone keep their keys: a plan of theirs is on its way.
    fn announce(&self, _: &[u64]) {}
}

#[test]
fn a_reload_between_decision_and_penalty_changes_nothing_for_the_request() {
    let text = "
tidegate: 1
name: n
limits:
  other: { by: user, total: 9 }
  bucket: { by: user, token_bucket: 1/h burst 1, consistency: leased }
penalties:
  p: { event: limited, by: user, within: 1h, ladder: { 1: { allow: true }, 2: {} } }
";
    let policy = Policy::parse("n.yaml", text).unwrap();
    let store = ReloadingStore::default();
    let limiter = Limiter::builder().policy(policy).store(store).build().unwrap();
    assert!(at_once(limiter.check_async(&request())).unwrap().is_allowed());
    limiter.store().limiter.set(limiter.clone()).unwrap();
    let graced = at_once(limiter.check_async(&request())).unwrap();
    assert_eq!(graced.outcome, tidegate::Outcome::Warned);
    let charged: Vec<(&str, bool)> = graced
        .limits
        .iter()
        .map(|report| (graced.limit_of(report).unwrap().name(), report.charged))
        .collect();
    assert_eq!(charged, [("other", true), ("bucket", false)]);
    assert_eq!(limiter.first_policy().unwrap().limits().len(), 0, "the reload took place");
}

/// The futures of this store are ready when they are made.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("it waits for nothing"),
    }
}
