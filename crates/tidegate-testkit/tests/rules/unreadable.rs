//! A request that cannot be read: never better for an attacker than one that can, and never a lever
//! against others (docs/policy.md, "Requests that cannot be read").

use tidegate::{Outcome, Request};

use crate::Fixture;

/// A login as the guide has it, with a ban.
fn login_policy(missing: &str) -> String {
    format!(
        "
identity: {{ attributes: {{ email: {{ body: /email, fold: true }} }} }}
operations: {{ login: POST /auth/login, upload: POST /photos }}
events:
  auth_failure: {{ when: login, status: [401, 403] }}
  auth_success: {{ when: login, status: 2xx }}
penalties:
  brute-force:
    event: auth_failure
    by: email
    within: 15min
    forgive: auth_success
    ladder: {{ 4: {{ delay: 2s }}, 6: {{ delay: 5s }}, 11: {{ ban: 15min }} }}
    {missing}
"
    )
}

/// Bodies in which some service finds the account of Ada.
const UNREADABLE: [&str; 5] = [
    r#"{"email":{"at":"ada@example.com"}}"#,
    r#"{"email":["ada@example.com"]}"#,
    r#"{"email":"ada@example.com""#,
    "ada@example.com",
    "[]]",
];

fn post(path: &'static str, body: &str) -> Request<'static> {
    Request::new("POST", path).body(body.as_bytes().to_vec())
}

fn login(body: &str) -> Request<'static> {
    post("/auth/login", body)
}

/// How many guesses reach the service, and how long their answers are held, in seconds.
fn attack(fixture: &Fixture, bodies: &[&str], tries: usize) -> (usize, u64) {
    let (mut guesses, mut held) = (0, 0);
    for body in bodies.iter().cycle().take(tries) {
        let request = login(body);
        if fixture.try_check(&request).is_ok_and(|decision| decision.is_allowed()) {
            guesses += 1;
            held += fixture.limiter.record_status(&request, 401).unwrap().delay.as_secs();
        }
    }
    (guesses, held)
}

#[test]
fn an_attacker_who_cannot_be_read_gets_no_more_guesses_than_one_who_can() {
    for missing in ["", "missing: refuse", "missing: share"] {
        let fixture = || Fixture::with_policy(&login_policy(missing));
        let (readable, held) = attack(&fixture(), &[r#"{"email":"ada@example.com"}"#], 300);
        assert_eq!((readable, held), (11, 2 * 2 + 5 * 5));
        let (guesses, _) = attack(&fixture(), &UNREADABLE, 300);
        assert!(guesses <= readable, "{missing}: {guesses} of 300");
        // After as many readable ones, unreadable ones are no second chance at will.
        let mixed = fixture();
        attack(&mixed, &[r#"{"email":"ada@example.com"}"#], 300);
        assert!(attack(&mixed, &UNREADABLE, 300).0 <= readable, "{missing}");
        assert_eq!(attack(&mixed, &UNREADABLE, 300).0, 0, "{missing}");
    }
}

#[test]
fn an_attacker_who_cannot_be_read_locks_nobody_out() {
    for missing in ["", "missing: refuse", "missing: share", "missing: skip"] {
        let fixture = Fixture::with_policy(&login_policy(missing));
        attack(&fixture, &UNREADABLE, 300);
        for person in ["ada", "ben", "cem"] {
            let body = format!(r#"{{"email":"{person}@example.com"}}"#);
            assert_eq!(fixture.outcome(&login(&body)), Outcome::Allowed, "{missing}");
        }
        for body in UNREADABLE {
            assert_eq!(fixture.outcome(&post("/photos", body)), Outcome::Allowed, "{missing}");
        }
        if missing != "missing: refuse" {
            assert_eq!(fixture.outcome(&login(r#"{"phone":"5"}"#)), Outcome::Allowed, "{missing}");
        }
    }
}
