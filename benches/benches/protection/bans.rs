//! Decisions about clients that no ban and no factor touches, beside bans and factors of others.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use tidegate::engine::marks::MarkKind;
use tidegate::{Limiter, NewMark, Policy, Report, Request, Subject};
use tidegate_benches::{Candidate, compare};

const MANY: u32 = 1_000_000;
/// How many unmarked clients take turns.
const TURNS: usize = 4_096;

const BY_USER: &str = "{ tidegate: 1, name: b, limits: { a: { by: user, token_bucket: 1m/s } } }";
const OF_BEHAVIOUR: &str = "
tidegate: 1
name: b
limits: { a: { by: user, token_bucket: 1m/s } }
events: { order: {}, cancel: {} }
ratios: { cancels: { of: cancel, to: order, by: user, within: 1h, at_least: 1 } }
factors: { f: { by: user, good: [cancels < 50%], step: 0.1 every 1h, range: 0.5..2 } }
";
const BY_SEVERAL: &str = "
tidegate: 1
name: b
limits: { a: { by: user, token_bucket: 1m/s } }
identity: { attributes: { email: given } }
events: { bad: {} }
penalties: { p: { event: bad, by: [ip, email], within: 1h, ladder: { 9: { ban: 1h } } } }
";

pub(super) fn all() {
    users();
    kinds();
    factors();
}

fn limiter(text: &str, bans: impl IntoIterator<Item = Subject>) -> Limiter {
    let limiter =
        Limiter::builder().policy(Policy::parse("b.yaml", text).unwrap()).build().unwrap();
    for subject in bans {
        limiter.ban(&NewMark::new(subject)).unwrap();
    }
    limiter
}

fn user(n: u32) -> Subject {
    Subject::user(format!("user-{n}"))
}

fn address(n: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0b00_0000 + n).into()
}

/// Requests of clients without a ban.
fn innocents() -> Vec<Request<'static>> {
    let ip = |n: usize| IpAddr::from([192, 0, 2, u8::try_from(n % 256).unwrap_or(0)]);
    let one = |n| Request::new("GET", "/").user(format!("somebody-{n}")).ip(ip(n));
    (0..TURNS).map(|n| one(n).attribute("email", "somebody@example.com")).collect()
}

fn users() {
    let (none, one) = (limiter(BY_USER, []), limiter(BY_USER, [user(0)]));
    let many = limiter(BY_USER, (0..MANY).map(user));
    let innocent = Request::new("GET", "/").user("somebody");
    let guilty = Request::new("GET", "/").user("user-0");
    compare(
        "a decision beside bans",
        vec![
            Candidate::new("no ban", || none.check(&innocent).unwrap()),
            Candidate::new("1 ban, of another", || one.check(&innocent).unwrap()),
            Candidate::new("1,000,000 bans, of others", || many.check(&innocent).unwrap()),
            Candidate::new("1 ban, its own", || one.check(&guilty).unwrap()),
            Candidate::new("1,000,000 bans, one its own", || many.check(&guilty).unwrap()),
        ],
    );
    let flags = limiter(BY_USER, []);
    for n in 0..MANY / 4 {
        flags.flag("review", &NewMark::new(user(n))).unwrap();
    }
    let beside = [
        ("no ban", &none),
        ("1 ban, of another", &one),
        ("1,000,000 bans, of others", &many),
        ("250,000 flags, of others", &flags),
    ];
    compare_in_turn("decisions of 4,096 users in turn beside bans", &beside);
    compare_on_two_threads("8,192 decisions of them on two threads", &beside);
}

fn kinds() {
    let of_all = |n: u32| {
        let network = format!("{}/24", address(n << 8)).parse().unwrap();
        let email = ("email".to_owned(), format!("{n}@example.com"));
        let several = Subject::of_parts(vec![("ip".to_owned(), address(n).to_string()), email]);
        [
            user(n),
            Subject::client(format!("user:{n}")),
            Subject::ip(address(n)),
            Subject::network(network),
            several,
        ]
    };
    let none = limiter(BY_SEVERAL, []);
    let ip = limiter(BY_SEVERAL, [Subject::ip(address(0))]);
    let ips = limiter(BY_SEVERAL, (0..MANY).map(address).map(Subject::ip));
    let network = limiter(BY_SEVERAL, [of_all(0)[3].clone()]);
    let all = limiter(BY_SEVERAL, of_all(0));
    let all_many = limiter(BY_SEVERAL, (0..MANY / 5).flat_map(of_all));
    compare_in_turn(
        "decisions of 4,096 users in turn beside bans of other kinds",
        &[
            ("no ban", &none),
            ("1 address", &ip),
            ("1,000,000 addresses", &ips),
            ("1 network", &network),
            ("1 of each of five kinds", &all),
            ("200,000 of each of five kinds", &all_many),
        ],
    );
}

fn factors() {
    let (none, one, many) =
        (limiter(OF_BEHAVIOUR, []), limiter(OF_BEHAVIOUR, []), limiter(OF_BEHAVIOUR, []));
    let earn = |limiter: &Limiter, n: u32| {
        let request = Request::new("GET", "/").user(format!("user-{n}"));
        limiter.report(&Report::new("order", request)).unwrap();
    };
    earn(&one, 0);
    (0..MANY / 5).for_each(|n| earn(&many, n));
    let counts = [&one, &many].map(|limiter| limiter.marks().count(MarkKind::Factor));
    assert_eq!(counts, [1, 200_000]);
    compare_in_turn(
        "decisions of 4,096 users in turn beside factors that behaviour has earned",
        &[("no factor", &none), ("1, of another", &one), ("200,000, of others", &many)],
    );
}

fn compare_in_turn(title: &str, limiters: &[(&str, &Limiter)]) {
    let requests = innocents();
    compare(title, limiters.iter().map(|one| in_turn(one, &requests)).collect());
}

fn in_turn<'c>(
    &(name, limiter): &(&str, &'c Limiter),
    requests: &'c [Request<'_>],
) -> Candidate<'c> {
    let mut turn = 0;
    Candidate::new(name, move || {
        turn = (turn + 1) % TURNS;
        limiter.check(&requests[turn]).unwrap()
    })
}

fn compare_on_two_threads(title: &str, limiters: &[(&str, &Limiter)]) {
    let requests = innocents();
    compare(title, limiters.iter().map(|one| on_two_threads(one, &requests)).collect());
}

fn on_two_threads<'c>(
    &(name, limiter): &(&str, &'c Limiter),
    requests: &'c [Request<'_>],
) -> Candidate<'c> {
    let (one, other) = requests.split_at(TURNS / 2);
    let check = |requests: &[Request<'_>]| {
        for request in requests.iter().chain(requests) {
            drop(black_box(limiter.check(request).unwrap()));
        }
    };
    Candidate::new(name, move || {
        std::thread::scope(|scope| {
            scope.spawn(|| check(one));
            check(other);
        });
    })
}
