//! Answers, and upstreams that have none.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::world::{OPEN, World, raw_upstream, rest, saying, until, until_said};
use crate::wire::gateway::{GatewayBounds, Upstream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const COUNTED: &str = "{ tidegate: 1, name: p, limits: { all: { by: ip, sliding_window: 5/h } } }";

async fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

#[tokio::test]
async fn an_answer_loses_its_hop_headers_and_gets_the_limits() {
    let upstream = saying("HTTP/1.1 201 Created\r\nConnection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: x\r\nX-RateLimit-Limit: 99\r\nX-Own: 1\r\nContent-Length: 2\r\n\r\nok").await;
    let world = World::start(COUNTED, upstream).await;
    let answer = world.get("/", "").await.to_lowercase();
    assert!(answer.starts_with("http/1.1 201"), "{answer}");
    assert!(
        answer.contains("x-ratelimit-limit: 5\r\n") && !answer.contains("limit: 99"),
        "{answer}"
    );
    assert!(
        answer.contains("x-own: 1") && !answer.contains("x-hop") && !answer.contains("keep-alive"),
        "{answer}"
    );
    assert!(answer.ends_with("ok"));
}

#[tokio::test]
async fn an_upstream_that_cannot_be_reached_is_a_bad_gateway_with_limits() {
    let world = World::start(COUNTED, nobody().await).await;
    let answer = world.get("/", "").await.to_lowercase();
    assert!(answer.starts_with("http/1.1 502"), "{answer}");
    assert!(answer.contains("application/problem+json") && answer.contains("x-ratelimit-limit: 5"));
}

#[tokio::test]
async fn an_upstream_that_closes_or_babbles_is_a_bad_gateway() {
    for answer in [
        "",
        "HTTP/1.1 200",
        "hello\r\n\r\n",
        "HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ] {
        let world = World::start(OPEN, saying(answer).await).await;
        let got = world.get("/", "").await;
        assert!(got.starts_with("HTTP/1.1 502"), "{answer}: {got}");
    }
}

#[tokio::test]
async fn an_upstream_that_does_not_answer_is_a_timeout() {
    let upstream = raw_upstream(|mut stream| async move { drop(rest(&mut stream).await) }).await;
    let bounds = GatewayBounds { upstream: Duration::from_millis(50), ..GatewayBounds::default() };
    let world = World::bounded(OPEN, upstream, bounds).await;
    assert!(world.get("/", "").await.starts_with("HTTP/1.1 504"));
    let post = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
    assert!(world.say(post).await.starts_with("HTTP/1.1 504"));
}

#[tokio::test]
async fn an_answer_that_breaks_off_or_falls_silent_cuts_the_client_off() {
    let bounds = GatewayBounds { body: Duration::from_millis(50), ..GatewayBounds::default() };
    let sized = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhal";
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhal\r\n";
    let silent = raw_upstream(|mut stream| async move {
        until_said(&mut stream, "\r\n\r\n").await;
        let _ = stream
            .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhal\r\n")
            .await;
        rest(&mut stream).await;
    });
    for upstream in [saying(sized).await, saying(chunked).await, silent.await] {
        let answer = World::bounded(OPEN, upstream, bounds).await.get("/", "").await;
        assert!(answer.contains("hal") && !answer.ends_with("0\r\n\r\n"), "{answer}");
    }
}

#[tokio::test]
async fn answers_without_a_body_keep_their_length() {
    let upstream = saying("HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n").await;
    let world = World::start(OPEN, upstream).await;
    let answer = world.say("HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(
        answer.contains("content-length: 1234\r\n") && answer.ends_with("\r\n\r\n"),
        "{answer}"
    );
    for status in [
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\nETag: x\r\n\r\n",
    ] {
        let answer = World::start(OPEN, saying(status).await).await.get("/", "").await;
        assert!(answer.starts_with(&status[..12]) && answer.ends_with("\r\n\r\n"), "{answer}");
        assert!(!answer.contains("chunked"), "{answer}");
    }
}

#[tokio::test]
async fn connections_to_the_upstream_are_used_again() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let upstream = raw_upstream(move |mut stream| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            loop {
                until_said(&mut stream, "\r\n\r\n").await;
                let answer =
                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    })
    .await;
    let world = World::start(OPEN, upstream).await;
    for _ in 0..5 {
        assert!(world.get("/", "").await.starts_with("HTTP/1.1 200"));
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

/// Answers the first request of a connection and closes on the second once it has arrived.
async fn closes_on_the_second() -> SocketAddr {
    raw_upstream(|mut stream| async move {
        until_said(&mut stream, "\r\n\r\n").await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        let _ = stream.read_u8().await;
    })
    .await
}

#[tokio::test]
async fn what_may_be_repeated_is_when_a_kept_connection_ends() {
    let world = World::start(OPEN, closes_on_the_second().await).await;
    for _ in 0..3 {
        assert!(world.get("/", "").await.starts_with("HTTP/1.1 200"));
    }
    let post = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    assert!(world.say(post).await.starts_with("HTTP/1.1 502"));
}

#[tokio::test]
async fn a_client_that_goes_away_ends_the_upstreams_work() {
    let (sent, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (begun, over) = (Arc::clone(&sent), Arc::clone(&ended));
    let upstream = raw_upstream(move |mut stream| {
        let (begun, over) = (Arc::clone(&begun), Arc::clone(&over));
        async move {
            until_said(&mut stream, "\r\n\r\n").await;
            begun.fetch_add(1, Ordering::SeqCst);
            rest(&mut stream).await;
            over.fetch_add(1, Ordering::SeqCst);
        }
    })
    .await;
    let world = World::start(OPEN, upstream).await;
    let mut stream = world.connect().await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    until("the upstream works", || sent.load(Ordering::SeqCst) == 1).await;
    drop(stream);
    until("the upstream is let go", || ended.load(Ordering::SeqCst) == 1).await;
}

#[test]
fn an_upstream_is_a_host_without_a_path() {
    for url in ["http://a.test:1", "https://a.test", "http://[::1]:3000/"] {
        assert!(Upstream::parse(url).is_ok(), "{url}");
    }
    for url in ["a.test", "ftp://a.test", "http://a.test/x", "http://u@a.test", "http://a/?q", ""] {
        assert!(Upstream::parse(url).is_err(), "{url}");
    }
    for url in ["http://a.test:99999", "https://a.test:0", "http://a.test:", "http://[::1]:65536"] {
        let error = Upstream::parse(url).err().unwrap().to_string();
        assert!(error.ends_with("expected a URL with a port up to 65535"), "{error}");
    }
}

#[tokio::test]
async fn the_upstreams_own_rate_limit_lists_are_kept_and_added_to() {
    let upstream = saying("HTTP/1.1 200 OK\r\nRateLimit-Policy: \"theirs\";q=9;w=1\r\nRateLimit: \"theirs\";r=8;t=1\r\nContent-Length: 2\r\n\r\nok").await;
    let world = World::start(COUNTED, upstream).await;
    let answer = world.get("/", "").await.to_lowercase();
    for line in [
        "ratelimit-policy: \"theirs\";q=9;w=1",
        "ratelimit-policy: \"all\";q=5;w=3600",
        "ratelimit: \"theirs\";r=8;t=1",
        "ratelimit: \"all\";r=4;t=3600",
    ] {
        assert!(answer.contains(&format!("{line}\r\n")), "{line}: {answer}");
    }
}

const BROWSER: &str = "Accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n";
const ONCE: &str = "by: ip, fixed_window: 1/h, message: '<b>slow</b>'";

#[tokio::test]
async fn a_browser_reads_refusals_and_errors_on_a_page_and_programs_as_problem_details() {
    let policy = format!("{{ tidegate: 1, name: p, limits: {{ all: {{ {ONCE} }} }} }}");
    let world = World::start(&policy, nobody().await).await;
    let unreachable = world.get("/", BROWSER).await;
    assert!(unreachable.starts_with("HTTP/1.1 502"), "{unreachable}");
    assert!(unreachable.contains("<h1>Not available right now</h1>"), "{unreachable}");
    let refused = world.get("/", BROWSER).await;
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
    assert!(refused.contains("<p>&lt;b&gt;slow&lt;/b&gt;</p>"), "{refused}");
    for answer in [unreachable, refused] {
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let head = head.to_lowercase();
        assert!(head.contains("content-type: text/html; charset=utf-8"), "{head}");
        assert!(head.contains("content-security-policy: default-src 'none'; style-src 'sha256-"));
        assert!(head.contains("x-ratelimit-limit: 1") && head.contains("vary: accept"), "{head}");
        assert!(!body.contains("<script"), "{body}");
    }
    let for_programs = world.get("/", "Accept: application/json, text/html\r\n").await;
    assert!(for_programs.contains("application/problem+json"), "{for_programs}");
}

#[tokio::test]
async fn a_body_of_the_policy_is_for_browsers_too() {
    let policy = format!(
        "{{ tidegate: 1, name: p, limits: {{ all: {{ {ONCE} }} }}, response: {{ body: {{ a: 1 }} }} }}"
    );
    let world = World::start(&policy, nobody().await).await;
    world.get("/", BROWSER).await;
    let refused = world.get("/", BROWSER).await;
    assert!(refused.contains("application/json") && refused.ends_with("{\"a\":1}"), "{refused}");
}

#[tokio::test]
async fn answers_are_timed_and_missing_ones_counted_by_reason() {
    let page = |world: &World| world.app.metrics.render(&crate::telemetry::Present::default());
    let answering =
        World::start(OPEN, saying("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n").await);
    let answering = answering.await;
    answering.get("/", "").await;
    let counted = page(&answering);
    assert!(counted.contains("tidegate_upstream_seconds_count 1\n"), "{counted}");
    assert!(!counted.contains("tidegate_upstream_errors_total{reason=\"broken\"} 1"), "{counted}");

    for (upstream, reason) in [
        (nobody().await, "unreachable"),
        (saying("").await, "broken"),
        (saying("HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n").await, "broken"),
        (
            raw_upstream(|mut stream| async move { drop(rest(&mut stream).await) }).await,
            "timed_out",
        ),
    ] {
        let bounds =
            GatewayBounds { upstream: Duration::from_millis(200), ..GatewayBounds::default() };
        let world = World::bounded(OPEN, upstream, bounds).await;
        world.get("/", "").await;
        let line = format!("tidegate_upstream_errors_total{{reason=\"{reason}\"}} 1\n");
        assert!(page(&world).contains(&line), "{line}: {}", page(&world));
    }
}
