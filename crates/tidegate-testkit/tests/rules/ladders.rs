//! Rule 6: which step of a ladder holds, what a ban covers, what is forgiven, and what grace covers.

use std::time::Duration;

use tidegate::engine::{Effect, marks::MarkKind};
use tidegate::{Consequences, Decision, Outcome, Report, Request, Subject};
use tidegate_testkit::block_on;

use crate::{Fixture, seconds, user};

/// The marketplace's table against guessing: attempts 4 and 5, 6 to 10, 11 and more.
const BRUTE_FORCE: &str = "
identity: { attributes: { email: given } }
operations: { login: POST /auth/login }
events:
  auth_failure: { when: login, status: [401, 403] }
  auth_success: { when: login, status: 2xx }
penalties:
  brute-force:
    event: auth_failure
    by: email
    within: 15min
    forgive: auth_success
    ladder:
      4:  { delay: 2s }
      6:  { delay: 5s, warn: captcha }
      11: { ban: 15min, notify: security }
notify: { security: { webhook: 'https://hooks.example.org/x' } }
";

/// The exchange's ladder: grace, ten in an hour, a hundred in an hour.
const OFFENDER: &str = "
limits:
  orders: { by: user, total: 1 }
events: { rate_hit: { outcome: limited, limit: orders } }
penalties:
  repeat-offender:
    event: [rate_hit, banned]
    by: client
    within: 1h
    ladder:
      1: { allow: true }
      2: {}
      10: { ban: 30min }
      100: { flag: review }
";

fn login(email: &str) -> Request<'_> {
    Request::new("POST", "/auth/login").attribute("email", email)
}

fn answered(fixture: &Fixture, request: &Request<'_>, status: u16) -> Consequences {
    fixture.limiter.record_status(request, status).unwrap()
}

fn fail(fixture: &Fixture, email: &str) -> Consequences {
    answered(fixture, &login(email), 401)
}

fn fails(fixture: &Fixture, times: usize, email: &str) -> Vec<Consequences> {
    (0..times).map(|_| fail(fixture, email)).collect()
}

fn notices(effects: &[Effect]) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::Notify(_))).count()
}

fn refused(fixture: &Fixture, request: &Request<'_>, times: usize) -> Vec<Decision> {
    (0..times).map(|_| fixture.check(request)).collect()
}

#[test]
fn the_highest_step_not_above_the_count_holds_rule_6() {
    let fixture = Fixture::with_policy(BRUTE_FORCE);
    for attempt in 1..=12 {
        let failed = fail(&fixture, "a@b.c");
        let (delay, warned) = match attempt {
            1..=3 => (0, false),
            4..=5 => (2, false),
            6..=10 => (5, true),
            _ => (0, false),
        };
        assert_eq!(failed.delay.as_secs(), delay, "attempt {attempt}");
        assert_eq!(failed.warnings.contains(&"captcha".to_owned()), warned, "attempt {attempt}");
        assert_eq!(failed.banned, attempt >= 11, "attempt {attempt}");
    }
}

#[test]
fn ban_notify_and_flag_happen_once_on_reaching_the_step_rule_6() {
    let fixture = Fixture::with_policy(BRUTE_FORCE);
    let failed = fails(&fixture, 30, "a@b.c");
    let told: Vec<usize> = failed.iter().map(|one| notices(&one.effects)).collect();
    assert_eq!(told.iter().sum::<usize>(), 1);
    assert_eq!(told[10], 1);
    let Effect::Notify(notice) = failed[10].effects.last().unwrap() else { panic!() };
    assert_eq!((&*notice.webhook, &*notice.source), ("security", "brute-force"));
    assert_eq!((notice.count, notice.action), (11, "ban"));
    assert_eq!(notice.subject, Subject::part("email", "a@b.c"));
    assert_eq!(notice.until_unix_us, Some(notice.at_unix_us + 900_000_000));
}

