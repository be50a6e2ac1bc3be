//! Headers that only a proxy may write: user, tier, internal and trusted attributes; and the
//! forwarding headers that the upstream receives.

use crate::support::{Answer, Daemon, Upstream};

use super::World;

const POLICY: &str = "
tidegate: 1
name: live
tiers: [free, gold]
identity:
  trusted_proxies: [TRUSTED]
  user: { header: X-User-Id }
  tier: { header: X-User-Tier }
  default_tier: free
  internal: { header: X-Internal, secret_env: LIVE_INTERNAL_SECRET }
  attributes:
    kyc: { header: X-Kyc-Level, trusted: true }
    api_key: { header: X-Api-Key }
    page: { query: page }
exempt: [{ internal: true }]
limits:
  each: { by: client, total: { gold: 3000, free: 2000, default: 1000 } }
  kyc:  { by: kyc, missing: skip, total: 10 }
  page: { by: page, total: 1000, shadow: true }
";
const CLAIMS: [(&str, &str); 4] = [
    ("X-User-Id", "u1"),
    ("X-User-Tier", "gold"),
    ("X-Internal", "open sesame"),
    ("X-Kyc-Level", "4"),
];

fn start(trusted: &str, upstream: &Upstream) -> Daemon {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    std::fs::write(&path, POLICY.replace("TRUSTED", trusted)).unwrap();
    let mut command = Daemon::command();
    command.arg(&path).args(["--gateway", "127.0.0.1:0", "--upstream", &upstream.url()]);
    let mut daemon = Daemon::start(command.env("LIVE_INTERNAL_SECRET", "open sesame"));
    daemon.folder = Some(folder);
    daemon
}

fn get(daemon: &Daemon, headers: &[(&str, &str)]) -> Answer {
    daemon.gateway().send("GET", "/a", headers, None)
}

#[test]
fn identity_headers_of_an_untrusted_peer_neither_count_nor_reach_the_upstream() {
    let upstream = Upstream::start();
    let daemon = start("10.0.0.0/8", &upstream);
    let spellings = CLAIMS.map(|(name, value)| (name.replace('-', "_"), value));
    let lookalikes: Vec<(&str, &str)> =
        spellings.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    for (nth, headers) in [&CLAIMS[..], &lookalikes].into_iter().enumerate() {
        let answer = get(&daemon, headers);
        // Anonymous, by address, with no KYC level, and not exempt.
        assert_eq!(answer.header("x-ratelimit-limit"), Some("1000"), "{answer:?}");
        let remaining = (999 - nth).to_string();
        assert_eq!(answer.header("x-ratelimit-remaining"), Some(remaining.as_str()));
        let seen = upstream.last();
        for (name, _) in headers {
            assert_eq!(seen.header(name), None, "{:?}", seen.headers);
        }
    }
    get(&daemon, &[("X-Api-Key", "k1"), ("X-User", "u1")]);
    let seen = upstream.last();
    assert_eq!(seen.header("x-api-key"), Some("k1"), "whatever is not for proxies passes");
    assert_eq!(seen.header("x-user"), Some("u1"));
}

#[test]
fn identity_headers_of_a_trusted_proxy_count_and_reach_the_upstream() {
    let upstream = Upstream::start();
    let daemon = start("127.0.0.0/8", &upstream);
    let user = get(&daemon, &[("X-User-Id", "u1"), ("X-User-Tier", "gold")]);
    assert_eq!(user.header("x-ratelimit-limit"), Some("3000"));
    assert_eq!(upstream.last().header("x-user-id"), Some("u1"));
    assert_eq!(upstream.last().header("x-user-tier"), Some("gold"));
    let unknown_tier = get(&daemon, &[("X-User-Id", "u2"), ("X-User-Tier", "platinum")]);
    assert_eq!(unknown_tier.header("x-ratelimit-limit"), Some("2000"));
    let known = get(&daemon, &[("X-Kyc-Level", "4")]);
    assert_eq!(known.header("x-ratelimit-limit"), Some("10"));
    let internal = get(&daemon, &[("X-Internal", "open sesame")]);
    assert_eq!(internal.header("x-ratelimit-limit"), None, "internal callers are exempt");
    let guessed = get(&daemon, &[("X-Internal", "open sesam")]);
    assert_eq!(guessed.header("x-ratelimit-limit"), Some("1000"));
}

