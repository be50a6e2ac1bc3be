use std::sync::Arc;

use crate::clock::FakeClock;
use crate::decision::Outcome;
use crate::limiter::{Limiter, NewMark};
use crate::policy::Policy;
use crate::protection::events::{Effect, Report};
use crate::protection::marks::{MarkChange, MarkKind, Subject};
use crate::request::{Request, RequestError};

/// Bodies of one attacker, whose service reads an email in each of them.
const UNREADABLE: [&[u8]; 4] =
    [br#"{"email":{"at":"ada"}}"#, b"email=ada", br#"{"email":["ada"]}"#, b"{\"email\":\"ada\""];
const ADA: &[u8] = br#"{"email":"ada"}"#;
const BEN: &[u8] = br#"{"email":"ben"}"#;
const NOBODY: &[u8] = b"{}";

/// A login whose ladder delays from the second failure on and bans at the fourth.
fn policy(missing: &str) -> Policy {
    let text = format!(
        "
tidegate: 1
name: shop
identity: {{ attributes: {{ email: {{ body: /email }} }} }}
operations: {{ login: POST /login, again: POST /relogin, upload: POST /photos }}
limits: {{ few: {{ when: upload, by: ip, sliding_window: 100/min }} }}
events:
  failure: {{ when: [login, again], status: 401 }}
  success: {{ when: [login, again], status: 200 }}
penalties:
  guessing:
    event: failure
    by: email
    within: 1h
    forgive: success
    ladder: {{ 2: {{ delay: 2s }}, 4: {{ ban: 1h, notify: desk }} }}
    {missing}
notify: {{ desk: {{ webhook: 'https://hooks.example.org/x' }} }}
"
    );
    Policy::parse("shop.yaml", &text).unwrap_or_else(|errors| panic!("{errors}"))
}

fn limiter(missing: &str) -> Limiter {
    let clock = FakeClock::at_unix_seconds(1_767_603_600);
    Limiter::builder().policy(policy(missing)).clock(clock).build().unwrap()
}

fn post(path: &'static str, body: &'static [u8]) -> Request<'static> {
    Request::new("POST", path).ip([192, 0, 2, 7].into()).body(body)
}

fn outcome(limiter: &Limiter, request: &Request<'_>) -> Result<Outcome, RequestError> {
    limiter.check(request).map(|decision| decision.outcome)
}

/// One guess at a password: the delay of its answer, or `None` if the guess does not reach the service.
fn guess(limiter: &Limiter, request: &Request<'_>, status: u16) -> Option<u64> {
    let passes = outcome(limiter, request).is_ok_and(Outcome::passes);
    passes.then(|| limiter.record_status(request, status).unwrap().delay.as_secs())
}

#[test]
fn a_request_that_cannot_be_read_is_refused_at_the_events_own_operations_alone() {
    for missing in ["", "missing: refuse"] {
        let limiter = limiter(missing);
        for body in UNREADABLE {
            let error = limiter.check(&post("/login", body)).unwrap_err();
            assert_eq!(
                error.to_string(),
                "attributes.email: cannot be read, and the penalty `guessing` needs it"
            );
            assert!(limiter.peek(&post("/relogin", body)).is_err());
            assert_eq!(outcome(&limiter, &post("/photos", body)), Ok(Outcome::Allowed));
            assert_eq!(outcome(&limiter, &post("/other", body)), Ok(Outcome::Allowed));
        }
        assert_eq!(outcome(&limiter, &post("/login", ADA)), Ok(Outcome::Allowed));
    }
}

#[test]
fn a_request_that_only_lacks_the_part_is_refused_where_the_policy_says_so() {
    let allowed = Ok(Outcome::Allowed);
    for missing in ["", "missing: skip", "missing: share"] {
        assert_eq!(outcome(&limiter(missing), &post("/login", NOBODY)), allowed, "{missing}");
    }
    let limiter = limiter("missing: refuse");
    let error = limiter.check(&post("/login", NOBODY)).unwrap_err();
    let expected = "attributes.email: is missing, and the penalty `guessing` needs it";
    assert_eq!(error.to_string(), expected);
    assert_eq!(outcome(&limiter, &post("/photos", NOBODY)), allowed);
}

