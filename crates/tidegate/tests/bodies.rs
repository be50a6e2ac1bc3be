//! Attributes that are there, but cannot be read, or are there twice: neither is a way round a limit.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

use std::net::{IpAddr, Ipv4Addr};

use tidegate::{Limiter, Outcome, Policy, Request, Unreadable};

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

/// A policy with these rules, its attributes and two operations.
fn limiter(rules: &str) -> Limiter {
    let text = format!(
        "
tidegate: 1
name: api
identity:
  attributes:
    email: {{ body: /email, fold: true }}
    kind: {{ body: /kind }}
    channel: {{ body: /channel, as: number }}
    users: {{ body: /users, count: true }}
    page: {{ query: page }}
    session: {{ cookie: sid }}
operations: {{ login: POST /login, channel: 'POST /channels/{{channel}}' }}
{rules}
"
    );
    Limiter::new(Policy::parse("api.yaml", &text).unwrap_or_else(|errors| panic!("{errors}")))
}

/// A request that came from a socket.
fn post(content_type: &'static str, body: &str) -> Request<'static> {
    Request::new("POST", "/login")
        .peer(CLIENT)
        .header("Content-Type", content_type)
        .body(body.to_owned().into_bytes())
}

fn outcome(limiter: &Limiter, request: &Request<'_>) -> Outcome {
    limiter.check(request).unwrap().outcome
}

/// The field and the detail of a 400.
fn refusal(limiter: &Limiter, request: &Request<'_>) -> (String, String) {
    let error = limiter.check(request).unwrap_err();
    (error.field, error.detail)
}

#[test]
fn one_person_has_one_key_however_the_body_is_written() {
    let multipart =
        "--b\r\nContent-Disposition: form-data; name=\"email\"\r\n\r\nADA@example.com\r\n--b--\r\n";
    let limiter = limiter("limits: { one: { by: email, total: 3 } }");
    for request in [
        post(JSON, r#"{"email":" Ada@example.com"}"#),
        post(FORM, "email=ada%40example.com"),
        post("multipart/form-data; boundary=b", multipart),
    ] {
        assert_eq!(outcome(&limiter, &request), Outcome::Allowed);
    }
    assert_eq!(outcome(&limiter, &post(FORM, "email=ada@example.com")), Outcome::Limited);
    assert_eq!(outcome(&limiter, &post(FORM, "email=bob@example.com")), Outcome::Allowed);
}

#[test]
fn what_cannot_be_read_shares_one_key_even_where_the_absent_is_skipped() {
    for missing in ["", ", missing: share", ", missing: skip"] {
        let limiter = limiter(&format!("limits: {{ one: {{ by: email, total: 1{missing} }} }}"));
        let unreadable = [
            post(FORM, r#"{"email":"d1","x":"&email=ada@example.com&"}"#),
            post("application/json; charset=utf-7", r#"{"email":"d2"}"#),
            post("text/plain", r#"{"email":"d3"}"#),
            post(JSON, r#"{"EMAIL":"d4"}"#),
            post(FORM, "email[]=d5"),
            Request::new("POST", "/login").peer(CLIENT).body(br#"{"email":"d6"}"#),
        ];
        assert_eq!(outcome(&limiter, &unreadable[0]), Outcome::Allowed, "{missing}");
        for request in &unreadable {
            assert_eq!(outcome(&limiter, request), Outcome::Limited, "{missing} {request:?}");
        }
        assert_eq!(outcome(&limiter, &post(JSON, r#"{"email":"d7"}"#)), Outcome::Allowed);
    }
    let refusing = limiter("limits: { one: { by: email, total: 1, missing: refuse } }");
    let detail =
        "cannot be read: the body is of a type that is not read, and the limit `one` needs it";
    assert_eq!(
        refusal(&refusing, &post("text/plain", "x")),
        ("attributes.email".to_owned(), detail.to_owned())
    );
}

#[test]
fn a_condition_on_what_cannot_be_read_is_met_where_that_is_stricter() {
    let unreadable = post("text/plain", r#"{"kind":"transfer"}"#);
    for (rules, expected) in [
        (
            "limits: { one: { by: ip, total: 1, cost: 2, when: { attributes: { kind: transfer } } } }",
            Outcome::Limited,
        ),
        (
            "limits: { one: { by: ip, total: 1, cost: 2, when: { not: { attributes: { kind: cheap } } } } }",
            Outcome::Limited,
        ),
        (
            "exempt: { attributes: { kind: cheap } }\nlimits: { one: { by: ip, total: 1, cost: 2 } }",
            Outcome::Limited,
        ),
        (
            "exempt: { not: { attributes: { kind: transfer } } }\nlimits: { one: { by: ip, total: 1, cost: 2 } }",
            Outcome::Limited,
        ),
        (
            "factors: { f: { when: { attributes: { kind: cheap } }, times: 2 } }\nlimits: { one: { by: ip, sliding_window: 1/min, cost: 2 } }",
            Outcome::Limited,
        ),
        (
            "factors: { f: { when: { attributes: { kind: cheap } }, times: 0.5 } }\nlimits: { one: { by: ip, sliding_window: 2/min, cost: 2 } }",
            Outcome::Limited,
        ),
    ] {
        assert_eq!(outcome(&limiter(rules), &unreadable), expected, "{rules}");
    }
    let absent = limiter(
        "limits: { one: { by: ip, total: 1, cost: 2, when: { attributes: { kind: transfer } } } }",
    );
    assert_eq!(outcome(&absent, &post(JSON, "{}")), Outcome::Allowed);
    let rows =
        limiter("limits: { one: { by: ip, tier_by: kind, total: { transfer: 1, default: 9 } } }");
    assert_eq!(refusal(&rows, &unreadable).0, "attributes.kind");
}

#[test]
fn an_attribute_that_is_there_twice_is_refused_where_it_is_read() {
    let rules = "limits: { one: { when: login, by: [email, page], total: 100 } }";
    let limiter = limiter(rules);
    let query = |path: &'static str| post(JSON, "{}").path(path);
    for (request, field, place) in [
        (post(JSON, r#"{"email":"a","email":"b"}"#), "email", "twice in the body"),
        (post(JSON, r#"{"email":"a","EMAIL":"b"}"#), "email", "twice in the body"),
        (post(FORM, "email=a&email=b"), "email", "twice in the body"),
        (post(FORM, "email=a&email[]=b"), "email", "twice in the body"),
        (
            post(JSON, r#"{"email":"a"}"#).header("content-type", FORM),
            "email",
            "two `Content-Type` lines",
        ),
        (query("/login?page=1&page=1"), "page", "twice in the query"),
        (query("/login?page=1&Page=1"), "page", "twice in the query"),
        (query("/login?page=1&page[]=2"), "page", "twice in the query"),
    ] {
        let (found, detail) = refusal(&limiter, &request);
        assert_eq!(found, format!("attributes.{field}"));
        assert!(detail.contains(place), "{detail}");
        assert_eq!(limiter.explain(&request).unwrap_err().field, found);
    }
    for other in [
        post(JSON, r#"{"kind":"a","kind":"b"}"#),
        post(FORM, "kind[]=a&kind[]=b&email=c"),
        post(JSON, r#"{"email":"a","email":"b"}"#).path("/other?page=1&page=2"),
        post(JSON, r#"{"email":"a","email":"b"}"#).attribute("email", "a"),
    ] {
        assert_eq!(outcome(&limiter, &other), Outcome::Allowed, "{other:?}");
    }
}

#[test]
fn a_report_that_says_an_attribute_twice_is_refused() {
    let limiter = limiter(
        "events: { bad: {} }
penalties: { p: { event: bad, by: email, within: 1h, ladder: { 9: { delay: 1s } } } }",
    );
    let twice = Request::new("POST", "/login").body(br#"{"email":"a","Email":"b"}"#);
    let error = limiter.report(&tidegate::Report::new("bad", twice)).unwrap_err();
    assert_eq!(error.field, "attributes.email");
}

#[test]
fn a_number_is_one_key_and_what_is_none_is_unreadable() {
    let limiter = limiter("limits: { one: { by: channel, total: 4 } }");
    for request in [
        post(JSON, r#"{"channel":42}"#),
        post(JSON, r#"{"channel":" 42"}"#),
        post(FORM, "channel=042"),
        Request::new("POST", "/channels/0042").peer(CLIENT),
    ] {
        assert_eq!(outcome(&limiter, &request), Outcome::Allowed);
    }
    assert_eq!(outcome(&limiter, &post(FORM, "channel=%2B42")), Outcome::Limited);
    let odd = ["1.00000000000000000000007", "1e99", "42.0", "true", "[42]", "1234567890123456"];
    for (number, odd) in odd.iter().enumerate() {
        let request = post(JSON, &format!(r#"{{"channel":{odd}}}"#));
        let expected = if number < 4 { Outcome::Allowed } else { Outcome::Limited };
        assert_eq!(outcome(&limiter, &request), expected, "one key for all: {odd}");
        let why = if *odd == "[42]" { Unreadable::Shape } else { Unreadable::Number };
        let unreadable = limiter.explain(&request).unwrap().unreadable;
        assert_eq!(unreadable, [("channel".to_owned(), why)], "{odd}");
    }
}

#[test]
fn the_items_of_a_list_are_a_cost() {
    let limiter = limiter("limits: { one: { by: ip, total: 5, cost: users } }");
    let of = |users: &str| post(JSON, &format!(r#"{{"users":{users}}}"#));
    assert_eq!(outcome(&limiter, &of(r#"[{"id":1},[],null]"#)), Outcome::Allowed);
    assert_eq!(outcome(&limiter, &of("[1,2,3]")), Outcome::Limited);
    assert_eq!(outcome(&limiter, &of("[1,2]")), Outcome::Allowed);
    for wrong in [of("{}"), of("7"), of("null"), post(FORM, "users[]=1&users[]=2")] {
        assert_eq!(refusal(&limiter, &wrong).0, "attributes.users");
    }
}

#[test]
fn a_session_is_counted_by_its_cookie() {
    let limiter = limiter("limits: { one: { by: session, total: 1 } }");
    let with = |line: &'static str| Request::new("GET", "/").peer(CLIENT).header("Cookie", line);
    assert_eq!(outcome(&limiter, &with("a=b; sid=s1")), Outcome::Allowed);
    assert_eq!(outcome(&limiter, &with("sid=\"s%31\"; c=d")), Outcome::Limited);
    assert_eq!(outcome(&limiter, &with("sid=s1; sid=s1")), Outcome::Limited);
    assert_eq!(outcome(&limiter, &with("sid=s2")), Outcome::Allowed);
    // Browsers send two of one name, by their paths: that is no error, but no session either.
    assert_eq!(outcome(&limiter, &with("sid=s3; sid=s4")), Outcome::Allowed);
    assert_eq!(outcome(&limiter, &with("sid=s5; sid=s6")), Outcome::Limited);
    assert_eq!(outcome(&limiter, &Request::new("GET", "/")), Outcome::Limited, "shared");
    let two_lines = with("a=b").header("cookie", "sid=s7");
    assert_eq!(outcome(&limiter, &two_lines), Outcome::Allowed);
    let read = limiter.first_policy().unwrap().headers_read().to_vec();
    assert_eq!(read, ["content-encoding", "content-type", "cookie", "x-forwarded-for"]);
}

#[test]
fn a_request_that_is_kept_for_its_answer_stays_unreadable() {
    let limiter = limiter("limits: { one: { by: [email, session], total: 1 } }");
    let request = post("text/plain", r#"{"email":"a"}"#).header("Cookie", "sid=s1; sid=s2; pad=x");
    let trimmed = limiter.context(&request).unwrap().trim_request();
    assert_eq!(trimmed.headers, [], "parsed already");
    let unreadable = |name: &str, why| (name.to_owned().into(), why);
    let expected = [
        unreadable("email", Unreadable::Type),
        unreadable("kind", Unreadable::Type),
        unreadable("channel", Unreadable::Type),
        unreadable("users", Unreadable::Type),
        unreadable("session", Unreadable::Ambiguous),
    ];
    assert_eq!(trimmed.unreadable, expected);
    let refusing = limiter.explain(&trimmed).unwrap().unreadable;
    assert_eq!(refusing.len(), 2, "as unreadable as before");
    assert_eq!(outcome(&limiter, &request), Outcome::Allowed);
    assert_eq!(outcome(&limiter, &trimmed.into_owned()), Outcome::Limited, "the same key");
}
