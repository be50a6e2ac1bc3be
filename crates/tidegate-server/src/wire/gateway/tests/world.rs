//! A gateway on a free port, upstreams behind it, and a client that says exactly what it is told.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tidegate::Policy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::app::App;
use crate::listen::{ConnectionTimeouts, Listener, ListenerBounds};
use crate::wire::gateway::{Gateway, GatewayBounds, Upstream};

pub(super) const OPEN: &str = "{ tidegate: 1, name: open }";
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct World {
    pub(super) address: SocketAddr,
    pub(super) app: Arc<App>,
    /// Over when the listener has drained.
    pub(super) serving: tokio::task::JoinHandle<()>,
}

impl World {
    pub(super) async fn start(policy: &str, upstream: SocketAddr) -> Self {
        Self::bounded(policy, upstream, GatewayBounds::default()).await
    }

    pub(super) async fn bounded(policy: &str, upstream: SocketAddr, bounds: GatewayBounds) -> Self {
        let upstream = Upstream::parse(&format!("http://{upstream}")).unwrap();
        Self::in_front_of(policy, upstream, bounds).await
    }

    pub(super) async fn in_front_of(
        policy: &str,
        upstream: Upstream,
        bounds: GatewayBounds,
    ) -> Self {
        let policy = Policy::parse("test.yaml", policy).unwrap();
        let app = Arc::new(App::new(policy));
        let gateway = Gateway::new(Arc::clone(&app), upstream, bounds);
        let timeouts = ConnectionTimeouts { head: PATIENCE, idle: PATIENCE, stalled: PATIENCE };
        let listening = ListenerBounds { connections_max: 1000, address_share: 1000, timeouts };
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = Listener::bind(any, None, listening).unwrap();
        let address = listener.address().unwrap();
        let serving = tokio::spawn(listener.serve(gateway, app.drain.clone()));
        Self { address, app, serving }
    }

    /// Says something and returns all that comes until the connection ends.
    pub(super) async fn say(&self, text: &str) -> String {
        let mut stream = self.connect().await;
        // The gateway may close before it has heard all.
        let _ = stream.write_all(text.as_bytes()).await;
        rest(&mut stream).await
    }

    /// Sends a GET on a connection of its own.
    pub(super) async fn get(&self, path: &str, headers: &str) -> String {
        self.say(&format!(
            "GET {path} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n{headers}\r\n"
        ))
        .await
    }

    pub(super) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }
}

/// All that comes until the connection ends.
pub(super) async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await;
    let _ = read.expect("the connection ends");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads until this has come.
pub(super) async fn until_said(stream: &mut TcpStream, end: &str) -> String {
    let mut bytes = Vec::new();
    while !String::from_utf8_lossy(&bytes).ends_with(end) {
        let read = tokio::time::timeout(PATIENCE, stream.read_u8()).await;
        bytes.push(read.expect("something comes").unwrap());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits until something holds.
pub(super) async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// An upstream that answers with what it was sent, and counts.
pub(super) async fn echo() -> (SocketAddr, Arc<AtomicUsize>) {
    let hits = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&hits);
    let address = hyper_upstream(move |request| {
        counted.fetch_add(1, Ordering::SeqCst);
        echoed(request)
    })
    .await;
    (address, hits)
}

async fn echoed(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    let mut text = format!("{} {} {:?}\n", parts.method, parts.uri, parts.version);
    for (name, value) in &parts.headers {
        text.push_str(&format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())));
    }
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    text.push_str(&format!("body: {}", String::from_utf8_lossy(&body)));
    Response::new(Full::new(text.into()))
}

/// An upstream that speaks HTTP properly.
pub(super) async fn hyper_upstream<F, R>(answer: F) -> SocketAddr
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Full<Bytes>>> + Send,
{
    raw_upstream(move |stream| {
        let answer = answer.clone();
        async move {
            let service = service_fn(move |request| {
                let answered = answer(request);
                async move { Ok::<_, Infallible>(answered.await) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            let _ = connection.await;
        }
    })
    .await
}

/// An upstream that does what it likes with each connection.
pub(super) async fn raw_upstream<F, R>(serve: F) -> SocketAddr
where
    F: Fn(TcpStream) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

/// An upstream that answers every request with these bytes, then closes.
pub(super) async fn saying(answer: &'static str) -> SocketAddr {
    raw_upstream(move |mut stream| async move {
        until_said(&mut stream, "\r\n\r\n").await;
        let _ = stream.write_all(answer.as_bytes()).await;
    })
    .await
}
