//! The limiter as a user of the library meets it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::Amount;
use tidegate::clock::{Clock, FakeClock, Now};
use tidegate::engine::ResetError;
use tidegate::engine::policy::LimitBuilder;
use tidegate::engine::store::Memory;
use tidegate::{
    BuildError, HashKey, Jitter, Limiter, NewMark, Outcome, Policy, Request, Response, Settlement,
    Subject,
};

const MONDAY: u64 = 1_767_603_600;

fn policy(limits: &str) -> Policy {
    let text = format!("{{tidegate: 1, name: api, limits: {{{limits}}}}}");
    Policy::parse("api.yaml", &text).unwrap_or_else(|errors| panic!("{errors}"))
}

fn limiter(policy: Policy) -> (Limiter, FakeClock) {
    let clock = FakeClock::at_unix_seconds(MONDAY);
    (Limiter::builder().policy(policy).clock(clock.clone()).build().unwrap(), clock)
}

fn user(name: &str) -> Request<'_> {
    Request::new("GET", "/things").user(name)
}

#[test]
fn a_limiter_can_be_shared_between_threads_and_its_futures_sent() {
    fn shared<T: Send + Sync + Clone>(_: &T) {}
    fn sent<T: Send>(_: T) {}
    let (limiter, _) = limiter(policy("a: {by: user, total: 1}"));
    shared(&limiter);
    sent(limiter.check_async(&user("u1")));
}

#[test]
fn each_policy_decides_its_own_requests() {
    let strict = Policy::builder("strict").limit(LimitBuilder::total("once", 1).by("user"));
    let loose = Policy::builder("loose").limit(LimitBuilder::total("once", 2).by("user"));
    let builder = Limiter::builder().policy(strict.build().unwrap()).policy(loose.build().unwrap());
    let limiter = builder.build().unwrap();
    let check = |request: &Request<'_>| limiter.check(request).unwrap().outcome;
    assert_eq!(check(&user("u1")), Outcome::Allowed);
    assert_eq!(check(&user("u1")), Outcome::Limited);
    assert_eq!(check(&user("u1").policy("loose")), Outcome::Allowed);
    assert_eq!(check(&user("u1").policy("loose")), Outcome::Allowed);
    assert_eq!(check(&user("u1").policy("loose")), Outcome::Limited);
    let unknown = limiter.check(&user("u1").policy("lose")).unwrap_err();
    assert_eq!(unknown.field, "policy");
}

#[test]
fn a_limiter_needs_policies_with_names_of_their_own() {
    assert_eq!(Limiter::builder().build().unwrap_err(), BuildError::NoPolicy);
    let twice = Limiter::builder().policy(policy("")).policy(policy(""));
    assert_eq!(twice.build().unwrap_err(), BuildError::SameName("api".into()));
}

#[test]
fn every_limit_is_reported_in_the_order_of_the_policy_however_many_there_are() {
    for count in 1..=10 {
        let limits: Vec<String> =
            (1..=count).map(|most| format!("l{most}: {{by: user, total: {most}}}")).collect();
        let (limiter, _) = limiter(policy(&limits.join(", ")));
        let decision = limiter.check(&user("u1")).unwrap();
        let left: Vec<u64> = decision.limits.iter().map(|report| report.remaining()).collect();
        assert_eq!(left, (0..count).collect::<Vec<u64>>());
        assert_eq!(decision.limit_name(), Some("l1"));
    }
}

#[test]
fn peeking_charges_nothing() {
    let (limiter, _) = limiter(policy("a: {by: user, total: 1}"));
    for _ in 0..3 {
        assert!(limiter.peek(&user("u1")).unwrap().is_allowed());
    }
    assert!(limiter.check(&user("u1")).unwrap().is_allowed());
    assert!(!limiter.peek(&user("u1")).unwrap().is_allowed());
}

