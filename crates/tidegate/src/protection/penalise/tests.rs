use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::clock::{FakeClock, Now};
use crate::decision::{Decision, Outcome};
use crate::limiter::{Limiter, LimiterBuilder, NewMark};
use crate::plan::Plan;
use crate::policy::Policy;
use crate::protection::events::{Consequences, Effect, Report};
use crate::protection::marks::{MarkKind, Subject};
use crate::request::Request;
use crate::store::{Amendment, AmendmentResults, Answer, ImmediateStore, Memory, StoreError};
use crate::units::Amount;

const START: u64 = 1_767_603_600;

/// A store that may be lost, and whose clock is behind.
#[derive(Debug, Default)]
struct TestStore {
    memory: Memory,
    lost: AtomicBool,
    calls: AtomicUsize,
    behind_us: u64,
}

impl TestStore {
    fn answering(&self) -> Result<&Memory, StoreError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let error = || StoreError { transient: true, detail: "lost".to_owned() };
        if self.lost.load(Ordering::Relaxed) { Err(error()) } else { Ok(&self.memory) }
    }
}

impl ImmediateStore for TestStore {
    fn decide_now(&self, plan: &Plan) -> Result<Answer, StoreError> {
        let mut answer = self.answering()?.decide_now(plan)?;
        answer.now.unix_us -= self.behind_us;
        Ok(answer)
    }

    fn amend_now(
        &self,
        now: Now,
        amendments: &[Amendment],
    ) -> Result<AmendmentResults, StoreError> {
        self.answering()?.amend_now(now, amendments)
    }

    fn announce_now(&self, families: &[u64]) {
        self.memory.announce_now(families);
    }
}

fn builder(rest: &str) -> (LimiterBuilder<Memory>, FakeClock) {
    let text = format!("tidegate: 1\nname: t\n{rest}");
    let policy = Policy::parse("t.yaml", &text).unwrap_or_else(|errors| panic!("{errors}"));
    let clock = FakeClock::at_unix_seconds(START);
    (Limiter::builder().policy(policy).clock(clock.clone()), clock)
}

fn limiter(rest: &str) -> (Limiter, FakeClock) {
    let (builder, clock) = builder(rest);
    (builder.build().unwrap(), clock)
}

fn on(store: TestStore, rest: &str) -> (Limiter<Arc<TestStore>>, Arc<TestStore>) {
    let store = Arc::new(store);
    let (builder, _) = builder(rest);
    (builder.store(Arc::clone(&store)).build().unwrap(), store)
}

fn user() -> Request<'static> {
    Request::new("GET", "/").user("u")
}

fn report(limiter: &Limiter, event: &str) -> Consequences {
    limiter.report(&Report::new(event, user())).unwrap()
}

fn worth(limiter: &Limiter, event: &str, units: u64) -> Consequences {
    let value = Amount::from_units(units).unwrap();
    limiter.report(&Report::new(event, user()).value(value)).unwrap()
}

fn checks<S: ImmediateStore>(limiter: &Limiter<S>, times: usize) -> Vec<Decision> {
    (0..times).map(|_| limiter.check(&user()).unwrap()).collect()
}

fn actions(effects: &[Effect]) -> Vec<&'static str> {
    let action = |effect: &Effect| match effect {
        Effect::Banned { .. } => "banned",
        Effect::Flagged { .. } => "flagged",
        Effect::Notify(notice) => notice.action,
    };
    effects.iter().map(action).collect()
}

