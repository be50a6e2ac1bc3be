//! Answers that a client does not take.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body::{Body as _, Frame};
use http_body_util::Empty;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate::engine::identity::{ClientNetwork, client_network};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::Instant;

use super::answer::Answer;
use super::timeouts::{ActivitySocket, ConnectionActivity};
use super::{ConnectionTimeouts, Listener, ListenerBounds, Peer, RequestBody, Service};
use crate::body::{Body, BodyError};
use crate::drain::Drain;

const PATIENCE: Duration = Duration::from_secs(20);

fn activity() -> Arc<ConnectionActivity> {
    let timeouts = ConnectionTimeouts { head: PATIENCE, idle: PATIENCE, stalled: PATIENCE };
    ConnectionActivity::new(&timeouts, Arc::default())
}

#[derive(Clone)]
struct Greets;

impl Service for Greets {
    async fn call(&self, _: Peer, _: Request<RequestBody>) -> Response<Body> {
        Response::new(Body::whole("hello"))
    }
}

#[tokio::test]
async fn a_client_that_grants_no_window_is_let_go() {
    let stalled = Duration::from_millis(100);
    let timeouts = ConnectionTimeouts { head: PATIENCE * 10, idle: PATIENCE * 10, stalled };
    let bounds = ListenerBounds { connections_max: 10, address_share: 10, timeouts };
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = Listener::bind(any, None, bounds).unwrap();
    let address = listener.address().unwrap();
    tokio::spawn(listener.serve(Greets, Drain::new()));

    let socket = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let mut client = http2::Builder::new(TokioExecutor::new());
    client.initial_stream_window_size(0);
    let (mut sender, connection) = client.handshake(socket).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::get("http://a.test/").body(Empty::<Bytes>::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, connection).await;
    assert!(ended.is_ok(), "the connection is still there");
    drop(response);
}

/// Takes addresses of 127.0.0.0/8 for clients, but for 127.0.0.1.
struct Local;

impl Service for Local {
    async fn call(&self, _: Peer, _: Request<RequestBody>) -> Response<Body> {
        Response::new(Body::whole("hello"))
    }

    fn client_of(&self, address: IpAddr) -> Option<ClientNetwork> {
        (address != IpAddr::from([127, 0, 0, 1])).then(|| client_network(address, 64))
    }
}

/// Connects from an address, asks, and returns the connection if it is answered.
async fn ask(from: [u8; 4], to: SocketAddr) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    let mut stream = socket.connect(to).await.unwrap();
    let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let answer = tokio::time::timeout(PATIENCE, stream.read(&mut [0; 1024])).await;
    answer.expect("neither an answer nor an end").is_ok_and(|read| read > 0).then_some(stream)
}

#[tokio::test]
async fn idle_connections_of_one_address_leave_room_for_others() {
    let long = PATIENCE * 10;
    let timeouts = ConnectionTimeouts { head: long, idle: long, stalled: long };
    let bounds = ListenerBounds { connections_max: 40, address_share: 4, timeouts };
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = Listener::bind(any, None, bounds).unwrap();
    let address = listener.address().unwrap();
    tokio::spawn(listener.serve(Local, Drain::new()));

    let mut flood = Vec::new();
    for _ in 0..100 {
        flood.push(ask([127, 0, 0, 2], address).await.expect("replaces an idle one"));
    }
    for client in 3..20 {
        assert!(ask([127, 0, 0, client], address).await.is_some());
    }
    // The longest idle were closed, and the last ones are still served.
    let started = Instant::now();
    let mut closed = 0;
    while closed < 70 {
        assert!(started.elapsed() < PATIENCE, "only {closed} are closed");
        tokio::time::sleep(Duration::from_millis(5)).await;
        closed = flood.iter().filter(|one| matches!(one.try_read(&mut [0]), Ok(0))).count();
    }
    let last = flood.last_mut().unwrap();
    last.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    assert!(last.read(&mut [0; 1024]).await.unwrap() > 0);
    // Who comes from the address of everybody has no share.
    let mut everybody = Vec::new();
    for _ in 0..15 {
        everybody.push(ask([127, 0, 0, 1], address).await.expect("is everybody"));
    }
}

#[tokio::test]
async fn behind_a_switch_of_protocols_nobody_looks_for_heads() {
    let (mut client, socket) = tokio::io::duplex(64);
    let activity = activity();
    let mut socket = ActivitySocket::new(socket, Arc::clone(&activity));
    for is_inside_head in [true, false] {
        client.write_all(b"GET").await.unwrap();
        socket.read_exact(&mut [0; 3]).await.unwrap();
        assert_eq!(activity.lock().is_inside_head(), is_inside_head);
        client.write_all(b" / HTTP/1.1\r\n\r\n").await.unwrap();
        socket.read_exact(&mut [0; 15]).await.unwrap();
        activity.begin_request(Version::HTTP_11).set_switched();
    }
}

/// An answer of which nothing comes.
struct Silent;

impl http_body::Body for Silent {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Pending
    }
}

#[tokio::test]
async fn an_answer_is_stuck_while_nobody_asks_for_it_and_not_while_it_has_nothing_to_say() {
    let activity = activity();
    let in_flight = |body| Answer::new(body, activity.begin_request(Version::HTTP_2));
    let mut whole = in_flight(Body::whole("hello"));
    assert!(activity.lock().has_untaken_answers());
    let context = &mut Context::from_waker(Waker::noop());
    while let Poll::Ready(Some(_)) = Pin::new(&mut whole).poll_frame(context) {}
    assert!(!activity.lock().has_untaken_answers());

    let mut silent = in_flight(Body::streamed(Silent));
    assert!(Pin::new(&mut silent).poll_frame(context).is_pending());
    assert!(!activity.lock().has_untaken_answers());

    let dropped = in_flight(Body::whole("hello"));
    assert!(activity.lock().has_untaken_answers());
    drop(dropped);
    assert!(!activity.lock().has_untaken_answers());
}