#[test]
fn a_reservation_is_settled_once_and_only_on_limits_that_name_no_cost() {
    let limits = "tokens: {by: user, quota: 1000/day}, calls: {by: user, cost: 1, quota: 10/day}";
    let (limiter, _) = limiter(policy(limits));
    let estimate = user("u1").cost(Amount::parse("100").unwrap()).reserve();
    let mut lease = limiter.check(&estimate).unwrap().reservation.unwrap();
    let actual = Settlement::Cost(Amount::parse("734.5").unwrap());
    limiter.settle(&mut lease, actual).unwrap();
    limiter.settle(&mut lease, actual).unwrap();
    let decision = limiter.peek(&user("u1")).unwrap();
    let remaining: Vec<String> =
        decision.limits.iter().map(|one| one.available.to_string()).collect();
    assert_eq!(remaining, ["265.5", "9"]);
    limiter.settle(&mut lease, Settlement::Refund).unwrap();
    let decision = limiter.peek(&user("u1")).unwrap();
    assert_eq!(decision.limits[1].remaining(), 10);
}

#[test]
fn a_place_is_held_until_it_is_released_or_its_lease_runs_out() {
    let (limiter, clock) = limiter(policy("slots: {by: user, concurrency: 2, lease: 30s}"));
    let mut first = limiter.check(&user("u1")).unwrap().reservation.unwrap();
    let second = limiter.check(&user("u1")).unwrap().reservation.unwrap();
    let refused = limiter.check(&user("u1")).unwrap();
    assert_eq!(refused.retry_after(), Some(Duration::from_secs(30)));
    assert!(limiter.release(&mut first).unwrap());
    assert!(limiter.check(&user("u1")).unwrap().is_allowed());
    clock.advance(Duration::from_secs(29));
    assert!(limiter.renew(&second).unwrap());
    clock.advance(Duration::from_secs(29));
    assert_eq!(limiter.peek(&user("u1")).unwrap().limits[0].remaining(), 1);
    clock.advance(Duration::from_secs(1));
    assert!(!limiter.renew(&second).unwrap(), "a lost place stays lost");
}

#[test]
fn a_costly_request_holds_one_place_like_any_other() {
    let (limiter, _) = limiter(policy("slots: {by: user, concurrency: 2}"));
    let costly = user("u1").cost(Amount::parse("734.5").unwrap());
    assert!(limiter.check(&costly).unwrap().is_allowed());
    assert_eq!(limiter.peek(&costly).unwrap().limits[0].remaining(), 1);
}

#[test]
fn resetting_forgets_one_subject_of_one_limit() {
    let (limiter, _) = limiter(policy("a: {by: user, total: 1}, b: {by: user, total: 5}"));
    for name in ["u1", "u2"] {
        assert!(limiter.check(&user(name)).unwrap().is_allowed());
    }
    assert_eq!(limiter.reset("a", &user("u1")), Ok(true));
    assert_eq!(limiter.reset("a", &user("u1")), Ok(false));
    let decision = limiter.check(&user("u1")).unwrap();
    assert_eq!((decision.outcome, decision.limits[1].remaining()), (Outcome::Allowed, 3));
    assert!(!limiter.check(&user("u2")).unwrap().is_allowed());
    assert_eq!(limiter.reset("c", &user("u1")), Err(ResetError::UnknownLimit("c".into())));
    let anonymous = Request::new("GET", "/");
    assert_eq!(limiter.reset("a", &anonymous), Err(ResetError::DoesNotApply("a".into())));
}

#[test]
fn limiters_on_one_store_share_their_counters_when_they_share_the_secret() {
    let store = Arc::new(Memory::new());
    let make = |secret: u8| {
        let builder = Limiter::builder().policy(policy("a: {by: user, total: 1}"));
        builder.store(Arc::clone(&store)).hash_key(HashKey::new([secret; 16])).build().unwrap()
    };
    assert!(make(1).check(&user("u1")).unwrap().is_allowed());
    assert!(!make(1).check(&user("u1")).unwrap().is_allowed());
    let stranger = make(2);
    assert!(stranger.check(&user("u1")).unwrap().is_allowed());
    stranger.set_hash_key(HashKey::new([1; 16]));
    assert!(stranger.check(&user("u1")).unwrap().is_allowed(), "it starts afresh");
    assert!(!make(1).check(&user("u1")).unwrap().is_allowed());
}