#[test]
fn nothing_is_refused_while_penalties_are_off() {
    let text = "
tidegate: 1
name: shop
enabled: false
identity: { attributes: { email: { body: /email } } }
operations: { login: POST /login }
events: { failure: { when: login, status: 401 } }
penalties:
  p: { event: failure, by: email, within: 1h, missing: refuse, ladder: { 2: { ban: 1h } } }
";
    let limiter = Limiter::new(Policy::parse("shop.yaml", text).unwrap());
    assert_eq!(outcome(&limiter, &post("/login", UNREADABLE[0])), Ok(Outcome::Allowed));
}

#[test]
fn an_attacker_who_cannot_be_read_never_gets_more_guesses_than_one_who_can() {
    let guesses = |missing: &str, bodies: &[&'static [u8]]| {
        let limiter = limiter(missing);
        let tries = (0..40).flat_map(|_| ["/login", "/relogin"]).zip(bodies.iter().cycle());
        tries.filter_map(|(path, body)| guess(&limiter, &post(path, body), 401)).count()
    };
    for missing in ["", "missing: refuse", "missing: share"] {
        let readable = guesses(missing, &[ADA]);
        assert_eq!(readable, 4, "{missing}");
        assert!(guesses(missing, &UNREADABLE) <= readable, "{missing}");
        for body in UNREADABLE {
            assert!(guesses(missing, &[body]) <= readable, "{missing}");
        }
    }
}

#[test]
fn a_success_of_ones_own_does_not_forgive_what_all_share() {
    let limiter = limiter("missing: share");
    let unreadable = post("/login", UNREADABLE[0]);
    let delays: Vec<_> = [401, 401, 200, 401]
        .into_iter()
        .map(|status| guess(&limiter, &unreadable, status))
        .collect();
    assert_eq!(delays, [Some(0), Some(2), Some(0), Some(2)]);
    let readable = [401, 401, 200, 401].map(|status| guess(&limiter, &post("/login", ADA), status));
    assert_eq!(readable, [Some(0), Some(2), Some(0), Some(0)]);
}

#[test]
fn a_ban_of_what_all_share_refuses_only_requests_that_cannot_be_read() {
    let limiter = limiter("missing: share");
    let delays = UNREADABLE.map(|body| guess(&limiter, &post("/login", body), 401));
    assert_eq!(delays, [Some(0), Some(2), Some(2), Some(0)], "in common, whatever the body");
    for body in UNREADABLE {
        assert_eq!(outcome(&limiter, &post("/login", body)), Ok(Outcome::Banned));
        assert_eq!(outcome(&limiter, &post("/relogin", body)), Ok(Outcome::Banned));
        assert_eq!(outcome(&limiter, &post("/photos", body)), Ok(Outcome::Allowed));
    }
    for body in [ADA, BEN, NOBODY, b""] {
        assert_eq!(outcome(&limiter, &post("/login", body)), Ok(Outcome::Allowed));
    }
}

#[test]
fn a_request_that_merely_lacks_the_part_is_delayed_with_the_others_and_never_banned() {
    let limiter = limiter("missing: share");
    let nobody = post("/login", NOBODY);
    for delay in [0, 2, 2] {
        assert_eq!(guess(&limiter, &nobody, 401), Some(delay));
    }
    let consequences = limiter.record_status(&nobody, 401).unwrap();
    let banned = |effect: &Effect| matches!(effect, Effect::Banned { .. });
    assert!(!consequences.banned && consequences.effects.iter().any(banned));
    assert_eq!(outcome(&limiter, &nobody), Ok(Outcome::Allowed));
    assert_eq!(outcome(&limiter, &post("/login", UNREADABLE[1])), Ok(Outcome::Banned));
    let notices: Vec<_> = consequences
        .effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Notify(notice) => Some((notice.action, notice.subject.to_string())),
            _ => None,
        })
        .collect();
    assert_eq!(notices, [("ban", "email -".to_owned())]);
}

