//! A store that must be waited for, except for what this process holds already.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

use std::future::{Future, ready};
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate::clock::Now;
use tidegate::plan::Plan;
use tidegate::store::{Amended, Amendment, Answer, ImmediateStore, Memory, Store, StoreError};
use tidegate::{Limiter, Policy, Request};

#[derive(Default)]
struct Held {
    memory: Memory,
    holds: AtomicBool,
}

impl Store for Held {
    const NAMES_KEYS: bool = true;

    fn decide_at_once(&self, plan: &Plan) -> Option<Answer> {
        let holds = self.holds.load(Ordering::Relaxed);
        holds.then(|| self.memory.decide_now(plan).unwrap())
    }

    fn decide(&self, plan: &Plan) -> impl Future<Output = Result<Answer, StoreError>> + Send {
        assert_eq!(plan.names.len(), plan.levels.len(), "by the names of its keys");
        ready(self.memory.decide_now(plan))
    }

    fn amend(
        &self,
        now: Now,
        amendments: &[Amendment],
    ) -> impl Future<Output = Result<Amended, StoreError>> + Send {
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

fn request() -> Request<'static> {
    Request::new("GET", "/").user("u1")
}

#[test]
fn what_is_held_is_decided_without_waiting_and_the_rest_not_at_all() {
    let limiter = limiter("token_bucket: 1/h burst 9, consistency: leased");
    assert!(limiter.decide_at_once(&request()).unwrap().is_none());
    limiter.store().holds.store(true, Ordering::Relaxed);
    let decision = limiter.decide_at_once(&request()).unwrap().unwrap();
    assert!(decision.is_allowed() && !decision.degraded);
    assert_eq!(decision.limits[0].remaining(), 8, "nothing was charged before");
}

#[test]
fn an_exact_limit_is_never_decided_without_the_store() {
    let limiter = limiter("token_bucket: 1/h burst 9");
    limiter.store().holds.store(true, Ordering::Relaxed);
    assert!(limiter.decide_at_once(&request()).unwrap().is_none());
}

#[test]
fn what_may_be_given_back_is_known_by_its_name() {
    let limiter = limiter("token_bucket: 1/h burst 9, consistency: leased");
    limiter.store().holds.store(true, Ordering::Relaxed);
    let reserved = limiter.decide_at_once(&request().reserve()).unwrap().unwrap();
    let mut lease = reserved.reservation.unwrap();
    let settled = limiter.settle_async(&mut lease, tidegate::Settlement::Refund);
    let settled = at_once(settled);
    assert!(settled.is_ok());
    let decision = limiter.decide_at_once(&request()).unwrap().unwrap();
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
    assert!(limiter.decide_at_once(&request()).unwrap().unwrap().is_allowed());
    assert!(limiter.decide_at_once(&request()).unwrap().is_none());
    let graced = at_once(limiter.decide(&request(), tidegate::plan::Mode::Charge)).unwrap();
    assert_eq!(graced.outcome, tidegate::Outcome::Warned);
    assert_eq!([graced.limits[0].charged, graced.limits[1].charged], [false, true]);
    let refused = at_once(limiter.decide(&request(), tidegate::plan::Mode::Charge)).unwrap();
    assert_eq!((refused.outcome, refused.limits[1].remaining()), (tidegate::Outcome::Limited, 7));
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