#[test]
fn the_standard_refusal_is_problem_details_with_all_headers() {
    let (limiter, clock) = limiter(policy("a: {by: user, sliding_window: 1/min}"));
    limiter.check(&user("u1")).unwrap();
    clock.advance(Duration::from_millis(500));
    let refused = limiter.check(&user("u1")).unwrap();
    let response = Response::of(&refused, Jitter::None);
    assert_eq!(response.status, 429);
    let expected = [
        ("X-RateLimit-Limit", "1"),
        ("X-RateLimit-Remaining", "0"),
        ("X-RateLimit-Reset", "1767603660"),
        ("RateLimit-Policy", "\"a\";q=1;w=60"),
        ("RateLimit", "\"a\";r=0;t=60"),
        ("Retry-After", "60"),
        ("Content-Type", "application/problem+json"),
    ];
    assert_eq!(response.headers().collect::<Vec<_>>(), expected);
    assert_eq!(
        response.body().unwrap(),
        "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
         \"title\":\"Too Many Requests\",\"status\":429,\"detail\":\"Too many requests\",\
         \"limit\":\"a\",\"violated-policies\":[\"a\"],\"retryAfter\":60}"
    );
}

#[test]
fn a_total_has_no_reset() {
    let (limiter, _) = limiter(policy("a: {by: user, total: 1}"));
    for _ in 0..2 {
        let decision = limiter.check(&user("u1")).unwrap();
        let response = Response::of(&decision, Jitter::None);
        assert_eq!(response.header("X-RateLimit-Remaining"), Some("0"));
        assert_eq!(response.header("X-RateLimit-Reset"), None);
    }
}

#[test]
fn who_is_challenged_is_told_what_to_do_unless_the_limit_says_something_itself() {
    for (message, expected) in
        [("", "A challenge must be solved first"), (", message: Slow down", "Slow down")]
    {
        let limit = format!("a: {{by: user, total: 1, exceed: challenge{message}}}");
        let (limiter, _) = limiter(policy(&limit));
        limiter.check(&user("u1")).unwrap();
        let challenged = limiter.check(&user("u1")).unwrap();
        let response = Response::of(&challenged, Jitter::None);
        assert_eq!((challenged.outcome, response.status), (Outcome::Challenged, 403));
        let detail = format!("\"detail\":\"{expected}\"");
        assert!(response.body().unwrap().contains(&detail), "{:?}", response.body());
    }
}

#[test]
fn who_is_banned_is_told_so_and_until_when() {
    let (limiter, clock) = limiter(policy("a: {by: user, total: 1, message: Slow down}"));
    let hour = Duration::from_millis(3_600_000);
    clock.advance(Duration::from_millis(1));
    for (banned, lasts, expected) in [
        ("for-good", None, "This client is banned\"}"),
        (
            "u1",
            Some(hour),
            "This client is banned until 2026-01-05T10:00:01Z\",\"retryAfter\":3600}",
        ),
    ] {
        let order = NewMark::new(Subject::user(banned));
        let order = if let Some(lasts) = lasts { order.lasts(lasts) } else { order };
        limiter.ban(&order).unwrap();
        let decision = limiter.check(&user(banned)).unwrap();
        let response = Response::of(&decision, Jitter::None);
        let head = "{\"type\":\"https://iana.org/assignments/http-problem-types\
                    #abnormal-usage-detected\",\"title\":\"Forbidden\",\"status\":403,\
                    \"detail\":\"";
        assert_eq!(response.body().unwrap(), format!("{head}{expected}"));
    }
}

#[test]
fn jitter_adds_and_never_subtracts() {
    let text = "{tidegate: 1, name: api, limits: {a: {by: user, sliding_window: 1/min}}, response: {jitter: 10%}}";
    let (limiter, _) = limiter(Policy::parse("api.yaml", text).unwrap());
    limiter.check(&user("u1")).unwrap();
    let refused = limiter.check(&user("u1")).unwrap();
    let retry_after =
        |jitter| Response::of(&refused, jitter).header("retry-after").unwrap().to_owned();
    assert_eq!(retry_after(Jitter::None), "60");
    assert_eq!(retry_after(Jitter::Millionths(0)), "60");
    assert_eq!(retry_after(Jitter::Millionths(500_000)), "63");
    assert_eq!(retry_after(Jitter::Millionths(u32::MAX)), "66");
}