#[test]
fn what_is_skipped_is_neither_refused_nor_counted() {
    let limiter = limiter("missing: skip");
    for body in UNREADABLE.into_iter().chain([NOBODY]) {
        for _ in 0..5 {
            assert_eq!(guess(&limiter, &post("/login", body), 401), Some(0));
        }
    }
}

#[test]
fn nobodys_address_is_banned_for_what_all_share() {
    let text = "
tidegate: 1
name: shop
identity: { attributes: { email: { body: /email } } }
operations: { login: POST /login }
events: { failure: { when: login, status: 401 } }
penalties:
  p: { event: failure, by: email, within: 1h, missing: share, ladder: { 3: { ban: { for: 1h, by: ip } } } }
";
    let limiter = Limiter::new(Policy::parse("shop.yaml", text).unwrap());
    let from = |host: u8, body| post("/login", body).ip([192, 0, 2, host].into());
    for host in [1, 1, 2] {
        assert_eq!(guess(&limiter, &from(host, UNREADABLE[0]), 401), Some(0));
    }
    for host in [1, 2] {
        assert_eq!(outcome(&limiter, &from(host, ADA)), Ok(Outcome::Allowed));
        assert_eq!(outcome(&limiter, &from(host, UNREADABLE[0])), Ok(Outcome::Banned));
    }
}

#[test]
fn parts_that_can_be_read_tell_clients_apart() {
    let text = "
tidegate: 1
name: shop
identity: { attributes: { email: { body: /email } } }
operations: { login: POST /login }
events: { failure: { when: login, status: 401 } }
penalties:
  p: { event: failure, by: [ip, email], within: 1h, missing: share, ladder: { 2: { ban: 1h } } }
";
    let limiter = Limiter::new(Policy::parse("shop.yaml", text).unwrap());
    let from = |host: u8| post("/login", UNREADABLE[0]).ip([192, 0, 2, host].into());
    for _ in 0..2 {
        guess(&limiter, &from(1), 401);
    }
    assert_eq!(outcome(&limiter, &from(1)), Ok(Outcome::Banned));
    assert_eq!(outcome(&limiter, &from(2)), Ok(Outcome::Allowed));
    let bans = limiter.marks().list(MarkKind::Ban, None, 9, limiter.now());
    assert_eq!(bans[0].subject.to_string(), "ip 192.0.2.1, unreadable email p");
}

#[test]
fn such_a_ban_outlives_restarts_and_reloads_and_reaches_other_nodes() {
    let limiters =
        [limiter("missing: share"), limiter("missing: share"), limiter("missing: share")];
    let [first, restarted, other] = &limiters;
    for body in UNREADABLE {
        guess(first, &post("/login", body), 401);
    }
    let bans = first.marks().export(first.now());
    assert_eq!(restarted.marks().import(bans.clone(), restarted.now()), 1);
    first.replace_policies(vec![Arc::new(policy("missing: share"))]).unwrap();
    // The other node has a hash key of its own in this test, as one after a restart could have.
    let id = other.marks().id_of(MarkKind::Ban, Some("shop"), None, &bans[0].subject);
    let mut ban = bans[0].clone();
    ban.id = id;
    assert!(other.marks().apply(&MarkChange::Set(ban), other.now()));
    for limiter in &limiters {
        assert_eq!(outcome(limiter, &post("/login", UNREADABLE[2])), Ok(Outcome::Banned));
        assert_eq!(outcome(limiter, &post("/login", ADA)), Ok(Outcome::Allowed));
    }
    // The ban is of the penalty. Another `missing` decides for itself.
    first.replace_policies(vec![Arc::new(policy("missing: refuse"))]).unwrap();
    assert!(first.check(&post("/login", UNREADABLE[2])).is_err());
}

