//! Bans and flags that operators set: whom they touch, where, and for how long.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

use std::time::Duration;

use tidegate::clock::{Clock as _, FakeClock};
use tidegate::engine::marks::MarkKind;
use tidegate::{HashKey, Limiter, NewMark, Outcome, Policy, Request, Subject};

const ONE: &str = "
tidegate: 1
name: one
identity: { attributes: { email: given } }
events: { bad: {} }
penalties: { p: { event: bad, by: email, within: 1h, ladder: { 9: { ban: 1h } } } }
";

fn limiter() -> (Limiter, FakeClock) {
    let clock = FakeClock::at_unix_seconds(1_767_603_600);
    let parse =
        |text: &str| Policy::parse("p.yaml", text).unwrap_or_else(|found| panic!("{found}"));
    let other = "{tidegate: 1, name: other, identity: {ipv6_prefix: 56}}";
    let builder = Limiter::builder().policy(parse(ONE)).policy(parse(other)).clock(clock.clone());
    (builder.build().unwrap(), clock)
}

fn get() -> Request<'static> {
    Request::new("GET", "/")
}

fn from(ip: &str) -> Request<'static> {
    get().ip(ip.parse().unwrap())
}

fn is_banned(limiter: &Limiter, request: &Request<'_>) -> bool {
    limiter.check(request).unwrap().outcome == Outcome::Banned
}

#[test]
fn a_ban_holds_in_all_policies_or_in_one_until_it_ends_or_is_taken_away() {
    let (limiter, clock) = limiter();
    let hour = Duration::from_secs(3_600);
    limiter.ban(&NewMark::new(Subject::user("everywhere"))).unwrap();
    let order = NewMark::new(Subject::user("here")).policy("one").lasts(hour).reason("spam");
    let mark = limiter.ban(&order).unwrap();
    assert_eq!((&*mark.source, &*mark.reason), ("operator", "spam"));
    let both = |user: &'static str| {
        [
            is_banned(&limiter, &get().user(user)),
            is_banned(&limiter, &get().user(user).policy("other")),
        ]
    };
    assert_eq!((both("everywhere"), both("here")), ([true, true], [true, false]));
    clock.advance(hour);
    assert_eq!((both("everywhere"), both("here")), ([true, true], [false, false]));
    assert!(limiter.unban(None, &Subject::user("everywhere")));
    assert!(!limiter.unban(None, &Subject::user("everywhere")));
    assert_eq!(both("everywhere"), [false, false]);
}

#[test]
fn addresses_networks_clients_and_what_penalties_ban_by_can_be_banned() {
    let (limiter, _) = limiter();
    let ban = |subject| limiter.ban(&NewMark::new(subject)).map(|_| ());
    ban(Subject::ip("192.0.2.1".parse().unwrap())).unwrap();
    ban(Subject::network("198.51.100.0/25".parse().unwrap())).unwrap();
    ban(Subject::network("2001:db8::/32".parse().unwrap())).unwrap();
    ban(Subject::client("ip:203.0.113.1")).unwrap();
    ban(Subject::client("user:u1")).unwrap();
    ban(Subject::part("email", "a@b.c")).unwrap();
    for request in [
        from("192.0.2.1").user("anybody"),
        from("::ffff:192.0.2.1"),
        from("198.51.100.127"),
        from("2001:db8:1:2::3"),
        from("203.0.113.1"),
        from("192.0.2.9").user("u1"),
        get().attribute("email", "a@b.c"),
    ] {
        assert!(is_banned(&limiter, &request), "{request:?}");
    }
    for request in [
        from("192.0.2.2"),
        from("198.51.100.128"),
        from("2001:db9::1"),
        from("203.0.113.1").user("u2"),
        get().user("ip:203.0.113.1"),
        get().user("192.0.2.1"),
    ] {
        assert!(!is_banned(&limiter, &request), "{request:?}");
    }
}

#[test]
fn a_subject_of_any_length_can_be_banned_and_pardoned() {
    let (limiter, clock) = limiter();
    let (long, other) = ("u".repeat(60_000), format!("{}!", "u".repeat(60_000)));
    for (subject, request, another) in [
        (Subject::user(&*long), get().user(&*long), get().user(&*other)),
        (Subject::client(format!("user:{long}")), get().user(&*long), get().user(&*other)),
        (
            Subject::part("email", &*long),
            get().attribute("email", &*long),
            get().attribute("email", &*other),
        ),
    ] {
        let mark = limiter.ban(&NewMark::new(subject.clone())).unwrap();
        assert!(mark.subject.to_string().len() < 300);
        assert!(is_banned(&limiter, &request) && !is_banned(&limiter, &another));
        assert!(limiter.unban(None, &subject) && !is_banned(&limiter, &request));
    }
    assert!(limiter.marks().export(clock.now()).is_empty());
}

#[test]
fn an_ipv6_client_is_its_network_in_one_policy_and_in_all() {
    let (limiter, _) = limiter();
    let address = Subject::ip("2001:db8:1:2::3".parse().unwrap());
    let neighbour = || from("2001:db8:1:2:ffff::1");
    limiter.ban(&NewMark::new(address.clone()).policy("one")).unwrap();
    assert!(is_banned(&limiter, &neighbour()));
    assert!(!is_banned(&limiter, &neighbour().policy("other")));
    assert!(limiter.unban(Some("one"), &address));
    limiter.ban(&NewMark::new(address.clone())).unwrap();
    assert!(is_banned(&limiter, &neighbour()) && is_banned(&limiter, &neighbour().policy("other")));
    assert!(!is_banned(&limiter, &from("2001:db8:1:3::1")));
    assert!(limiter.unban(None, &address));
    assert!(!is_banned(&limiter, &neighbour()));
}

