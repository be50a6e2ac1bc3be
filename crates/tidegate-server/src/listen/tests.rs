//! Answers that a client does not take.

use std::net::SocketAddr;
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
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::timeouts::{ActivitySocket, ConnectionActivity};
use super::{ConnectionTimeouts, Listener, ListenerBounds, Peer, RequestBody, Service};
use crate::body::{Body, BodyError};
use crate::drain::Drain;

const PATIENCE: Duration = Duration::from_secs(20);

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
    let bounds = ListenerBounds { connections_max: 10, timeouts };
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

#[tokio::test]
async fn behind_a_switch_of_protocols_nobody_looks_for_heads() {
    let (mut client, socket) = tokio::io::duplex(64);
    let activity = ConnectionActivity::new();
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
    let activity = ConnectionActivity::new();
    let in_flight = |mut body: Body| {
        body.keep_in_flight(activity.begin_request(Version::HTTP_2));
        body
    };
    let mut whole = in_flight(Body::whole("hello"));
    assert!(activity.lock().has_unread_answers());
    let context = &mut Context::from_waker(Waker::noop());
    while let Poll::Ready(Some(_)) = Pin::new(&mut whole).poll_frame(context) {}
    assert!(!activity.lock().has_unread_answers());

    let mut silent = in_flight(Body::streamed(Silent));
    assert!(Pin::new(&mut silent).poll_frame(context).is_pending());
    assert!(!activity.lock().has_unread_answers());

    let dropped = in_flight(Body::whole("hello"));
    assert!(activity.lock().has_unread_answers());
    drop(dropped);
    assert!(!activity.lock().has_unread_answers());
}