#[test]
fn shadow_limits_and_unpublished_ones_stay_out_of_the_headers() {
    let limits = "seen: {by: user, quota: 9/day}, \
                  secret: {by: user, quota: 5/day, publish: false}, \
                  trial: {by: user, quota: 1/day, shadow: true}";
    let (limiter, _) = limiter(policy(limits));
    limiter.check(&user("u1")).unwrap();
    let decision = limiter.check(&user("u1")).unwrap();
    assert_eq!(decision.outcome, Outcome::Allowed);
    assert!(!decision.limits[2].is_allowed() && !decision.limits[2].charged);
    let response = Response::of(&decision, Jitter::None);
    assert_eq!(response.header("RateLimit-Policy"), Some("\"seen\";q=9;w=86400"));
}

#[test]
fn a_warning_limit_lets_through_and_says_so() {
    let (limiter, _) = limiter(policy("soft: {by: user, total: 1, exceed: warn}"));
    assert_eq!(limiter.check(&user("u1")).unwrap().outcome, Outcome::Allowed);
    let decision = limiter.check(&user("u1")).unwrap();
    assert_eq!(decision.outcome, Outcome::Warned);
    assert_eq!(decision.warnings().collect::<Vec<_>>(), ["soft"]);
    let response = Response::of(&decision, Jitter::None);
    assert_eq!(response.header("X-RateLimit-Warning"), Some("soft"));
    assert_eq!((response.status, response.body()), (200, None));
}

#[test]
fn a_limit_on_trial_never_refuses_even_where_the_request_lacks_what_it_needs() {
    let text =
        "{tidegate: 1, name: api, identity: {attributes: {amount: given, size: given}}, limits: {
        cost: {by: user, cost: amount, quota: 9/day, shadow: true},
        part: {by: amount, missing: refuse, quota: 9/day, shadow: true},
        value: {by: user, value: size, ceiling: 9, missing: refuse, shadow: true}}}";
    let (limiter, _) = limiter(Policy::parse("api.yaml", text).unwrap());
    assert_eq!(limiter.check(&user("u1")).unwrap().outcome, Outcome::Allowed);
    let odd = user("u1").attribute("amount", "-1").attribute("size", "many");
    assert_eq!(limiter.check(&odd).unwrap().outcome, Outcome::Allowed);
}

#[test]
fn what_was_charged_before_a_reset_is_not_given_back_after_it() {
    for spec in ["sliding_window: 2/h", "quota: 2/day", "total: 2", "token_bucket: 2/h"] {
        let (limiter, clock) = limiter(policy(&format!("a: {{by: user, {spec}}}")));
        let mut early = limiter.check(&user("u1").reserve()).unwrap().reservation.unwrap();
        limiter.reset("a", &user("u1")).unwrap();
        clock.advance(Duration::from_millis(1));
        for _ in 0..2 {
            assert!(limiter.check(&user("u1")).unwrap().is_allowed(), "{spec}");
        }
        limiter.settle(&mut early, Settlement::Refund).unwrap();
        assert!(!limiter.check(&user("u1")).unwrap().is_allowed(), "{spec}");
    }
}

#[test]
fn a_reset_needs_only_the_subject() {
    let text = "{tidegate: 1, name: api, identity: {attributes: {usd: given}},
                 limits: {a: {by: user, cost: usd, total: 5}}}";
    let (limiter, _) = limiter(Policy::parse("api.yaml", text).unwrap());
    limiter.check(&user("u1").attribute("usd", "5")).unwrap();
    assert_eq!(limiter.reset("a", &user("u1")), Ok(true));
}

/// A clock whose readings arrive out of order, as those of racing threads do.
#[derive(Debug)]
struct Racing(std::sync::Mutex<Vec<u64>>);

