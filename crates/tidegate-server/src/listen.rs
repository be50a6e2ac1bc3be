//! Sockets: accepting connections, TLS, bounds on connections and heads, and letting go.
//!
//! Every connection is served by hyper in a task of its own. HTTP/1.1 and HTTP/2 are told apart by
//! the first bytes. The number of connections is bounded: beyond it the system's own queue holds
//! those that come, so that nobody is refused for arriving in a crowd.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Request, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::answering::Answering;
use crate::drain::Drain;
use crate::keeper::{End, Keeper};
use crate::pace::{Pace, Paced, Pulse};
use crate::respond;
use crate::tls::Certificates;

/// At most so many header lines, where cookies are one.
const HEADERS_MAX: usize = 100;
/// The longest head of a request, and the most that is read ahead of one connection.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// At most so many requests at once on one HTTP/2 connection.
const STREAMS_MAX: u32 = 256;
/// Why a request with an ambiguous head is refused.
const AMBIGUOUS: &str =
    "the head has both Content-Length and Transfer-Encoding, or lines that end without CR LF";
/// How many connections the system's queue holds until they are accepted, where it lets us choose. Once
/// draining has begun no more are taken from it, lest those who come all the time hold up the end.
const BACKLOG: u32 = 4096;
/// How long to rest when the system has no more sockets to give.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) is_tls: bool,
}

/// What a listener does with a request.
pub(crate) trait Service: Send + Sync + 'static {
    fn call(&self, peer: Peer, request: Request<Incoming>) -> Answering;
}

/// Bounds on the connections of one listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListenerBounds {
    pub(crate) connections_max: usize,
    pub(crate) pace: Pace,
}

/// A socket that is bound, and not yet served.
pub(crate) struct Listener {
    socket: TcpListener,
    tls: Option<TlsAcceptor>,
    bounds: ListenerBounds,
    /// How many connections are open, for the metrics.
    open: Arc<AtomicUsize>,
}

impl Listener {
    pub(crate) fn bind(
        address: SocketAddr,
        certificates: Option<Arc<Certificates>>,
        bounds: ListenerBounds,
    ) -> io::Result<Self> {
        let tls = certificates.map(|certificates| certificates.server_config()).transpose();
        let tls = tls.map_err(io::Error::other)?.map(TlsAcceptor::from);
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // As a restart must not wait until the last connections are forgotten.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let socket = socket.listen(BACKLOG)?;
        Ok(Self { socket, tls, bounds, open: Arc::default() })
    }

    /// The address that it listens on, with the port that it was given.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Where it is reached.
    pub(crate) fn url(&self) -> io::Result<String> {
        let scheme = if self.is_tls() { "https" } else { "http" };
        Ok(format!("{scheme}://{}", self.address()?))
    }

    /// How many connections are open.
    pub(crate) fn open_connections(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.open)
    }

    /// Serves until draining is over: all connections have ended.
    pub(crate) async fn serve<S: Service>(self, service: S, drain: Drain) {
        let keeper = Keeper::new(self.bounds.pace);
        let shared = Arc::new(Shared { service, drain: drain.clone() });
        // In a task of its own, which a crowd of new connections does not hold up.
        let (keeping, mut tasks) = (Arc::clone(&keeper), JoinSet::new());
        tasks.spawn(async move { keeping.keep(&drain).await });
        self.accept_all(&shared, &keeper).await;
    }

    async fn accept_all<S: Service>(self, shared: &Arc<Shared<S>>, keeper: &Arc<Keeper>) {
        let drain = &shared.drain;
        let places =
            Arc::new(Semaphore::new(self.bounds.connections_max.min(Semaphore::MAX_PERMITS)));
        let mut started = pin!(drain.started());
        let mut late_accepts = 0;
        while late_accepts < BACKLOG {
            let place = tokio::select! {
                biased;
                place = Arc::clone(&places).acquire_owned() => place,
                () = &mut started => break,
            };
            // The semaphore is never closed, so that a place always comes.
            let Ok(place) = place else { break };
            let accepted = tokio::select! {
                biased;
                accepted = self.socket.accept() => accepted,
                () = &mut started => break,
            };
            late_accepts += u32::from(drain.has_started());
            match accepted {
                Ok((stream, address)) => self.spawn(stream, address, place, shared, keeper),
                Err(error) => {
                    tracing::warn!(event = "accept_failed", %error, "could not accept a connection");
                    tokio::time::sleep(ACCEPT_REST).await;
                }
            }
        }
        drop(self.socket);
        let all = u32::try_from(self.bounds.connections_max).unwrap_or(u32::MAX);
        let _ = places.acquire_many(all).await;
    }

    fn spawn<S: Service>(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        place: OwnedSemaphorePermit,
        shared: &Arc<Shared<S>>,
        keeper: &Arc<Keeper>,
    ) {
        self.open.fetch_add(1, Ordering::Relaxed);
        let connection = Connection {
            peer: Peer { address, is_tls: self.is_tls() },
            shared: Arc::clone(shared),
            keeper: Arc::clone(keeper),
            place: ClientPlace(Arc::new((Open(Arc::clone(&self.open)), place))),
        };
        let (tls, head) = (self.tls.clone(), self.bounds.pace.head);
        // Small answers must not wait for an acknowledgement; a socket that cannot is as good.
        let _ = stream.set_nodelay(true);
        let Some(tls) = tls else {
            tokio::spawn(connection.serve(stream));
            return;
        };
        tokio::spawn(async move {
            if let Ok(Ok(stream)) = timeout(head, tls.accept(stream)).await {
                connection.serve(stream).await;
            }
        });
    }
}

