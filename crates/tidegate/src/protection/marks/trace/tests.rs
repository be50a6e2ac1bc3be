use std::net::IpAddr;

use proptest::prelude::*;

use super::super::Marks;
use super::*;
use crate::clock::Now;
use crate::policy::protection::BanBy;
use crate::request::Request;

const NOW: Now = Now { steady_us: 5_000_000, unix_us: 9_000_000 };
const SECRET: [u8; 16] = [7; 16];

fn policy() -> Policy {
    let text = "
tidegate: 1
name: api
identity: { ipv6_prefix: 56, attributes: { email: given } }
limits: { a: { by: email, total: 1 } }
";
    Policy::parse("p.yaml", text).unwrap_or_else(|errors| panic!("{errors}"))
}

/// All ways in which bans know a request.
fn all_by(policy: &Policy) -> Vec<Vec<Part>> {
    let email = Part::Attribute(policy.attribute_names.id("email").unwrap());
    let header = Part::Header("x-device".to_owned());
    vec![
        vec![Part::User],
        vec![Part::Client],
        vec![Part::Ip],
        vec![email.clone()],
        vec![Part::Ip, email.clone()],
        vec![email, Part::Client, header, Part::Tier, Part::Method, Part::Path, Part::Operation],
        vec![Part::Global],
    ]
}

fn mark(marks: &Marks, scope: Option<&str>, subject: Subject) -> Mark {
    Mark {
        id: marks.id_of(MarkKind::Ban, scope, None, &subject),
        kind: MarkKind::Ban,
        policy: scope.map(str::to_owned),
        subject,
        source: "p".to_owned(),
        reason: String::new(),
        flag: None,
        since_unix_us: 0,
        until_unix_us: None,
        factor_ppm: None,
    }
}

fn request(user: Option<&str>, ip: Option<IpAddr>, value: &str) -> Request<'static> {
    let request = Request::new("GET", "/a").attribute("email", value.to_owned());
    let request = request.header("x-device", value.to_owned());
    let request = match user {
        Some(user) => request.user(user.to_owned()),
        None => request,
    };
    match ip {
        Some(ip) => request.ip(ip),
        None => request,
    }
}

/// Bans whom a request is of, in each way, and looks for it; then takes the ban away.
fn check(request: &Request<'_>) {
    let policy = policy();
    let context = Context::gather(&policy, request).unwrap();
    let secret = HashKey::new(SECRET);
    for (scope, by) in [None, Some("api")]
        .into_iter()
        .flat_map(|scope| all_by(&policy).into_iter().map(move |by| (scope, by)))
    {
        let marks = Marks::new(secret.clone(), 9);
        let sought = Sought::new(&secret, MarkKind::Ban, scope, None, &by, &policy);
        let subject = Subject::of(&by, &context);
        assert_eq!(subject.is_some(), sought.key(&context).is_some());
        assert!(marks.find(&sought, &context, NOW).is_none());
        let Some(subject) = subject else { continue };
        let ban = mark(&marks, scope, subject);
        marks.put(&ban, NOW);
        let found = marks.find(&sought, &context, NOW).map(|found| found.id);
        assert_eq!(found, Some(ban.id), "{}", ban.subject);
        marks.take(MarkKind::Ban, ban.id);
        assert!(marks.find(&sought, &context, NOW).is_none());
    }
}

#[test]
fn a_subject_is_traced_however_long_its_values_are() {
    let ips = ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8:1:2::3", "::", "::1"];
    for length in [0, 1, 5, 9, 17, 250, 251, 252, 255, 256, 257, 300, 2_000] {
        let value = "ä1-".chars().cycle().take(length).collect::<String>();
        check(&request(Some(&value), None, &value));
        for ip in ips {
            check(&request(None, Some(ip.parse().unwrap()), &value));
        }
    }
}

#[test]
fn marks_are_told_apart_by_scope_name_parts_and_subject_and_no_two_processes_alike() {
    let policy = policy();
    let secret = HashKey::new(SECRET);
    let request = request(Some("u"), Some([192, 0, 2, 1].into()), "u");
    let context = Context::gather(&policy, &request).unwrap();
    let tracer = Tracer::random();
    let mut traces = Vec::new();
    for (scope, name) in
        [(None, None), (Some("api"), None), (Some("api"), Some("f")), (Some("b"), Some("f"))]
    {
        for by in all_by(&policy) {
            let sought = Sought::new(&secret, MarkKind::Ban, scope, name, &by, &policy);
            let Traced::Is(trace) = tracer.of_request(&sought, &context) else { panic!() };
            let Traced::Is(other) = Tracer::random().of_request(&sought, &context) else {
                panic!()
            };
            traces.extend([trace, other]);
        }
    }
    let count = traces.len();
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), count);
}

#[test]
fn a_network_is_traced_for_every_address_in_it() {
    let policy = policy();
    let secret = HashKey::new(SECRET);
    let sought = Sought::networks(&secret, Some("api"));
    let ips: [IpAddr; 3] = [
        [192, 0, 2, 200].into(),
        "2001:db8::ff".parse().unwrap(),
        "::ffff:10.1.2.3".parse().unwrap(),
    ];
    for ip in ips {
        for (v4_bits, v6_bits) in [(0, 0), (1, 1), (24, 56), (31, 64), (32, 65), (32, 128)] {
            let marks = Marks::new(secret.clone(), 9);
            let asking = request(None, Some(ip), "");
            let context = Context::gather(&policy, &asking).unwrap();
            let subject = Subject::banned(BanBy::Network { v4_bits, v6_bits }, &context).unwrap();
            let ban = mark(&marks, Some("api"), subject);
            assert!(!marks.may_have_network(&sought, ip.to_canonical()));
            marks.put(&ban, NOW);
            assert!(marks.may_have_network(&sought, ip.to_canonical()), "{}", ban.subject);
            assert_eq!(marks.find_networks(&sought, ip.to_canonical(), NOW).count(), 1);
        }
    }
}

proptest! {
    /// Whatever users and addresses are called, whoever is banned is found.
    #[test]
    fn a_request_has_the_trace_of_the_ban_of_its_subject(
        user in proptest::option::of("(user:|ip:)?\\PC{0,40}"),
        ip in proptest::option::of(any::<IpAddr>()),
        value in "\\PC{0,30}",
    ) {
        check(&request(user.as_deref(), ip, &value));
    }
}