#[test]
fn a_ban_touches_every_request_with_that_key_and_ends_by_itself_rule_6() {
    let fixture = Fixture::with_policy(BRUTE_FORCE);
    fails(&fixture, 11, "a@b.c");
    let elsewhere = Request::new("GET", "/profile").attribute("email", "a@b.c");
    for request in [login("a@b.c"), elsewhere] {
        let banned = fixture.check(&request);
        assert_eq!((banned.outcome, banned.status()), (Outcome::Banned, 403));
        assert_eq!(banned.retry_after(), Some(seconds(900)));
        assert_eq!(banned.ban().unwrap().source, "brute-force");
    }
    assert_eq!(fixture.outcome(&login("other@b.c")), Outcome::Allowed);
    fixture.advance(Duration::from_micros(899_999_999));
    assert_eq!(fixture.outcome(&login("a@b.c")), Outcome::Banned);
    fixture.advance(Duration::from_micros(1));
    assert_eq!(fixture.outcome(&login("a@b.c")), Outcome::Allowed);
    assert_eq!(fixture.limiter.marks().count(MarkKind::Ban), 0, "nothing is left to look up");
}

#[test]
fn a_wall_clock_step_neither_ends_nor_prolongs_a_ban_rule_6() {
    let fixture = Fixture::with_policy(BRUTE_FORCE);
    fails(&fixture, 11, "a@b.c");
    for unix_us in [0, u64::MAX / 2] {
        fixture.clock.step_wall_clock(Duration::from_micros(unix_us));
        let banned = fixture.check(&login("a@b.c"));
        assert_eq!(banned.retry_after(), Some(seconds(900)), "at {unix_us}");
    }
    fixture.advance(seconds(900));
    assert_eq!(fixture.outcome(&login("a@b.c")), Outcome::Allowed);
}

#[test]
fn the_span_slides_rule_6() {
    let fixture = Fixture::with_policy(BRUTE_FORCE);
    fails(&fixture, 3, "a@b.c");
    fixture.advance(seconds(450));
    assert_eq!(fail(&fixture, "a@b.c").delay.as_secs(), 2);
    fixture.advance(seconds(450));
    assert_eq!(
        fail(&fixture, "a@b.c").delay.as_micros(),
        0,
        "three have slid out, this is the second"
    );
    assert_eq!(fails(&fixture, 2, "a@b.c")[1].delay.as_secs(), 2);
}

#[test]
fn beyond_the_highest_step_the_latest_events_count_rule_6() {
    let ladder = BRUTE_FORCE.replace("11: { ban: 15min, notify: security }", "7: { warn: last }");
    let fixture = Fixture::with_policy(&ladder);
    for _ in 0..60 {
        fail(&fixture, "a@b.c");
        fixture.advance(seconds(30));
    }
    // After half an hour of guessing the count does not start again at zero.
    assert_eq!(fail(&fixture, "a@b.c").warnings, ["last"]);
    fixture.advance(seconds(900));
    assert!(fail(&fixture, "a@b.c").warnings.is_empty());
}

#[test]
fn forgive_sets_the_count_to_zero_and_ends_delays_rule_6() {
    let fixture = Fixture::with_policy(BRUTE_FORCE);
    assert_eq!(fails(&fixture, 7, "a@b.c")[6].delay.as_secs(), 5);
    assert_eq!(answered(&fixture, &login("a@b.c"), 200).delay.as_micros(), 0);
    let after: Vec<u64> =
        fails(&fixture, 4, "a@b.c").iter().map(|one| one.delay.as_secs() * 1_000_000).collect();
    assert_eq!(after, [0, 0, 0, 2_000_000]);
}

#[test]
fn forgive_ends_no_ban_rule_6() {
    let fixture = Fixture::with_policy(BRUTE_FORCE);
    fails(&fixture, 11, "a@b.c");
    assert!(answered(&fixture, &login("a@b.c"), 200).banned);
    assert_eq!(fixture.outcome(&login("a@b.c")), Outcome::Banned);
}

#[test]
fn forgiving_one_subject_forgives_no_other_rule_6() {
    let fixture = Fixture::with_policy(BRUTE_FORCE);
    fails(&fixture, 3, "a@b.c");
    answered(&fixture, &login("other@b.c"), 200);
    assert_eq!(fail(&fixture, "a@b.c").delay.as_secs(), 2);
}

