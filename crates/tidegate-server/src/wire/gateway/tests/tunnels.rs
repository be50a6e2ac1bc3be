//! Upgraded connections.

use std::sync::Arc;
use std::time::Duration;

use super::world::{World, raw_upstream, rest, saying, until, until_said};
use crate::wire::gateway::GatewayBounds;
use tidegate::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

const PLACE: &str =
    "{ tidegate: 1, name: p, limits: { one: { by: ip, concurrency: 1, lease: 60s } } }";
const ASK: &str = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n";

fn is_free(world: &World) -> bool {
    let request = Request::new("GET", "/").peer([127, 0, 0, 1].into());
    crate::engine::tests::peek(&world.app.engine, &request).unwrap().is_allowed()
}

/// Switches if asked, says hello, then repeats what it hears; `quit` makes it close.
async fn parrot(mut stream: TcpStream) {
    let head = until_said(&mut stream, "\r\n\r\n").await.to_lowercase();
    assert!(
        head.contains("upgrade: websocket\r\n") && head.contains("connection: upgrade\r\n"),
        "{head}"
    );
    let answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: a\r\n\r\nhello";
    stream.write_all(answer.as_bytes()).await.unwrap();
    let mut buffer = [0; 64];
    while let Ok(1..) = stream.read(&mut buffer).await {
        if buffer.starts_with(b"quit") {
            return;
        }
        stream.write_all(&buffer[..4]).await.unwrap();
    }
}

async fn upgraded(world: &World) -> TcpStream {
    let mut stream = world.connect().await;
    stream.write_all(ASK.as_bytes()).await.unwrap();
    let head = until_said(&mut stream, "hello").await.to_lowercase();
    assert!(head.starts_with("http/1.1 101") && head.contains("sec-websocket-accept: a"), "{head}");
    assert!(head.contains("x-ratelimit-limit: 1"), "{head}");
    stream.write_all(b"ping").await.unwrap();
    until_said(&mut stream, "ping").await;
    assert!(!is_free(world));
    stream
}

#[tokio::test]
async fn a_tunnel_holds_its_place_until_either_side_closes() {
    let world = World::start(PLACE, raw_upstream(parrot).await).await;
    let stream = upgraded(&world).await;
    let second = world.say(&ASK.replace("keep-alive", "close")).await;
    assert!(second.starts_with("HTTP/1.1 429"), "{second}");
    drop(stream);
    until("the client's close frees the place", || is_free(&world)).await;

    let mut stream = upgraded(&world).await;
    stream.write_all(b"quit").await.unwrap();
    assert_eq!(rest(&mut stream).await, "");
    until("the upstream's close frees the place", || is_free(&world)).await;
}

#[tokio::test]
async fn a_half_closed_tunnel_still_carries_the_other_half_and_holds_its_place() {
    let leave = Arc::new(Notify::new());
    let half_closed = Arc::new(Notify::new());
    let (given, heard) = (Arc::clone(&leave), Arc::clone(&half_closed));
    let upstream = raw_upstream(move |mut stream| {
        let (given, heard) = (Arc::clone(&given), Arc::clone(&heard));
        async move {
            until_said(&mut stream, "\r\n\r\n").await;
            let answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhello";
            stream.write_all(answer.as_bytes()).await.unwrap();
            rest(&mut stream).await;
            heard.notify_one();
            given.notified().await;
            stream.write_all(b"bye").await.unwrap();
        }
    })
    .await;
    let world = World::start(PLACE, upstream).await;
    let mut stream = world.connect().await;
    stream.write_all(ASK.as_bytes()).await.unwrap();
    until_said(&mut stream, "hello").await;
    stream.shutdown().await.unwrap();
    half_closed.notified().await;
    assert!(!is_free(&world));
    leave.notify_one();
    assert_eq!(rest(&mut stream).await, "bye");
    until("the place is free", || is_free(&world)).await;
}

#[tokio::test]
async fn a_half_closed_tunnel_ends_however_much_the_other_half_says() {
    let upstream = raw_upstream(|mut stream| async move {
        until_said(&mut stream, "\r\n\r\n").await;
        let answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhello";
        stream.write_all(answer.as_bytes()).await.unwrap();
        while stream.write_all(b"more").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let bounds =
        GatewayBounds { tunnel_linger: Duration::from_millis(50), ..GatewayBounds::default() };
    let world = World::bounded(PLACE, upstream, bounds).await;
    let mut stream = world.connect().await;
    stream.write_all(ASK.as_bytes()).await.unwrap();
    until_said(&mut stream, "hello").await;
    stream.shutdown().await.unwrap();
    assert!(rest(&mut stream).await.starts_with("more"));
    until("the place is free", || is_free(&world)).await;
}

#[tokio::test]
async fn a_silent_tunnel_ends() {
    let bounds =
        GatewayBounds { tunnel_idle: Duration::from_millis(50), ..GatewayBounds::default() };
    let world = World::bounded(PLACE, raw_upstream(parrot).await, bounds).await;
    let mut stream = upgraded(&world).await;
    assert_eq!(rest(&mut stream).await, "");
    until("the place is free", || is_free(&world)).await;
}

#[tokio::test]
async fn draining_ends_tunnels_after_their_time() {
    let bounds =
        GatewayBounds { tunnel_drain: Duration::from_millis(50), ..GatewayBounds::default() };
    let world = World::bounded(PLACE, raw_upstream(parrot).await, bounds).await;
    let mut stream = upgraded(&world).await;
    world.app.drain.start();
    assert_eq!(rest(&mut stream).await, "");
}

#[tokio::test]
async fn an_upgrade_that_is_declined_is_an_ordinary_answer() {
    let declined = "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno";
    let world = World::start(PLACE, saying(declined).await).await;
    let answer = world.say(&ASK.replace("keep-alive", "close")).await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.ends_with("no"), "{answer}");
    until("the place is free", || is_free(&world)).await;
}

#[tokio::test]
async fn http_2_in_clear_text_is_not_asked_of_the_upstream() {
    let (upstream, _) = super::world::echo().await;
    let world = World::start(PLACE, upstream).await;
    let lines = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n";
    let answer = world.get("/", lines).await.to_lowercase();
    assert!(answer.starts_with("http/1.1 200") && !answer.contains("h2c"), "{answer}");
    assert!(!answer.contains("http2-settings"), "{answer}");
}

#[tokio::test]
async fn a_tunnel_keeps_its_clients_permit_and_the_drain_waiting() {
    let world = World::start(PLACE, raw_upstream(parrot).await).await;
    let mut stream = upgraded(&world).await;
    world.app.drain.start();
    while TcpStream::connect(world.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    stream.write_all(b"ping").await.unwrap();
    until_said(&mut stream, "ping").await;
    assert!(!world.serving.is_finished());
    drop(stream);
    until("the listener has drained", || world.serving.is_finished()).await;
}
