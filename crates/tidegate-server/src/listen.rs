//! Sockets: accepting connections, TLS, bounds on connections and heads, and letting go.
//!
//! Every connection is served by hyper in a task of its own. HTTP/1.1 and HTTP/2 are told apart by
//! the first bytes. The number of connections is bounded: beyond it the system's own queue holds
//! those that come, so that nobody is refused for arriving in a crowd.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, interval, timeout};
use tokio_rustls::TlsAcceptor;

use crate::body::Body;
use crate::drain::Drain;
use crate::pace::{Late, Pace, Paced, Pulse};
use crate::respond;
use crate::tls::Certificates;

/// At most so many header lines, where cookies are one.
const HEADERS_MAX: usize = 100;
/// The longest head of a request, and the most that is read ahead of one connection.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// At most so many requests at once on one HTTP/2 connection.
const STREAMS_MAX: u32 = 256;
/// How long a drained connection may stay idle before it is closed: its next request may be on the
/// way already.
const DRAIN_IDLE: Duration = Duration::from_millis(500);
/// How often a drained connection is looked at.
const DRAIN_CHECK: Duration = Duration::from_millis(50);
/// How long a connection without a request may take to end.
const LAST_WORD: Duration = Duration::from_secs(1);
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
pub(crate) trait Service: Clone + Send + Sync + 'static {
    fn call(
        &self,
        peer: Peer,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Body>> + Send;
}

/// ListenerBounds on the connections of one listener.
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
        let places = Arc::new(Semaphore::new(self.bounds.connections_max));
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
                Ok((stream, address)) => self.spawn(stream, address, place, &service, &drain),
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
        service: &S,
        drain: &Drain,
    ) {
        self.open.fetch_add(1, Ordering::Relaxed);
        let connection = Connection {
            peer: Peer { address, is_tls: self.is_tls() },
            pace: self.bounds.pace,
            service: service.clone(),
            drain: drain.clone(),
            place: ClientPlace(Arc::new((Open(Arc::clone(&self.open)), place))),
        };
        let tls = self.tls.clone();
        // Small answers must not wait for an acknowledgement; a socket that cannot is as good.
        let _ = stream.set_nodelay(true);
        let Some(tls) = tls else {
            tokio::spawn(connection.serve(stream));
            return;
        };
        tokio::spawn(async move {
            if let Ok(Ok(stream)) = timeout(connection.pace.head, tls.accept(stream)).await {
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
    pace: Pace,
    service: S,
    drain: Drain,
    place: ClientPlace,
}

impl<S: Service> Connection<S> {
    async fn serve<T>(self, socket: T)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let pulse = Pulse::new();
        let (service, drain, peer) = (self.service.clone(), self.drain.clone(), self.peer);
        let (requests, place) = (Arc::clone(&pulse), self.place.clone());
        let answer = service_fn(move |mut request: Request<Incoming>| {
            let is_http1 = request.version() < Version::HTTP_2;
            let in_flight = requests.begin(request.version());
            let ambiguous = in_flight.is_ambiguous();
            let too_many = header_lines(request.headers()) > HEADERS_MAX;
            if is_http1 && request.headers().contains_key(header::UPGRADE) {
                request.extensions_mut().insert(place.clone());
            }
            let (service, drain) = (service.clone(), drain.clone());
            async move {
                let mut response = if ambiguous {
                    respond::problem(StatusCode::BAD_REQUEST, AMBIGUOUS)
                } else if too_many {
                    let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
                    respond::problem(status, "the head has too many lines")
                } else {
                    service.call(peer, request).await
                };
                if is_http1 && (ambiguous || drain.has_started()) {
                    let close = HeaderValue::from_static("close");
                    response.headers_mut().insert(header::CONNECTION, close);
                }
                if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                    in_flight.switches();
                }
                Ok::<_, Infallible>(response.map(|body| body.in_flight(in_flight)))
            }
        });
        let builder = builder();
        let socket = TokioIo::new(Paced::new(socket, Arc::clone(&pulse)));
        let mut connection = pin!(builder.serve_connection_with_upgrades(socket, answer));
        let mut check = interval(self.pace.check_every());
        let mut draining = pin!(self.drain.started());
        let (mut drained, mut finishing): (Option<Instant>, Option<Instant>) = (None, None);
        loop {
            tokio::select! {
                // How it ended concerns the peer alone.
                _ = connection.as_mut() => return,
                _ = check.tick() => match self.verdict(&pulse, drained) {
                    Verdict::Stay => {}
                    Verdict::Finish if is_over(&pulse, finishing) => return,
                    Verdict::Finish => {
                        finishing.get_or_insert_with(Instant::now);
                        connection.as_mut().graceful_shutdown();
                    }
                    Verdict::Drop => return,
                },
                () = &mut draining, if drained.is_none() => {
                    drained = Some(Instant::now());
                    check = interval(DRAIN_CHECK);
                }
            }
        }
    }

    fn verdict(&self, pulse: &Pulse, drained: Option<Instant>) -> Verdict {
        match pulse.late(&self.pace) {
            // Whoever stalls gets no further attention.
            Some(Late::Head | Late::Stalled) => return Verdict::Drop,
            Some(Late::Idle) => return Verdict::Finish,
            None => {}
        }
        let Some(drained) = drained else { return Verdict::Stay };
        // HTTP/2 has a word for it; in HTTP/1.1 the next request may be on the way already.
        let idle_for = pulse.idle_for().unwrap_or_default().min(drained.elapsed());
        if pulse.is_multiplexed() || (idle_for >= DRAIN_IDLE && !pulse.is_inside_head()) {
            Verdict::Finish
        } else {
            Verdict::Stay
        }
    }
}

/// How many lines a head has in HTTP/1.1, where the cookies that HTTP/2 splits are one.
fn header_lines(headers: &HeaderMap) -> usize {
    let cookies = headers.get_all(header::COOKIE).iter().count();
    headers.len() - cookies.saturating_sub(1)
}

/// Whether a connection has had its time to end by itself. HTTP/2 asks the peer for a last word, which
/// may never come.
fn is_over(pulse: &Pulse, finishing: Option<Instant>) -> bool {
    let asked_for = finishing.map(|since| since.elapsed()).unwrap_or_default();
    pulse.idle_for().is_some_and(|idle_for| idle_for.min(asked_for) >= LAST_WORD)
}

/// What becomes of a connection.
enum Verdict {
    Stay,
    /// It ends once its requests are answered.
    Finish,
    Drop,
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