#[test]
fn a_report_counts_like_an_answer_rule_6() {
    let fixture = Fixture::with_policy(BRUTE_FORCE);
    fails(&fixture, 3, "a@b.c");
    let request = Request::default().attribute("email", "a@b.c");
    let reported = fixture.limiter.report(&Report::new("auth_failure", request.clone())).unwrap();
    assert_eq!(
        (reported.delay.as_micros(), &*reported.events),
        (2_000_000, &["auth_failure".to_owned()][..])
    );
    let unknown = fixture.limiter.report(&Report::new("auth_failed", request)).unwrap_err();
    assert_eq!(unknown.field, "event");
}

#[test]
fn only_answers_and_reports_make_status_events_never_refusals_rule_6() {
    let policy = "
operations: { login: POST /auth/login }
limits: { a: { by: user, total: 1, status: 401 } }
events: { auth_failure: { when: login, status: 401 } }
penalties: { p: { event: auth_failure, by: user, within: 1h, ladder: { 1: { ban: 1h } } } }
";
    let fixture = Fixture::with_policy(policy);
    let login = Request::new("POST", "/auth/login").user("u");
    for refused in refused(&fixture, &login, 5).iter().skip(1) {
        assert_eq!((refused.outcome, refused.status()), (Outcome::Limited, 401));
    }
    assert!(answered(&fixture, &login, 401).banned);
}

#[test]
fn an_event_happens_only_where_its_condition_holds_rule_6() {
    let fixture = Fixture::with_policy(BRUTE_FORCE);
    let elsewhere = Request::new("POST", "/other").attribute("email", "a@b.c");
    assert!(
        fixture.check(&login("a@b.c")).sees_answers() && !fixture.check(&elsewhere).sees_answers()
    );
    for _ in 0..9 {
        assert!(answered(&fixture, &elsewhere, 401).events.is_empty());
        assert!(answered(&fixture, &login("a@b.c"), 500).events.is_empty());
    }
    assert_eq!(fail(&fixture, "a@b.c").delay.as_micros(), 0);
}

#[test]
fn a_request_without_the_penaltys_key_is_not_counted_rule_6() {
    let fixture = Fixture::with_policy(BRUTE_FORCE);
    let nameless = Request::new("POST", "/auth/login");
    for _ in 0..30 {
        assert!(!answered(&fixture, &nameless, 401).banned);
    }
    assert_eq!(fixture.outcome(&nameless), Outcome::Allowed);
}

#[test]
fn grace_counts_as_the_event_and_answers_warned_rule_6() {
    let fixture = Fixture::with_policy(OFFENDER);
    assert_eq!(fixture.outcome(&user("u")), Outcome::Allowed);
    let graced = fixture.check(&user("u"));
    assert_eq!((graced.outcome, graced.status()), (Outcome::Warned, 200));
    assert_eq!(graced.warnings().collect::<Vec<_>>(), ["orders"]);
    assert!(!graced.limits[0].charged, "what is passed while over is not charged");
    assert_eq!(fixture.outcome(&user("u")), Outcome::Limited, "from here on the limit is hard");
}

#[test]
fn grace_charges_the_limits_that_are_not_over_rule_6() {
    let policy = OFFENDER.replace("limits:", "limits:\n  all: { by: user, total: 9 }");
    let fixture = Fixture::with_policy(&policy);
    fixture.check(&user("u"));
    let graced = fixture.check(&user("u"));
    assert_eq!(graced.outcome, Outcome::Warned);
    assert_eq!([graced.limits[0].charged, graced.limits[1].charged], [true, false]);
    fixture.check(&user("u"));
    assert_eq!(fixture.remaining(0, &user("u")), 7, "a refusal is free");
}