/// Counts an open connection while it lives.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection's place among those that are open. A request that asks for an upgrade has it in its
/// extensions, so that the upgraded connection can keep it.
#[derive(Clone)]
pub(crate) struct ClientPlace(
    #[expect(dead_code, reason = "held, not read")] Arc<(Open, OwnedSemaphorePermit)>,
);

struct Connection<S> {
    peer: Peer,
    shared: Arc<Shared<S>>,
    keeper: Arc<Keeper>,
    place: ClientPlace,
}

/// What all connections of a listener share.
struct Shared<S> {
    service: S,
    drain: Drain,
}

impl<S: Service> Connection<S> {
    async fn serve<T>(self, socket: T)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let pulse = Pulse::new();
        let watched = self.keeper.watch(Arc::clone(&pulse));
        let (shared, place, requests) = (self.shared, self.place, Arc::clone(&pulse));
        let peer = self.peer;
        let answer = service_fn(move |mut request: Request<Incoming>| {
            let is_http1 = request.version() < Version::HTTP_2;
            let in_flight = requests.begin(request.version());
            let ambiguous = in_flight.is_ambiguous();
            let too_many = has_too_many_lines(request.headers());
            if is_http1 && request.headers().contains_key(header::UPGRADE) {
                request.extensions_mut().insert(place.clone());
            }
            let answering = if ambiguous {
                respond::problem(StatusCode::BAD_REQUEST, AMBIGUOUS).into()
            } else if too_many {
                let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
                respond::problem(status, "the head has too many lines").into()
            } else {
                shared.service.call(peer, request)
            };
            let shared = Arc::clone(&shared);
            answering.then(move |response| {
                if is_http1 && (ambiguous || shared.drain.has_started()) {
                    let close = HeaderValue::from_static("close");
                    response.headers_mut().insert(header::CONNECTION, close);
                }
                if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                    in_flight.switches();
                }
                response.body_mut().keep_in_flight(in_flight);
            })
        });
        let builder = builder();
        let socket = TokioIo::new(Paced::new(socket, pulse));
        let mut connection = pin!(builder.serve_connection_with_upgrades(socket, answer));
        let mut finishing = false;
        poll_fn(|context| {
            match watched.end(context.waker()) {
                Some(End::Drop) => return Poll::Ready(()),
                Some(End::Finish) if !std::mem::replace(&mut finishing, true) => {
                    connection.as_mut().graceful_shutdown();
                }
                Some(End::Finish) | None => {}
            }
            // How it ended concerns the peer alone.
            connection.as_mut().poll(context).map(drop)
        })
        .await;
    }
}

/// Whether a head has more lines than are served. Cookies, which HTTP/2 splits, are one line.
fn has_too_many_lines(headers: &HeaderMap) -> bool {
    let split_cookies = || headers.get_all(header::COOKIE).iter().count().saturating_sub(1);
    headers.len() > HEADERS_MAX && headers.len() - split_cookies() > HEADERS_MAX
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // The head's time is kept by the connection's pulse, so HTTP/1.1 needs no timer.
    builder.http1().max_headers(HEADERS_MAX).max_buf_size(HEAD_BYTES_MAX).half_close(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
        .max_concurrent_streams(STREAMS_MAX);
    builder
}
