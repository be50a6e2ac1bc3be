//! Request bodies: read only where they must be, and passed on whole.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::world::{OPEN, World, echo, rest, until_said};
use crate::wire::gateway::GatewayBounds;
use tokio::io::AsyncWriteExt;

const BY_EMAIL: &str = "
tidegate: 1
name: by-email
identity: { attributes: { email: { body: /email, fold: true } } }
limits:
  per-email: { by: email, missing: skip, sliding_window: 1/h }
";

fn post(body: &str) -> String {
    let length = body.len();
    format!(
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
}

#[tokio::test]
async fn an_attribute_of_the_body_limits_and_the_body_goes_on_unchanged() {
    let world = World::start(BY_EMAIL, echo().await.0).await;
    let body = r#"{ "email": "A@b.c" }"#;
    let answer = world.say(&post(body)).await;
    assert!(answer.ends_with(&format!("body: {body}")), "{answer}");
    assert!(answer.to_lowercase().contains("x-ratelimit-remaining: 0"), "{answer}");
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{\"email\":\r\n8\r\n\"a@b.c\"}\r\n0\r\n\r\n";
    let refused = world.say(&chunked.replace("Host", "Connection: close\r\nHost")).await;
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
}

#[tokio::test]
async fn oversize_and_compressed_bodies_go_on_whole_and_count_together() {
    let world = World::start(BY_EMAIL, echo().await.0).await;
    let large = format!(r#"{{"email":"a@b.c","x":"{}"}}"#, "y".repeat(200_000));
    let answer = world.say(&post(&large)).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{}", &answer[..60]);
    assert!(answer.ends_with(&large));
    let gzipped = post("\u{1f}8b not json").replace("Host", "Content-Encoding: gzip\r\nHost");
    for unreadable in [post(&large), gzipped.clone()] {
        assert!(world.say(&unreadable).await.starts_with("HTTP/1.1 429"));
    }
    let fresh = World::start(BY_EMAIL, echo().await.0).await;
    assert!(fresh.say(&gzipped).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn the_upstream_gets_a_body_of_any_method_and_framing() {
    let world = World::start(OPEN, echo().await.0).await;
    let chunked = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Trailer: 1\r\n\r\n";
    let answer = world.say(chunked).await;
    assert!(answer.contains("transfer-encoding: chunked\n"), "{answer}");
    assert!(answer.ends_with("body: hello"), "{answer}");
    let sized = world.say(&post("hello")).await;
    assert!(sized.contains("content-length: 5\n") && sized.ends_with("body: hello"), "{sized}");
}

#[tokio::test]
async fn a_client_that_waits_for_leave_to_send_gets_it() {
    let world = World::start(OPEN, echo().await.0).await;
    let mut stream = world.connect().await;
    let head = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    until_said(&mut stream, "100 Continue\r\n\r\n").await;
    stream.write_all(b"hello").await.unwrap();
    assert!(rest(&mut stream).await.ends_with("body: hello"));
}

#[tokio::test]
async fn a_refused_request_gets_no_leave_to_send_and_no_upstream() {
    let (upstream, hits) = echo().await;
    let policy = "{ tidegate: 1, name: p, limits: { one: { by: ip, sliding_window: 1/h } } }";
    let world = World::start(policy, upstream).await;
    assert!(world.get("/", "").await.starts_with("HTTP/1.1 200"));
    let head = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    let answer = world.say(head).await;
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    assert_eq!(hits.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_client_that_stops_sending_is_told_so() {
    let bounds = GatewayBounds { body: Duration::from_millis(50), ..GatewayBounds::default() };
    for policy in [OPEN, BY_EMAIL] {
        let world = World::bounded(policy, echo().await.0, bounds).await;
        let answer = world.say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe").await;
        assert!(answer.starts_with("HTTP/1.1 408"), "{policy}: {answer}");
    }
}