#[test]
fn grace_never_covers_an_attribute_cost_or_a_ceiling_rule_6() {
    for limit in ["{ by: user, total: 5, cost: amount }", "{ by: user, ceiling: 5, value: amount }"]
    {
        let policy = format!(
            "
identity: {{ attributes: {{ amount: given }} }}
limits: {{ money: {limit} }}
penalties: {{ p: {{ event: limited, by: user, within: 1h, ladder: {{ 1: {{ allow: true }} }} }} }}
"
        );
        let fixture = Fixture::with_policy(&policy);
        let refused = fixture.check(&user("u").attribute("amount", "6"));
        assert_eq!(refused.outcome, Outcome::Limited, "{limit}");
    }
}

#[test]
fn grace_covers_only_the_limits_of_its_event_rule_6() {
    let policy = OFFENDER.replace("limits:", "limits:\n  other: { by: user, total: 1 }");
    let fixture = Fixture::with_policy(&policy);
    fixture.check(&user("u"));
    assert_eq!(fixture.outcome(&user("u")), Outcome::Limited, "the other limit refuses too");
}

#[test]
fn the_request_whose_violation_starts_a_ban_is_answered_as_banned_rule_6() {
    let fixture = Fixture::with_policy(OFFENDER);
    fixture.check(&user("u"));
    let violations = refused(&fixture, &user("u"), 10);
    let outcomes: Vec<Outcome> = violations.iter().map(|one| one.outcome).collect();
    assert_eq!(outcomes[0], Outcome::Warned);
    assert!(outcomes[1..9].iter().all(|outcome| *outcome == Outcome::Limited), "{outcomes:?}");
    let last = &violations[9];
    assert_eq!((last.outcome, last.status()), (Outcome::Banned, 403));
    assert_eq!(last.retry_after(), Some(seconds(1800)));
    assert!(
        matches!(last.effects(), [Effect::Banned { penalty, .. }] if penalty == "repeat-offender")
    );
}

#[test]
fn banned_requests_are_events_too_and_a_hundred_are_flagged_once_rule_6() {
    let fixture = Fixture::with_policy(OFFENDER);
    fixture.check(&user("u"));
    let all = refused(&fixture, &user("u"), 120);
    let flagged: Vec<usize> =
        (1..).zip(&all).filter(|(_, one)| !one.flags().is_empty()).map(|(at, _)| at).collect();
    assert_eq!(flagged, [100]);
    let flags = fixture.limiter.marks().list(
        MarkKind::Flag,
        None,
        9,
        tidegate::clock::Clock::now(&fixture.clock),
    );
    assert_eq!(flags.len(), 1);
    assert_eq!(
        (flags[0].flag.as_deref(), &flags[0].subject),
        (Some("review"), &Subject::client("user:u"))
    );
}

#[test]
fn a_peek_makes_no_event_rule_6() {
    let fixture = Fixture::with_policy(OFFENDER);
    fixture.check(&user("u"));
    for _ in 0..20 {
        assert_eq!(fixture.limiter.peek(&user("u")).unwrap().outcome, Outcome::Limited);
    }
    assert_eq!(fixture.outcome(&user("u")), Outcome::Warned, "still the first violation");
}

#[test]
fn the_async_path_takes_the_same_steps_rule_6() {
    let fixture = Fixture::with_policy(OFFENDER);
    let outcomes: Vec<Outcome> = (0..12)
        .map(|_| block_on(fixture.limiter.check_async(&user("u"))).unwrap().outcome)
        .collect();
    assert_eq!(outcomes[1], Outcome::Warned);
    assert_eq!(outcomes[9], Outcome::Limited);
    assert_eq!(outcomes[10..], [Outcome::Banned, Outcome::Banned]);
}

#[test]
fn delay_and_warning_are_served_on_the_refusal_that_reached_them_rule_6() {
    let policy = "
limits: { a: { by: user, total: 1 } }
penalties:
  p: { event: limited, by: user, within: 1h, ladder: { 2: { delay: 3s, warn: slow-down } } }
";
    let fixture = Fixture::with_policy(policy);
    let all = refused(&fixture, &user("u"), 3);
    assert_eq!((all[1].delay().as_secs(), all[2].delay().as_secs()), (0, 3));
    assert_eq!(all[2].warnings().collect::<Vec<_>>(), ["slow-down"]);
    let response = tidegate::Response::of(&all[2], tidegate::Jitter::None);
    assert_eq!(response.header("x-ratelimit-warning"), Some("slow-down"));
}

