//! Inbound requests: targets, hosts and headers.

use std::sync::atomic::Ordering;

use super::world::{OPEN, World, echo, rest, until_said};
use tokio::io::AsyncWriteExt;

const TRUSTING: &str = "
tidegate: 1
name: trusting
identity:
  trusted_proxies: [127.0.0.0/8]
  user: { header: X-User-Id }
limits:
  per-user: { by: user, sliding_window: 1/h }
";

const CLAIMS: &str = "
tidegate: 1
name: claims
identity:
  user: { header: X-User-Id }
  tier: { header: X-User-Tier }
  attributes:
    kyc: { header: X-Kyc, trusted: true }
    key: { header: X-Api-Key }
tiers: [free]
limits:
  per-ip: { by: ip, sliding_window: 1000/h }
";

fn status(answer: &str) -> &str {
    answer.get(9..12).unwrap_or(answer)
}

#[tokio::test]
async fn the_path_that_was_matched_is_forwarded_without_dots_and_with_one_slash_at_its_start() {
    let world = World::start(OPEN, echo().await.0).await;
    for (sent, forwarded) in [
        ("/a/../b//c;v=1/%41?x=/../y", "GET /b//c;v=1/%41?x=/../y HTTP/1.1"),
        ("/%2e%2e/x", "GET /x HTTP/1.1"),
        ("http://a.test/x/./y", "GET /x/y HTTP/1.1"),
        ("http://A.TEST", "GET / HTTP/1.1"),
        ("//evil.test/x", "GET /evil.test/x HTTP/1.1"),
        ("/.//.//x", "GET /x HTTP/1.1"),
    ] {
        let answer = world.get(sent, "").await;
        assert!(answer.contains(forwarded), "{sent}: {answer}");
        assert!(answer.contains("host: a.test\n"), "{answer}");
    }
    let answer = world.say("OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(answer.contains("OPTIONS * HTTP/1.1"), "{answer}");
}

#[tokio::test]
async fn targets_and_hosts_with_two_meanings_are_refused() {
    let (upstream, hits) = echo().await;
    let world = World::start(OPEN, upstream).await;
    for (head, expected) in [
        ("GET /a%2fb HTTP/1.1\r\nHost: a\r\n", "400"),
        ("GET /a%00 HTTP/1.1\r\nHost: a\r\n", "400"),
        ("GET http://b.test/ HTTP/1.1\r\nHost: a.test\r\n", "400"),
        ("GET http://u@a.test/ HTTP/1.1\r\nHost: a.test\r\n", "400"),
        ("GET * HTTP/1.1\r\nHost: a\r\n", "400"),
        ("GET a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: a/b\r\n", "400"),
        ("GET / HTTP/1.1\r\n", "400"),
        ("CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n", "405"),
    ] {
        let answer = world.say(&format!("{head}Connection: close\r\n\r\n")).await;
        assert_eq!(status(&answer), expected, "{head}: {answer}");
    }
    assert_eq!(hits.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn requests_that_servers_could_frame_differently_are_refused() {
    let (upstream, hits) = echo().await;
    let world = World::start(OPEN, upstream).await;
    for lines in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: +5\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "X: a\r\n b\r\n",
        "X : a\r\n",
        "X: a\rb\r\n",
        "X: a\0b\r\n",
        "X: a\nContent-Length: 5\r\n",
    ] {
        let text = format!(
            "POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
        );
        let answer = world.say(&text).await;
        assert_eq!(status(&answer), "400", "{lines:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{lines:?}: {answer}");
    }
    assert_eq!(hits.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_later_request_on_a_connection_is_watched_as_the_first() {
    let world = World::start(OPEN, echo().await.0).await;
    let mut stream = world.connect().await;
    let first = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nlast";
    stream.write_all(first.as_bytes()).await.unwrap();
    until_said(&mut stream, "body: last").await;
    let second = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    stream.write_all(second.as_bytes()).await.unwrap();
    assert_eq!(status(&rest(&mut stream).await), "400");
}

#[tokio::test]
async fn broken_chunks_never_make_a_request() {
    let world = World::start(OPEN, echo().await.0).await;
    for chunks in
        ["5\r\nhelloX\r\n0\r\n\r\n", "zz\r\nhello\r\n0\r\n\r\n", "-1\r\nhello\r\n0\r\n\r\n"]
    {
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let answer = world.say(&format!("{head}{chunks}")).await;
        assert!(answer.is_empty() || status(&answer) == "400", "{chunks}: {answer}");
    }
}

#[tokio::test]
async fn headers_of_this_hop_end_here_and_connection_takes_away_no_others() {
    let world = World::start(CLAIMS, echo().await.0).await;
    let lines = "Connection: X-Hop, Host, X-Forwarded-For, Authorization\r\nX-Hop: 1\r\nAuthorization: b\r\n\
                 Keep-Alive: 1\r\nProxy-Connection: x\r\nProxy-Authorization: x\r\nTE: trailers\r\nTrailer: x\r\n\
                 Upgrade: websocket\r\nExpect: 100-continue\r\n";
    let answer = world.get("/", lines).await.to_lowercase();
    for gone in
        ["x-hop", "keep-alive:", "proxy-", "\nte:", "trailer", "upgrade", "expect", "\nconnection:"]
    {
        let echoed = answer.split("\r\n\r\n").nth(1).unwrap();
        assert!(!echoed.contains(gone), "{gone}: {answer}");
    }
    for kept in ["host: a.test", "x-forwarded-for: 127.0.0.1\n", "authorization: b"] {
        assert!(answer.contains(kept), "{kept}: {answer}");
    }
}

#[tokio::test]
async fn a_stranger_speaks_for_nobody_not_even_to_the_upstream() {
    let world = World::start(CLAIMS, echo().await.0).await;
    let lines = "X-User-Id: root\r\nX-User-Tier: free\r\nX-Kyc: 3\r\nX-Api-Key: k\r\nX-Forwarded-For: 6.6.6.6\r\n\
                 X_User_Id: root\r\nX_Forwarded_For: 6.6.6.6\r\nX_Own: mine\r\n\
                 X-Forwarded-Proto: https\r\nX-Forwarded-Host: evil\r\nX-Real-IP: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\n";
    let answer = world.get("/", lines).await;
    for gone in ["root", "x-user-tier", "x-kyc", "6.6.6.6", "evil"] {
        assert!(!answer.contains(gone), "{gone}: {answer}");
    }
    for line in [
        "x-api-key: k\n",
        "x_own: mine\n",
        "x-forwarded-for: 127.0.0.1\n",
        "x-forwarded-proto: http\n",
        "x-forwarded-host: a.test\n",
    ] {
        assert!(answer.contains(line), "{line}: {answer}");
    }
}

#[tokio::test]
async fn a_trusted_proxy_is_passed_on_with_its_own_hop_added() {
    let world = World::start(TRUSTING, echo().await.0).await;
    let lines = "X-User-Id: u1\r\nX-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: 203.0.113.9\r\n\
                 X-Forwarded-Proto: https\r\nX-Forwarded-Host: b.test\r\nX-Request-Id: r1\r\n";
    let answer = world.get("/", lines).await;
    for line in [
        "x-user-id: u1\n",
        "x-forwarded-for: 6.6.6.6, 203.0.113.9, 127.0.0.1\n",
        "x-forwarded-proto: https\n",
        "x-forwarded-host: b.test\n",
        "x-request-id: r1\n",
    ] {
        assert!(answer.contains(line), "{line}: {answer}");
    }
    let refused = world.get("/", "X-User-Id: u1\r\n").await;
    assert_eq!(status(&refused), "429", "{refused}");
}

#[tokio::test]
async fn a_request_without_an_id_gets_one() {
    let world = World::start(OPEN, echo().await.0).await;
    let answer = world.get("/", "").await;
    let id = answer.split("x-request-id: ").nth(1).unwrap().split('\n').next().unwrap();
    assert!(id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()), "{id}");
}

#[tokio::test]
async fn http_1_0_without_a_host_reaches_the_upstream_under_its_own() {
    let (upstream, _) = echo().await;
    let world = World::start(OPEN, upstream).await;
    let answer = world.say("GET / HTTP/1.0\r\n\r\n").await;
    assert!(answer.contains(&format!("host: {upstream}\n")), "{answer}");
}

const READ: &str = "
tidegate: 1
name: read
operations:
  sell: { match: POST /rpc, header: { X-Action: sell } }
limits:
  per-device: { by: header.X-Device, sliding_window: 1000/h, missing: skip }
  sales: { when: { operation: sell }, by: ip, sliding_window: 1000/h }
";

#[tokio::test]
async fn a_header_that_the_policy_reads_comes_once_and_under_one_name() {
    let (upstream, hits) = echo().await;
    let world = World::start(READ, upstream).await;
    for lines in ["X-Device: a\r\nx-device: b\r\n", "X-Action: buy\r\nX-Action: sell\r\n"] {
        assert_eq!(status(&world.get("/rpc", lines).await), "400", "{lines}");
    }
    assert_eq!(hits.load(Ordering::SeqCst), 0);
    let lines = "X_Device: b\r\nX-Device: a\r\nX_Action: sell\r\nX-Own: 1\r\nX-Own: 2\r\n";
    let answer = world.get("/rpc", lines).await;
    for gone in ["x_device", "x_action"] {
        assert!(!answer.contains(gone), "{gone}: {answer}");
    }
    for kept in ["x-device: a\n", "x-own: 1\n", "x-own: 2\n"] {
        assert!(answer.contains(kept), "{kept}: {answer}");
    }
}

#[tokio::test]
async fn of_names_that_differ_in_dashes_and_underscores_only_the_one_that_is_read_is_passed_on() {
    let policy = "
tidegate: 1
name: underscored
identity:
  user: { header: x_user }
  attributes: { org: { header: X_Org-Id }, one: { header: x_one }, other: { header: x-one } }
limits:
  per-ip: { by: ip, sliding_window: 1000/h }
";
    let trusting = policy.replace("identity:", "identity:\n  trusted_proxies: [127.0.0.0/8]");
    let lines = "X-User: root\r\nx_user: u1\r\nX-Org_Id: 2\r\nX-Org-Id: 3\r\nX_ORG_ID: 4\r\n\
        X_Org-Id: 1\r\nx_one: 1\r\nx-one: 2\r\nX_Forwarded-For: 9.9.9.9\r\nx_own: 1\r\nx-own: 2\r\n";
    for (policy, passes_user) in [(policy, false), (trusting.as_str(), true)] {
        let answer = World::start(policy, echo().await.0).await.get("/", lines).await;
        for gone in ["x-user:", "x-org_id:", "x-org-id:", "x_org_id:", "9.9.9.9"] {
            assert!(!answer.contains(gone), "{gone} {answer}");
        }
        for kept in ["x_org-id: 1\n", "x_one: 1\n", "x-one: 2\n", "x_own: 1\n", "x-own: 2\n"] {
            assert!(answer.contains(kept), "{kept} {answer}");
        }
        assert_eq!(answer.contains("x_user: u1\n"), passes_user, "{answer}");
    }
}

const READS_BODIES: &str = "
tidegate: 1
name: claims
identity:
  attributes: { email: { body: /email } }
limits:
  per-email: { by: email, sliding_window: 1000/h, missing: skip }
";

#[tokio::test]
async fn a_request_is_decided_by_the_policy_that_it_was_read_for() {
    let world = World::start(READS_BODIES, echo().await.0).await;
    let mut stream = world.connect().await;
    let head = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\n\
                Content-Length: 2\r\nExpect: 100-continue\r\nAuthorization: Bearer x\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    // Said once the body is read ahead, which the first policy has asked for.
    until_said(&mut stream, "HTTP/1.1 100 Continue\r\n\r\n").await;
    let needs_claims = "{ tidegate: 1, name: later, identity: { user: { jwt: sub } }, limits: { one: { by: user, total: 1, missing: refuse } } }";
    let policy = tidegate::Policy::parse("test.yaml", needs_claims).unwrap();
    world.app.put_in_force(&[policy.into()], crate::notify::Targets::default()).unwrap();
    stream.write_all(b"{}").await.unwrap();
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("body: {}"), "{answer}");
    assert_eq!(status(&world.get("/", "").await), "400");
}
