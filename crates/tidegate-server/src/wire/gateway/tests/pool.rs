//! The pool: more requests than there may be connections to the upstream.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::world::{OPEN, World, raw_upstream, rest, until, until_said};
use crate::app::App;
use crate::listen::Service as _;
use crate::wire::gateway::{Gateway, GatewayBounds, Upstream};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate::Policy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
const UPGRADE: &[u8] =
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
const SOON: Duration = Duration::from_millis(50);
const LATE: Duration = Duration::from_secs(20);

/// An upstream that answers when the test lets it, and counts.
#[derive(Clone)]
struct Slow {
    /// One answer each.
    answers: Arc<Semaphore>,
    asked: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Slow {
    async fn start() -> (Self, SocketAddr) {
        let slow = Self {
            answers: Arc::new(Semaphore::new(0)),
            asked: Arc::default(),
            open: Arc::default(),
            most: Arc::default(),
        };
        let own = slow.clone();
        let address = raw_upstream(move |mut stream| {
            let slow = own.clone();
            async move {
                let open = slow.open.fetch_add(1, Ordering::SeqCst) + 1;
                slow.most.fetch_max(open, Ordering::SeqCst);
                loop {
                    let mut head = [0; 1024];
                    let Ok(1..) = stream.read(&mut head).await else {
                        break;
                    };
                    slow.asked.fetch_add(1, Ordering::SeqCst);
                    slow.answers.acquire().await.unwrap().forget();
                    let _ =
                        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
                }
                slow.open.fetch_sub(1, Ordering::SeqCst);
            }
        });
        (slow, address.await)
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn bounds(connections_max: usize, connect: Duration) -> GatewayBounds {
    GatewayBounds { connections_max, connect, ..GatewayBounds::default() }
}

#[tokio::test]
async fn requests_beyond_the_bound_take_over_the_connections_of_others() {
    let (slow, upstream) = Slow::start().await;
    let world = World::bounded(OPEN, upstream, bounds(2, LATE)).await;
    let mut clients = Vec::new();
    for _ in 0..6 {
        let mut client = world.connect().await;
        client.write_all(GET).await.unwrap();
        clients.push(client);
    }
    until("two are asked", || slow.asked() == 2).await;
    slow.answers.add_permits(6);
    for client in &mut clients {
        assert!(rest(client).await.ends_with("ok"));
    }
    assert_eq!((slow.asked(), slow.most.load(Ordering::SeqCst)), (6, 2));
}

#[tokio::test]
async fn the_streams_of_one_connection_are_bounded_as_well() {
    let (slow, upstream) = Slow::start().await;
    let world = World::bounded(OPEN, upstream, bounds(3, LATE)).await;
    let socket = TokioIo::new(world.connect().await);
    let (sender, connection) = http2::handshake(TokioExecutor::new(), socket).await.unwrap();
    tokio::spawn(connection);
    let mut streams = JoinSet::new();
    for _ in 0..200 {
        let mut sender = sender.clone();
        streams.spawn(async move {
            let request = Request::get("http://a.test/").body(Empty::<Bytes>::new()).unwrap();
            let body = sender.send_request(request).await.unwrap().into_body();
            body.collect().await.unwrap().to_bytes()
        });
    }
    until("three are asked", || slow.asked() == 3).await;
    slow.answers.add_permits(200);
    assert!(streams.join_all().await.iter().all(|body| body == "ok"));
    assert_eq!((slow.asked(), slow.most.load(Ordering::SeqCst)), (200, 3));
}

#[tokio::test]
async fn a_request_that_waits_too_long_for_a_permit_is_told_to_come_back() {
    let (slow, upstream) = Slow::start().await;
    let world = World::bounded(OPEN, upstream, bounds(1, SOON)).await;
    let mut first = world.connect().await;
    first.write_all(GET).await.unwrap();
    until("it is asked", || slow.asked() == 1).await;
    for _ in 0..3 {
        let answer = world.get("/", "").await;
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(answer.contains("retry-after: 1\r\n") && answer.contains("in use"), "{answer}");
    }
    slow.answers.add_permits(2);
    assert!(rest(&mut first).await.ends_with("ok"));
    assert!(world.get("/", "").await.ends_with("ok"));
}

#[tokio::test]
async fn a_request_that_gives_up_leaves_its_turn_to_the_next() {
    let (slow, upstream) = Slow::start().await;
    let world = World::bounded(OPEN, upstream, bounds(1, LATE)).await;
    let mut first = world.connect().await;
    first.write_all(GET).await.unwrap();
    until("it is asked", || slow.asked() == 1).await;
    for _ in 0..3 {
        let mut gone = world.connect().await;
        gone.write_all(GET).await.unwrap();
    }
    let mut last = world.connect().await;
    last.write_all(GET).await.unwrap();
    // It ends without an answer, so that its connection is closed and only its permit comes free.
    drop(first);
    slow.answers.add_permits(8);
    assert!(rest(&mut last).await.ends_with("ok"));
}

#[tokio::test]
async fn a_tunnel_keeps_its_permit_until_it_ends() {
    let upstream = raw_upstream(|mut stream| async move {
        let head = until_said(&mut stream, "\r\n\r\n").await;
        let answer = match head.contains("websocket") {
            true => "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nhello",
            false => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        };
        let _ = stream.write_all(answer.as_bytes()).await;
        rest(&mut stream).await;
    })
    .await;
    let world = World::bounded(OPEN, upstream, bounds(1, SOON)).await;
    let mut tunnel = world.connect().await;
    tunnel.write_all(UPGRADE).await.unwrap();
    until_said(&mut tunnel, "hello").await;
    assert!(world.get("/", "").await.starts_with("HTTP/1.1 503"));
    drop(tunnel);
    let served = async { while !world.get("/", "").await.ends_with("ok") {} };
    tokio::time::timeout(LATE, served).await.expect("its permit comes free");
}

#[tokio::test]
async fn an_upstream_that_cannot_be_reached_takes_no_permit() {
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let world = World::bounded(OPEN, nobody, bounds(1, LATE)).await;
    for _ in 0..3 {
        assert!(world.get("/", "").await.starts_with("HTTP/1.1 502"));
    }
}

#[tokio::test]
async fn a_repeated_request_opens_a_new_connection_with_its_own_permit() {
    let upstream = raw_upstream(|mut stream| async move {
        until_said(&mut stream, "\r\n\r\n").await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        // It closes once the next request has arrived.
        let _ = stream.read_u8().await;
    })
    .await;
    let world = World::bounded(OPEN, upstream, bounds(1, LATE)).await;
    for _ in 0..5 {
        assert!(world.get("/", "").await.ends_with("ok"));
    }
}

#[tokio::test]
async fn loopback_and_trusted_proxies_have_no_share_and_others_have_one_by_their_network() {
    let policy =
        "{ tidegate: 1, name: a, identity: { trusted_proxies: [10.0.0.0/8], ipv6_prefix: 56 } }";
    let app = Arc::new(App::new(Policy::parse("a.yaml", policy).unwrap()));
    let upstream = Upstream::parse("http://127.0.0.1:9").unwrap();
    let gateway = Gateway::new(app, upstream, GatewayBounds::default());
    let client = |address: &str| gateway.client_of(address.parse().unwrap());
    for everybody in ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1", "10.1.2.3"] {
        assert_eq!(client(everybody), None, "{everybody}");
    }
    assert_eq!(client("2001:db8:0:1ff::1"), client("2001:db8:0:100::2"));
    assert_ne!(client("2001:db8:0:1ff::1"), client("2001:db8:0:200::1"));
    assert_eq!(client("::ffff:192.0.2.1"), client("192.0.2.1"));
}
