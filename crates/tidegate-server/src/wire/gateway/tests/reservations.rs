//! Reservations: the answer decides what is counted, and a place is held while the answer lasts.

use std::time::Duration;

use super::world::{World, raw_upstream, rest, saying, until, until_said};
use tidegate::Request;
use tokio::io::AsyncWriteExt;

const SUCCESSES: &str =
    "{ tidegate: 1, name: p, limits: { one: { by: ip, sliding_window: 1/h, counts: successes } } }";
const FAILURES: &str =
    "{ tidegate: 1, name: p, limits: { one: { by: ip, sliding_window: 1/h, counts: failures } } }";
const PLACE: &str =
    "{ tidegate: 1, name: p, limits: { one: { by: ip, concurrency: 1, lease: 300ms } } }";

fn is_free(world: &World) -> bool {
    let request = Request::new("GET", "/").peer([127, 0, 0, 1].into());
    crate::engine::tests::peek(&world.app.engine, &request).unwrap().is_allowed()
}

#[tokio::test]
async fn an_answers_status_decides_what_was_counted() {
    let world =
        World::start(SUCCESSES, saying("HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n").await).await;
    for _ in 0..3 {
        assert!(world.get("/", "").await.starts_with("HTTP/1.1 401"));
        until("the failure is given back", || is_free(&world)).await;
    }
    let world =
        World::start(FAILURES, saying("HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n").await).await;
    assert!(world.get("/", "").await.starts_with("HTTP/1.1 401"));
    assert!(world.get("/", "").await.starts_with("HTTP/1.1 429"));
}

#[tokio::test]
async fn a_request_that_the_upstream_fails_counts_as_a_failure() {
    let world = World::start(SUCCESSES, saying("").await).await;
    for _ in 0..2 {
        assert!(world.get("/", "").await.starts_with("HTTP/1.1 502"));
        until("it is given back", || is_free(&world)).await;
    }
}

#[tokio::test]
async fn an_answer_that_the_upstream_breaks_off_counts_as_a_failure() {
    let half = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhal";
    let world = World::start(SUCCESSES, saying(half).await).await;
    for _ in 0..2 {
        assert!(world.get("/", "").await.ends_with("hal"));
        until("it is given back", || is_free(&world)).await;
    }
    let world = World::start(FAILURES, saying(half).await).await;
    assert!(world.get("/", "").await.ends_with("hal"));
    assert!(world.get("/", "").await.starts_with("HTTP/1.1 429"));
}

/// Answers at once and without an end, whatever else comes.
async fn endless() -> std::net::SocketAddr {
    raw_upstream(|mut stream| async move {
        until_said(&mut stream, "\r\n\r\n").await;
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n";
        stream.write_all(head).await.unwrap();
        rest(&mut stream).await;
    })
    .await
}

#[tokio::test]
async fn a_client_that_breaks_off_in_the_middle_does_not_choose_what_is_counted() {
    let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let post = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (head, then) in [(get, ""), (post, "no chunk\r\n\r\n"), (post, "")] {
        for (counts, is_given_back) in [("successes", false), ("failures", true)] {
            let policy = format!(
                "{{ tidegate: 1, name: p, limits: {{ place: {{ by: ip, concurrency: 1 }}, one: {{ by: ip, sliding_window: 1/h, counts: {counts} }} }} }}"
            );
            let world = World::start(&policy, endless().await).await;
            let mut stream = world.connect().await;
            stream.write_all(head.as_bytes()).await.unwrap();
            until_said(&mut stream, "x\r\n").await;
            stream.write_all(then.as_bytes()).await.unwrap();
            drop(stream);
            let fits = |index: usize| {
                let request = Request::new("GET", "/").peer([127, 0, 0, 1].into());
                crate::engine::tests::peek(&world.app.engine, &request).unwrap().limits[index]
                    .is_allowed()
            };
            // It is settled before its place is given back.
            until("the place is free", || fits(0)).await;
            assert_eq!(fits(1), is_given_back, "{head:?} {then:?} {counts}");
        }
    }
}

#[tokio::test]
async fn a_place_is_held_and_renewed_until_the_answer_is_over() {
    let upstream = raw_upstream(|mut stream| async move {
        until_said(&mut stream, "\r\n\r\n").await;
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            stream.write_all(b"1\r\nx\r\n").await.unwrap();
        }
        stream.write_all(b"0\r\n\r\n").await.unwrap();
    })
    .await;
    let world = World::start(PLACE, upstream).await;
    let mut stream = world.connect().await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    for _ in 0..9 {
        until_said(&mut stream, "x\r\n").await;
        assert!(!is_free(&world));
    }
    rest(&mut stream).await;
    until("the place is free", || is_free(&world)).await;
}

#[tokio::test]
async fn a_place_is_freed_when_the_client_goes_away() {
    let upstream = raw_upstream(|mut stream| async move { drop(rest(&mut stream).await) }).await;
    let world = World::start(PLACE, upstream).await;
    let mut stream = world.connect().await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    until("the place is taken", || !is_free(&world)).await;
    drop(stream);
    until("the place is free", || is_free(&world)).await;
}

#[tokio::test]
async fn a_place_is_freed_when_the_answer_breaks_off() {
    let world =
        World::start(PLACE, saying("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhal").await).await;
    assert!(world.get("/", "").await.ends_with("hal"));
    until("the place is free", || is_free(&world)).await;
}

#[tokio::test]
async fn a_place_is_not_taken_for_good_by_a_client_that_closes_behind_its_request() {
    const LONG: &str =
        "{ tidegate: 1, name: p, limits: { one: { by: ip, concurrency: 1, lease: 1h } } }";
    let world =
        World::start(LONG, saying("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await).await;
    for _ in 0..50 {
        let mut stream = world.connect().await;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        stream.shutdown().await.unwrap();
        rest(&mut stream).await;
        until("the place is free", || is_free(&world)).await;
    }
}