#[test]
fn those_whose_attribute_cannot_be_read_are_counted_together_and_nobody_is_banned_for_it() {
    let (limiter, _) = limiter(
        "
identity: { attributes: { email: { body: /email } } }
events: { bad: {} }
penalties:
  p: { event: bad, by: email, within: 1h, ladder: { 2: { delay: 2s, ban: 1h, notify: n } } }
notify: { n: { webhook: 'https://hooks.example.org/x' } }
",
    );
    let with = |body: &'static [u8]| Request::new("POST", "/login").body(body);
    let unreadable = [&br#"{"email":["a"]}"#[..], br#"{"email":"c"} d"#];
    let reports = unreadable.map(|body| limiter.report(&Report::new("bad", with(body))).unwrap());
    assert_eq!(reports.each_ref().map(|report| report.delay.as_secs()), [0, 2]);
    assert_eq!(actions(&reports[1].effects), ["notice"], "somebody hears of it");
    for body in [unreadable[0], b"{}", br#"{"email":"a"}"#] {
        assert_eq!(limiter.check(&with(body)).unwrap().outcome, Outcome::Allowed);
    }
}

/// Steps that ban for longer and longer, also by banned requests.
const RISING: &str = "
limits: { a: { by: user, total: 1 } }
penalties:
  p:
    event: [limited, banned]
    by: user
    within: 1h
    ladder: { 1: { ban: 10min, notify: n }, 3: { ban: 1h, notify: n } }
notify: { n: { webhook: 'https://hooks.example.org/x' } }
";

#[test]
fn a_longer_ban_over_one_that_holds_is_told_of_and_answered_with() {
    let (limiter, _) = limiter(RISING);
    let all = checks(&limiter, 5);
    let left: Vec<_> = all.iter().map(|one| one.retry_after().map(|left| left.as_secs())).collect();
    assert_eq!(left, [None, Some(600), Some(600), Some(3600), Some(3600)]);
    for (at, told) in [(1, true), (2, false), (3, true), (4, false)] {
        let expected: &[&str] = if told { &["banned", "ban"] } else { &[] };
        assert_eq!(actions(all[at].effects()), expected, "{at}");
    }
}

#[test]
fn a_ban_that_could_not_be_made_is_told_of_as_a_notice() {
    let (builder, _) = builder(RISING);
    let limiter = builder.max_bans(0).build().unwrap();
    let all = checks(&limiter, 2);
    assert_eq!((all[1].outcome, actions(all[1].effects())), (Outcome::Limited, vec!["notice"]));
}

#[test]
fn a_shorter_ban_than_the_one_that_holds_is_neither_told_nor_answered() {
    let (limiter, _) = limiter(RISING);
    let order = NewMark::new(Subject::user("u")).policy("t").lasts(Duration::from_secs(7200));
    limiter.ban(&order).unwrap();
    let banned = &checks(&limiter, 1)[0];
    assert_eq!(banned.retry_after(), Some(Duration::from_secs(7200)));
    assert!(banned.effects().is_empty());
}

#[test]
fn the_request_that_starts_a_ban_is_told_its_whole_length_whatever_the_stores_clock_says() {
    let (limiter, _) = on(TestStore { behind_us: 300_000, ..TestStore::default() }, RISING);
    let all = checks(&limiter, 2);
    assert_eq!(all[1].outcome, Outcome::Banned);
    assert_eq!(all[1].retry_after(), Some(Duration::from_secs(600)));
}

#[test]
fn a_flag_that_stands_keeps_no_ratio_from_banning_again() {
    let (limiter, clock) = limiter(
        "
events: { order: {}, cancel: {} }
ratios:
  r:
    { of: cancel, to: order, by: user, within: 1h, at_least: 1, above: 10%, then: { flag: f, ban: 10min } }
",
    );
    report(&limiter, "order");
    assert_eq!(actions(&report(&limiter, "cancel").effects), ["flagged", "banned"]);
    clock.advance(Duration::from_secs(3 * 3600));
    report(&limiter, "order");
    assert_eq!(actions(&report(&limiter, "cancel").effects), ["banned"]);
    assert_eq!(limiter.marks().count(MarkKind::Flag), 1);
}

#[test]
fn grace_while_the_store_is_lost_shares_limits_out_once() {
    let rest = "
limits:
  a: { by: user, total: 4 }
  b: { by: user, total: 40 }
events: { over: { outcome: limited, limit: a } }
penalties: { p: { event: over, by: user, within: 1h, ladder: { 1: { allow: true } } } }
";
    let (limiter, store) = on(TestStore::default(), rest);
    limiter.set_nodes(2);
    store.lost.store(true, Ordering::Relaxed);
    let all = checks(&limiter, 3);
    let capacity = |one: &Decision| {
        one.limits.iter().map(|limit| limit.spec.capacity().whole()).collect::<Vec<_>>()
    };
    assert_eq!((all[1].outcome, capacity(&all[1])), (Outcome::Allowed, vec![2, 20]));
    assert_eq!((all[2].outcome, capacity(&all[2])), (Outcome::Warned, vec![2, 20]));
    assert_eq!(all[2].limits[1].remaining(), 17);
}

#[test]
fn a_value_that_is_none_keeps_no_penalty_from_counting() {
    let (limiter, _) = limiter(
        "
identity: { attributes: { amount: given } }
events: { bad: { status: 401, value: amount }, good: { status: 2xx } }
penalties: { p: { event: bad, by: user, within: 1h, ladder: { 1: { ban: 1h } } } }
ratios: { r: { of: bad, to: good, by: user, within: 1h, at_least: 1, above: 10%, then: { warn: w } } }
",
    );
    let request = user().attribute("amount", "x");
    let error = limiter.report(&Report::new("bad", request.clone())).unwrap_err();
    assert_eq!(error.field, "attributes.amount");
    assert!(limiter.record_status(&request, 401).unwrap().banned);
}

#[test]
fn a_ratio_serves_and_acts_on_its_own_events_alone() {
    let (limiter, clock) = limiter(
        "
events: { order: {}, cancel: {}, call: {}, slow: {} }
ratios:
  cancels: { of: cancel, to: order, by: user, within: 1h, at_least: 1, above: 10%, then: { delay: 2s, ban: 1min } }
  slows: { of: slow, to: call, by: user, within: 1h, at_least: 1 }
factors:
  f: { by: user, good: [cancels < 50%, slows < 50%], step: 0.1 every 1h, range: 0.5..2 }
",
    );
    report(&limiter, "order");
    let cancelled = report(&limiter, "cancel");
    assert_eq!((cancelled.delay.as_secs(), actions(&cancelled.effects)), (2, vec!["banned"]));
    clock.advance(Duration::from_secs(600));
    let called = report(&limiter, "call");
    assert_eq!((called.delay.as_secs(), actions(&called.effects)), (0, vec![]));
}

#[test]
fn a_share_of_a_sum_that_is_full_is_not_judged() {
    let (limiter, _) = limiter(
        "
events: { order: {}, cancel: {} }
ratios: { r: { of: cancel, to: order, by: user, within: 1h, at_least: 1, above: 50%, then: { warn: w } } }
",
    );
    let part = Amount::MAX.whole() / 5 * 2;
    worth(&limiter, "order", part);
    assert_eq!(worth(&limiter, "cancel", part).warnings, ["w"]);
    for _ in 0..4 {
        worth(&limiter, "order", part);
    }
    assert!(worth(&limiter, "cancel", part).warnings.is_empty(), "two of five");
}

#[test]
fn a_store_that_has_failed_a_request_is_not_asked_for_it_again() {
    let rest = "
limits: { a: { by: user, total: 1 } }
events: { good: {} }
penalties:
  p: { event: limited, by: user, within: 1h, forgive: good, ladder: { 1: { allow: true } } }
  q: { event: good, by: user, within: 1h, ladder: { 1: {} } }
";
    let (limiter, store) = on(TestStore::default(), rest);
    store.lost.store(true, Ordering::Relaxed);
    let calls = || store.calls.swap(0, Ordering::Relaxed);
    checks(&limiter, 1);
    assert_eq!(calls(), 1);
    let graced = &checks(&limiter, 1)[0];
    assert_eq!((graced.outcome, graced.degraded, calls()), (Outcome::Warned, true, 1));
    let reported = limiter.report(&Report::new("good", user())).unwrap();
    assert_eq!((reported.degraded, calls()), (true, 1));
    assert_eq!(checks(&limiter, 1)[0].outcome, Outcome::Warned, "this node's count was forgiven");
}