#[test]
fn a_step_may_challenge_and_a_pass_satisfies_it_rule_6() {
    let policy = "
limits: { a: { by: user, total: 1 } }
penalties: { p: { event: limited, by: user, within: 1h, ladder: { 2: { challenge: true } } } }
challenge: { kind: proof_of_work }
response: { challenged: { status: 418, body: { solve: true } } }
";
    let fixture = Fixture::with_policy(policy);
    let all = refused(&fixture, &user("u"), 3);
    assert_eq!([all[1].outcome, all[2].outcome], [Outcome::Limited, Outcome::Challenged]);
    assert_eq!(all[2].status(), 418);
    let response = tidegate::Response::of(&all[2], tidegate::Jitter::None);
    assert_eq!(response.body(), Some("{\"solve\":true}"));
    assert_eq!(fixture.outcome(&user("u").pass(true)), Outcome::Limited, "the limit still refuses");
}

#[test]
fn a_ban_may_be_wider_than_the_key_that_was_counted_rule_6() {
    let policy = "
penalties:
  p: { event: blocked, by: ip, within: 1h, ladder: { 2: { ban: { for: 1h, by: network } } } }
block: { countries: [KP] }
";
    let fixture = Fixture::with_policy(policy);
    let from = |ip: [u8; 4]| Request::new("GET", "/").ip(ip.into());
    for _ in 0..2 {
        assert_eq!(fixture.outcome(&from([192, 0, 2, 7]).country("KP")), Outcome::Blocked);
    }
    assert_eq!(fixture.outcome(&from([192, 0, 2, 99])), Outcome::Banned);
    assert_eq!(fixture.outcome(&from([192, 0, 3, 1])), Outcome::Allowed);
    let six = |ip: &str| Request::new("GET", "/").ip(ip.parse().unwrap()).country("KP");
    for _ in 0..2 {
        fixture.check(&six("2001:db8:1:2::1"));
    }
    let neighbour = Request::new("GET", "/").ip("2001:db8:1:2:9::9".parse().unwrap());
    assert_eq!(fixture.outcome(&neighbour), Outcome::Banned);
}

#[test]
fn a_client_ban_spares_other_clients_at_the_same_address_rule_6() {
    let fixture = Fixture::with_policy(OFFENDER);
    let here = |request: Request<'static>| request.ip([192, 0, 2, 1].into());
    fixture.check(&here(user("u")));
    refused(&fixture, &here(user("u")), 10);
    assert_eq!(fixture.outcome(&here(user("u"))), Outcome::Banned);
    assert_eq!(fixture.outcome(&here(user("v"))), Outcome::Allowed);
    assert_eq!(fixture.outcome(&here(Request::new("GET", "/"))), Outcome::Allowed);
}

/// Sleeps by moving the clock.
struct Jumps(tidegate::clock::FakeClock);

impl tidegate::Timer for Jumps {
    async fn sleep(&self, duration: std::time::Duration) {
        self.0.advance(duration);
    }
}

#[test]
fn a_waiting_request_violates_nothing_until_the_wait_is_over_rule_6() {
    let policy = "
limits: { a: { by: user, token_bucket: 1/s burst 1, exceed: wait 2s } }
penalties: { p: { event: limited, by: user, within: 1h, ladder: { 1: { ban: 1h } } } }
";
    let fixture = Fixture::with_policy(policy);
    let timer = Jumps(fixture.clock.clone());
    for _ in 0..5 {
        let acquired = block_on(fixture.limiter.acquire(&user("u"), None, &timer)).unwrap();
        assert_eq!(acquired.decision.outcome, Outcome::Allowed);
    }
    let request = user("u");
    let hurried = fixture.limiter.acquire(&request, Some(Duration::from_millis(1)), &timer);
    assert_eq!(block_on(hurried).unwrap().decision.outcome, Outcome::Banned);
}