#[test]
fn a_fact_that_is_said_twice_is_malformed_for_the_upstream_could_believe_the_other() {
    let upstream = Upstream::start();
    let daemon = start("127.0.0.0/8", &upstream);
    for name in ["X-User-Id", "X-User-Tier", "X-Internal", "X-Kyc-Level", "X-Api-Key"] {
        let lower = name.to_ascii_lowercase();
        let answer = get(&daemon, &[(name, "one"), ("X-Other", "1"), (lower.as_str(), "two")]);
        assert_eq!(answer.status, 400, "{name}: {}", answer.text());
    }
    assert_eq!(upstream.count(), 0);
    assert_eq!(get(&daemon, &[("Accept", "a"), ("Accept", "b")]).status, 200);
}

#[test]
fn an_attribute_that_a_query_says_twice_is_malformed_too() {
    let upstream = Upstream::start();
    let daemon = start("127.0.0.0/8", &upstream);
    let answer = daemon.gateway().get("/a?page=1&other=1&p%61ge=2");
    assert_eq!((answer.status, &answer.json()["field"]), (400, &"attributes.page".into()));
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    assert_eq!(upstream.count(), 0);
    assert_eq!(daemon.gateway().get("/a?other=1&other=2&page=1").status, 200);
    let asked = serde_json::json!({ "method": "GET", "path": "/a?page=1&page=2" });
    assert_eq!(daemon.check(&asked).json()["field"], "attributes.page");
}

#[test]
fn repeated_identity_headers_of_an_untrusted_peer_are_dropped() {
    let upstream = Upstream::start();
    let daemon = start("10.0.0.0/8", &upstream);
    let answer = get(&daemon, &[("X-User-Id", "one"), ("X-User-Id", "two")]);
    assert_eq!((answer.status, answer.header("x-ratelimit-limit")), (200, Some("1000")));
    assert_eq!(upstream.last().header("x-user-id"), None);
}

#[test]
fn a_connection_line_does_not_take_away_what_a_proxy_says() {
    let upstream = Upstream::start();
    let daemon = start("127.0.0.0/8", &upstream);
    let lines = "X-User-Id, X-User-Tier, X-Forwarded-For, X-Mine, close";
    let headers = [
        ("Connection", lines),
        ("X-User-Id", "u1"),
        ("X-User-Tier", "gold"),
        ("X-Forwarded-For", "192.0.2.7"),
        ("X-Mine", "1"),
    ];
    assert_eq!(get(&daemon, &headers).header("x-ratelimit-limit"), Some("3000"));
    let seen = upstream.last();
    assert_eq!(seen.header("x-user-id"), Some("u1"));
    assert_eq!(seen.header("x-forwarded-for"), Some("192.0.2.7, 127.0.0.1"));
    assert_eq!(seen.header("x-mine"), None, "this one ends here, as its sender asked");
}

#[test]
fn the_upstream_learns_the_way_that_a_request_came() {
    let stranger = World::new("{}");
    stranger.send(&[
        b"X-Forwarded-For: 6.6.6.6",
        b"X-Forwarded-Proto: https",
        b"X-Forwarded-Host: evil.example",
        b"X-Forwarded-Port: 1",
        b"X-Forwarded-Prefix: /admin",
    ]);
    let seen = stranger.upstream.last();
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("http"));
    assert_eq!(seen.header("x-forwarded-host"), Some("shop.example"));
    assert_eq!(seen.header("host"), Some("shop.example"));
    assert_eq!(seen.header("x-forwarded-port"), None);
    assert_eq!(seen.header("x-forwarded-prefix"), None);

    let proxy = World::new("{ trusted_proxies: [127.0.0.0/8] }");
    proxy.send(&[
        b"X-Forwarded-For: 6.6.6.6",
        b"X-Forwarded-For: 192.0.2.7",
        b"X-Forwarded-Proto: https",
        b"X-Forwarded-Host: www.example",
    ]);
    let seen = proxy.upstream.last();
    assert_eq!(seen.header("x-forwarded-for"), Some("6.6.6.6, 192.0.2.7, 127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("https"));
    assert_eq!(seen.header("x-forwarded-host"), Some("www.example"));
    let lines = seen.headers.iter().filter(|(name, _)| name == "x-forwarded-for").count();
    assert_eq!(lines, 1);
}
