//! A request has the id of the mark on its subject.

use std::net::IpAddr;

use proptest::prelude::*;

use std::sync::Arc;

use super::*;
use crate::policy::Policy;
use crate::policy::model::Part;
use crate::policy::protection::BanBy;
use crate::request::Request;

const NOW: Now = Now { steady_us: 5_000_000, unix_us: 9_000_000 };
const SECRET: [u8; 16] = [7; 16];

fn policy() -> Arc<Policy> {
    let text = "
tidegate: 1
name: api
identity: { ipv6_prefix: 56, attributes: { email: given } }
limits: { a: { by: email, total: 1 } }
";
    Policy::parse("p.yaml", text).unwrap_or_else(|errors| panic!("{errors}")).into()
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

/// Bans the subject of a request by all kinds of parts, and looks for the ban; then removes it.
fn check(request: &Request<'_>) {
    let policy = policy();
    let context = Context::under(&policy, request);
    let secret = HashKey::new(SECRET);
    for (scope, by) in [None, Some("api")]
        .into_iter()
        .flat_map(|scope| all_by(&policy).into_iter().map(move |by| (scope, by)))
    {
        let marks = Marks::new(secret.clone(), 9);
        let keys = MarkKeys::new(&secret, MarkKind::Ban, scope, None, &by, &policy);
        let (subject, id) = (Subject::of(&by, &context), keys.id(&context));
        assert_eq!(subject.is_some(), id.is_some());
        let (Some(subject), Some(id)) = (subject, id) else { continue };
        assert_eq!(marks.get(MarkKind::Ban, id, NOW), None);
        let ban = mark(&marks, scope, subject);
        marks.set(&ban, NOW);
        assert!(marks.get(MarkKind::Ban, id, NOW).is_some(), "{}", ban.subject);
        assert!(marks.has_bans(SubjectKind::of(&by), scope.is_none()));
        marks.remove(MarkKind::Ban, ban.id);
        assert_eq!(marks.get(MarkKind::Ban, id, NOW), None);
        assert!(!marks.has_bans(SubjectKind::of(&by), scope.is_none()));
    }
}

#[test]
fn a_subject_has_one_id_however_long_its_values_are() {
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
fn marks_are_told_apart_by_kind_scope_name_parts_and_secret() {
    let policy = policy();
    let request = request(Some("u"), Some([192, 0, 2, 1].into()), "u");
    let context = Context::under(&policy, &request);
    let mut ids = Vec::new();
    for secret in [SECRET, [8; 16]].map(HashKey::new) {
        for (kind, scope, name) in [
            (MarkKind::Ban, None, None),
            (MarkKind::Ban, Some("api"), None),
            (MarkKind::Factor, Some("api"), Some("f")),
            (MarkKind::Factor, Some("api"), Some("g")),
            (MarkKind::Factor, Some("b"), Some("f")),
        ] {
            for by in all_by(&policy) {
                let keys = MarkKeys::new(&secret, kind, scope, name, &by, &policy);
                ids.push(keys.id(&context).unwrap());
            }
        }
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
}

#[test]
fn a_banned_network_is_found_by_every_address_in_it() {
    let policy = policy();
    let secret = HashKey::new(SECRET);
    let keys = MarkKeys::new(&secret, MarkKind::Ban, Some("api"), None, &[], &policy);
    let ips: [IpAddr; 3] = [
        [192, 0, 2, 200].into(),
        "2001:db8::ff".parse().unwrap(),
        "::ffff:10.1.2.3".parse().unwrap(),
    ];
    for ip in ips {
        for (v4_bits, v6_bits) in [(0, 0), (1, 1), (24, 56), (31, 64), (32, 65), (32, 128)] {
            let marks = Marks::new(secret.clone(), 9);
            let request = request(None, Some(ip), "");
            let context = Context::under(&policy, &request);
            let subject = Subject::of_ban(BanBy::Network { v4_bits, v6_bits }, &context).unwrap();
            let ban = mark(&marks, Some("api"), subject);
            let ip = ip.to_canonical();
            assert_eq!(marks.banned_prefix_lengths(ip).count(), 0);
            marks.set(&ban, NOW);
            let ids = marks.banned_prefix_lengths(ip).map(|length| keys.network_id(ip, length));
            assert_eq!(ids.collect::<Vec<Key>>(), [ban.id], "{}", ban.subject);
        }
    }
}

proptest! {
    /// Whatever users are called and addresses are, a request finds its ban.
    #[test]
    fn a_request_has_the_id_of_the_ban_of_its_subject(
        user in proptest::option::of("(user:|ip:)?\\PC{0,40}"),
        ip in proptest::option::of(any::<IpAddr>()),
        value in "\\PC{0,30}",
    ) {
        check(&request(user.as_deref(), ip, &value));
    }
}