#[test]
fn an_ipv6_client_is_its_network_among_other_parts_too() {
    let text = "
tidegate: 1
name: one
events: { bad: {} }
penalties: { p: { event: bad, by: [user, ip], within: 1h, ladder: { 9: { ban: 1h } } } }
";
    let limiter = Limiter::new(Policy::parse("p.yaml", text).unwrap());
    let parts = [("user", "u"), ("ip", "2001:db8:1:2::3")];
    let parts = parts.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let both = Subject::of_parts(parts.to_vec());
    limiter.ban(&NewMark::new(both.clone())).unwrap();
    assert!(is_banned(&limiter, &from("2001:db8:1:2::9").user("u")));
    assert!(!is_banned(&limiter, &from("2001:db8:1:3::9").user("u")));
    assert!(limiter.unban(None, &both));
    assert!(!is_banned(&limiter, &from("2001:db8:1:2::9").user("u")));
}

#[test]
fn where_policies_know_an_ipv6_client_by_different_prefixes_one_must_be_named() {
    let (limiter, _) = limiter();
    let client = NewMark::new(Subject::client("ip:2001:db8::5"));
    assert_eq!(limiter.ban(&client).unwrap_err().field, "policy");
    limiter.ban(&client.policy("other")).unwrap();
    assert!(is_banned(&limiter, &from("2001:db8:0:1::1").policy("other")));
    limiter.ban(&NewMark::new(Subject::client("ip:192.0.2.1"))).unwrap();
}

#[test]
fn a_ban_by_an_attribute_holds_when_the_penalty_that_made_it_is_gone() {
    let (limiter, clock) = limiter();
    let order = NewMark::new(Subject::part("email", "a@b.c")).policy("one");
    limiter.ban(&order.lasts(Duration::from_secs(3_600))).unwrap();
    let reload = |attributes: &str| {
        let text = format!("{{tidegate: 1, name: one, identity: {{attributes: {attributes}}}}}");
        let policy = Policy::parse("p.yaml", &text).unwrap_or_else(|found| panic!("{found}"));
        limiter.replace_policies(vec![policy.into()]).unwrap();
    };
    let request = get().attribute("email", "a@b.c");
    for _ in 0..2 {
        reload("{other: given, email: given}");
        assert!(is_banned(&limiter, &request));
        assert!(!is_banned(&limiter, &get().attribute("other", "a@b.c")));
    }
    clock.advance(Duration::from_secs(3_600));
    assert!(!is_banned(&limiter, &request));
    reload("{email: given}");
    let again = limiter.ban(&NewMark::new(Subject::part("email", "a@b.c")));
    assert_eq!(again.unwrap_err().field, "key", "nothing bans by it any more");
}

#[test]
fn what_no_request_is_known_by_is_refused_and_so_is_a_policy_that_is_not_there() {
    let (limiter, _) = limiter();
    let field = |order: NewMark| limiter.ban(&order).unwrap_err().field;
    assert_eq!(field(NewMark::new(Subject::part("room", "r1"))), "key");
    assert_eq!(field(NewMark::new(Subject::part("email", "a@b.c")).policy("other")), "key");
    assert_eq!(field(NewMark::new(Subject::user("u")).policy("third")), "policy");
    for (name, value) in [
        ("ip", "nowhere"),
        ("ip", "10.0.0.0/8"),
        ("ip", "2001:db8::/32"),
        ("client", "u1"),
        ("client", "ip:u1"),
        ("client", "ip:10.0.0.0/8"),
        ("network", "u1"),
    ] {
        let found = field(NewMark::new(Subject::part(name, value)));
        assert_eq!(found, format!("key.{name}"), "{value}");
    }
    assert_eq!(limiter.marks().count(MarkKind::Ban), 0);
}

#[test]
fn a_subject_may_have_several_flags_and_is_not_refused_for_them() {
    let (limiter, clock) = limiter();
    let order = NewMark::new(Subject::user("u")).policy("one");
    for flag in ["review", "wash-trading", "review"] {
        limiter.flag(flag, &order).unwrap();
    }
    assert_eq!(limiter.marks().list(MarkKind::Flag, None, 9, clock.now()).len(), 2);
    assert!(!is_banned(&limiter, &get().user("u")));
    assert!(limiter.unflag(Some("one"), "review", &Subject::user("u")));
    let left = limiter.marks().list(MarkKind::Flag, None, 9, clock.now());
    assert_eq!(left[0].flag.as_deref(), Some("wash-trading"));
    assert!(limiter.unmark(MarkKind::Flag, left[0].id));
}

#[test]
fn bans_outlive_reloads_and_another_secret() {
    let (limiter, _) = limiter();
    limiter.ban(&NewMark::new(Subject::user("u")).policy("one")).unwrap();
    limiter.replace_policies(limiter.policies()).unwrap();
    assert!(is_banned(&limiter, &get().user("u")));
    limiter.set_hash_key(HashKey::new([5; 16]));
    assert!(is_banned(&limiter, &get().user("u")));
}

#[test]
fn a_full_table_refuses_an_order_and_keeps_what_it_has() {
    let policy = Policy::parse("p.yaml", ONE).unwrap();
    let limiter = Limiter::builder().policy(policy).max_bans(1).build().unwrap();
    limiter.ban(&NewMark::new(Subject::user("first"))).unwrap();
    assert_eq!(limiter.ban(&NewMark::new(Subject::user("second"))).unwrap_err().field, "key");
    assert!(
        is_banned(&limiter, &get().user("first")) && !is_banned(&limiter, &get().user("second"))
    );
    assert_eq!(limiter.marks().refused(MarkKind::Ban), 1);
}
