//! What upstreams answer makes events, and what penalties say is served with the answer.

use std::time::Duration;

use tidegate::Outcome;
use tokio::io::AsyncWriteExt as _;
use tokio::time::Instant;

use super::world::{World, raw_upstream, rest, saying, until, until_said};

const REFUSED: &str = "HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno";
const GET: &[u8] = b"GET /login HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";

/// A ladder over failures to log in.
fn policy(ladder: &str) -> String {
    format!(
        "{{ tidegate: 1, name: p, operations: {{ login: GET /login }},
            events: {{ failure: {{ when: login, status: [401, 403] }} }},
            penalties: {{ guessing: {{ event: failure, by: ip, within: 1h, ladder: {ladder} }} }} }}"
    )
}

#[tokio::test]
async fn a_ladder_is_climbed_by_the_upstreams_answers() {
    let ladder = "{ 2: { warn: captcha }, 3: { ban: 1h } }";
    let world = World::start(&policy(ladder), saying(REFUSED).await).await;
    let first = world.get("/login", "").await.to_lowercase();
    assert!(first.starts_with("http/1.1 401") && !first.contains("warning"), "{first}");
    let other = world.get("/elsewhere", "").await.to_lowercase();
    assert!(other.starts_with("http/1.1 401") && !other.contains("warning"), "{other}");
    let second = world.get("/login", "").await.to_lowercase();
    assert!(second.contains("x-ratelimit-warning: captcha\r\n"), "{second}");
    assert!(second.ends_with("no"), "{second}");
    assert!(world.get("/login", "").await.starts_with("HTTP/1.1 401"), "the upstream's answer");
    let banned = world.get("/elsewhere", "").await;
    assert!(banned.starts_with("HTTP/1.1 403"), "{banned}");
    let page = world.app.metrics.render(&crate::telemetry::Present::default());
    assert!(page.contains("tidegate_events_total{event=\"failure\"} 3\n"), "{page}");
    assert!(page.contains("tidegate_bans_total{penalty=\"guessing\"} 1\n"), "{page}");
}

#[tokio::test]
async fn what_the_gateway_answers_itself_is_no_event_of_a_status() {
    let world = World::start(&policy("{ 1: { ban: 1h } }"), saying("").await).await;
    for _ in 0..3 {
        assert!(world.get("/login", "").await.starts_with("HTTP/1.1 502"));
    }
}

#[tokio::test]
async fn an_answer_is_held_back_for_as_long_as_the_step_says() {
    let world = World::start(&policy("{ 1: { delay: 50ms } }"), saying(REFUSED).await).await;
    let began = Instant::now();
    let answer = world.get("/login", "").await;
    assert!(answer.starts_with("HTTP/1.1 401") && answer.ends_with("no"), "{answer}");
    assert!(began.elapsed() >= Duration::from_millis(50));
    assert_eq!(world.app.delayed_answers.count(), 0);
}

#[tokio::test]
async fn a_body_that_comes_later_than_the_step_says_is_waited_for() {
    let slow = raw_upstream(|mut stream| async move {
        until_said(&mut stream, "\r\n\r\n").await;
        let (head, body) = REFUSED.split_at(REFUSED.len() - 2);
        let _ = stream.write_all(head.as_bytes()).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let _ = stream.write_all(body.as_bytes()).await;
    });
    let world = World::start(&policy("{ 1: { delay: 20ms } }"), slow.await).await;
    let answer = world.get("/login", "").await;
    assert!(answer.starts_with("HTTP/1.1 401") && answer.ends_with("no"), "{answer}");
}

#[tokio::test]
async fn an_answer_that_is_held_back_is_let_go_when_its_client_leaves_or_the_daemon_drains() {
    let world = World::start(&policy("{ 1: { delay: 1min } }"), saying(REFUSED).await).await;
    let mut leaving = world.connect().await;
    leaving.write_all(GET).await.unwrap();
    until("it is held", || world.app.delayed_answers.count() == 1).await;
    drop(leaving);
    until("it is let go", || world.app.delayed_answers.count() == 0).await;
    let mut staying = world.connect().await;
    staying.write_all(GET).await.unwrap();
    until("it is held", || world.app.delayed_answers.count() == 1).await;
    world.app.drain.start();
    let answer = rest(&mut staying).await;
    assert!(answer.starts_with("HTTP/1.1 401") && answer.ends_with("no"), "{answer}");
}

#[tokio::test]
async fn a_refusal_is_held_back_too() {
    let policy = "{ tidegate: 1, name: p, limits: { one: { by: ip, total: 1 } },
        penalties: { slow: { event: limited, by: ip, within: 1h, ladder: { 1: { delay: 50ms } } } } }";
    let world = World::start(policy, saying(REFUSED).await).await;
    assert!(world.get("/", "").await.starts_with("HTTP/1.1 401"));
    let began = Instant::now();
    assert!(world.get("/", "").await.starts_with("HTTP/1.1 429"));
    assert!(began.elapsed() >= Duration::from_millis(50));
    let asked = tidegate::Request::new("GET", "/").ip([127, 0, 0, 1].into());
    assert_eq!(
        crate::engine::tests::peek(&world.app.engine, &asked).unwrap().outcome,
        Outcome::Limited
    );
}