#[test]
fn no_value_of_a_client_is_mistaken_for_such_a_ban() {
    let limiter = limiter("missing: share");
    let lasts = std::time::Duration::from_secs(3_600);
    for value in ["-", "guessing", "unreadable"] {
        limiter.ban(&NewMark::new(Subject::part("email", value)).lasts(lasts)).unwrap();
    }
    assert_eq!(outcome(&limiter, &post("/login", UNREADABLE[0])), Ok(Outcome::Allowed));
    // An operator bans subjects that requests name, and no others.
    let made_up = Subject::part("unreadable email", "guessing");
    assert!(limiter.ban(&NewMark::new(made_up).lasts(lasts)).is_err());
}

#[test]
fn a_report_without_a_part_is_refused_only_where_the_policy_says_so() {
    let report = |limiter: &Limiter, body: &'static [u8]| {
        let report = Report::new("failure", post("/login", body));
        limiter.report(&report).map(|consequences| consequences.delay.as_secs())
    };
    let default = limiter("");
    for delay in [0, 2] {
        assert_eq!(report(&default, UNREADABLE[0]), Ok(delay), "counted together");
    }
    for _ in 0..3 {
        assert_eq!(report(&default, NOBODY), Ok(0), "not counted");
    }
    let refusing = limiter("missing: refuse");
    for body in [UNREADABLE[0], NOBODY] {
        let error = report(&refusing, body).unwrap_err();
        assert!(error.to_string().starts_with("attributes.email: "), "{error}");
    }
    assert_eq!(report(&refusing, ADA), Ok(0));
    assert_eq!(report(&refusing, ADA), Ok(2), "nothing of a refused report is counted");
}

#[test]
fn an_event_of_a_limit_is_about_the_operations_of_the_limit() {
    let text = "
tidegate: 1
name: shop
identity: { attributes: { email: { body: /email } } }
operations: { login: POST /login, upload: POST /photos }
limits:
  login-email: { when: login, by: email, sliding_window: 1/min }
  photos: { when: upload, by: ip, sliding_window: 1/min }
events: { hit: { outcome: limited, limit: login-email } }
penalties:
  p: { event: hit, by: email, within: 1h, ladder: { 2: { ban: 1h } } }
";
    let limiter = Limiter::new(Policy::parse("shop.yaml", text).unwrap());
    assert!(limiter.check(&post("/login", UNREADABLE[0])).is_err());
    assert_eq!(outcome(&limiter, &post("/photos", UNREADABLE[0])), Ok(Outcome::Allowed));
}

#[test]
fn events_of_any_request_refuse_none_and_ban_nobody() {
    let text = "
tidegate: 1
name: shop
identity: { attributes: { email: { body: /email } } }
events: { failure: { status: 401 } }
penalties:
  p: { event: failure, by: email, within: 1h, missing: share, ladder: { 2: { delay: 2s, ban: 1h } } }
";
    let limiter = Limiter::new(Policy::parse("shop.yaml", text).unwrap());
    let upload = post("/photos", UNREADABLE[1]);
    assert_eq!([0; 3].map(|_| guess(&limiter, &upload, 401)), [Some(0), Some(2), Some(2)]);
}

#[test]
fn the_body_is_read_for_such_a_ban_while_penalties_are_off() {
    let limiter = limiter("missing: share");
    for body in UNREADABLE {
        guess(&limiter, &post("/login", body), 401);
    }
    let text = "
tidegate: 1
name: shop
enabled: false
identity: { attributes: { email: { body: /email } } }
operations: { login: POST /login }
events: { failure: { when: login, status: 401 } }
penalties:
  guessing: { event: failure, by: email, within: 1h, missing: share, ladder: { 2: { ban: 1h } } }
";
    let off = Policy::parse("shop.yaml", text).unwrap();
    limiter.replace_policies(vec![Arc::new(off)]).unwrap();
    let request = Request::new("POST", "/login");
    assert!(limiter.wants_body(&limiter.context(&request).unwrap()));
    assert_eq!(outcome(&limiter, &post("/login", UNREADABLE[0])), Ok(Outcome::Banned));
}