impl Clock for Racing {
    fn now(&self) -> Now {
        let mut times = self.0.lock().unwrap();
        let us = if times.len() > 1 { times.remove(0) } else { times[0] };
        Now { steady_us: us, unix_us: us }
    }
}

/// A clock that tells how often it was read, and that moves on each time.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicU64>);

impl Clock for Counting {
    fn now(&self) -> Now {
        let us = MONDAY * 1_000_000 + self.0.fetch_add(1, Ordering::Relaxed);
        Now { steady_us: us, unix_us: us }
    }
}

#[test]
fn a_decision_reads_the_clock_once_and_so_does_a_batch() {
    let limits = "a: {by: user, token_bucket: 3/h}, b: {by: user, quota: 9/day}, c: {by: user, fixed_window: 9/h}";
    let clock = Counting::default();
    let builder = Limiter::builder().policy(policy(limits)).clock(clock.clone());
    let limiter = builder.build().unwrap();
    limiter.ban(&NewMark::new(Subject::user("u2")).lasts(Duration::from_secs(60))).unwrap();
    let reads = |ask: &dyn Fn() -> Outcome| {
        let before = clock.0.load(Ordering::Relaxed);
        (ask(), clock.0.load(Ordering::Relaxed) - before)
    };
    let check = |name: &'static str| limiter.check(&user(name)).unwrap().outcome;
    for _ in 0..3 {
        assert_eq!(reads(&|| check("u1")), (Outcome::Allowed, 1));
    }
    assert_eq!(reads(&|| check("u1")), (Outcome::Limited, 1));
    assert_eq!(reads(&|| check("u2")), (Outcome::Banned, 1));
    let batch = vec![user("u3"); 20];
    let last = || limiter.check_batch(&batch).pop().unwrap().unwrap().outcome;
    assert_eq!(reads(&last), (Outcome::Limited, 1));
}

#[test]
fn a_charge_that_lost_a_race_can_still_be_given_back() {
    for spec in ["sliding_window: 5/h", "fixed_window: 5/h", "total: 5", "token_bucket: 5/h"] {
        let late_first =
            Racing(std::sync::Mutex::new(vec![3_600_000_105, 3_600_000_100, 3_600_000_200]));
        let builder = Limiter::builder().policy(policy(&format!("a: {{by: user, {spec}}}")));
        let limiter = builder.clock(late_first).build().unwrap();
        limiter.check(&user("u1")).unwrap();
        let mut early = limiter.check(&user("u1").reserve()).unwrap().reservation.unwrap();
        limiter.settle(&mut early, Settlement::Refund).unwrap();
        let left = limiter.peek(&user("u1")).unwrap().limits[0].remaining();
        assert_eq!(left, 4, "{spec}");
    }
}

#[test]
fn a_lease_says_how_soon_its_places_must_be_renewed() {
    let places = "a: {by: user, concurrency: 1, lease: 9s}, b: {by: user, concurrency: 1}";
    let lease_on =
        |limits| limiter(policy(limits)).0.check(&user("u1").reserve()).unwrap().reservation;
    assert_eq!(lease_on(places).unwrap().renew_within(), Some(Duration::from_secs(9)));
    assert_eq!(lease_on("a: {by: user, total: 3}").unwrap().renew_within(), None);
}

#[test]
fn a_request_is_decided_by_the_policies_it_is_put_under_even_if_others_come_into_force() {
    let (limiter, _) = limiter(policy("a: {by: user, total: 2}"));
    let before = limiter.active_policies();
    limiter.replace_policies(vec![Arc::new(policy("a: {by: user, total: 1}"))]).unwrap();
    assert_eq!(before.first().map(|policy| policy.name()), Some("api"));
    for (is_under, is_allowed) in [(false, true), (false, false), (true, true), (true, false)] {
        let request = if is_under { user("u1").under(&before) } else { user("u1") };
        assert_eq!(limiter.check(&request).unwrap().is_allowed(), is_allowed, "{is_under}");
    }
}
