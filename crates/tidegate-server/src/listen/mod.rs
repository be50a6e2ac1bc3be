//! Listening sockets, and the connections that they accept.
//!
//! ```text
//! accept, with a permit ─► TLS ─► connection: hyper, HTTP/1.1 or HTTP/2 ─► Service::call ─► answer
//!                                     │ notes every byte and request (timeouts.rs, framing.rs)
//!                                     ▼
//!                       one reaper a listener ends slow and idle connections (reaper.rs)
//! ```
//!
//! Every connection is served in a task of its own. The number of connections is bounded. Beyond it the
//! system's queue holds new connections, so that a crowd is not refused. In a crowd, no address has more
//! than its share (registry.rs).

mod answer;
mod connection;
mod frames;
mod framing;
mod patience;
mod reaper;
mod registry;
#[cfg(test)]
mod tests;
mod timeouts;
mod unread;
mod untaken;

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response};
use tidegate::engine::identity::ClientNetwork;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

pub(crate) use timeouts::ConnectionTimeouts;
pub(crate) use unread::RequestBody;

use crate::body::Body;
use crate::drain::Drain;
use crate::tls::Certificates;
use connection::Connection;
use reaper::{ConnectionPlace, Reaper, Registration};

/// How many connections the system's queue holds until they are accepted, where the system lets us
/// choose. Once a drain has started at most this many are accepted, or new ones would delay its end.
const BACKLOG: u32 = 4096;
/// How long to rest when the system has no more sockets to give.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) is_tls: bool,
}

/// What a listener does with a request.
pub(crate) trait Service: Send + Sync + 'static {
    fn call(
        &self,
        peer: Peer,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Response<Body>> + Send;

    /// The client behind an address, which has its share of the connections; `None` where all clients
    /// may come from one address.
    fn client_of(&self, _address: IpAddr) -> Option<ClientNetwork> {
        None
    }
}

/// Bounds on the connections of one listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListenerBounds {
    pub(crate) connections_max: usize,
    /// The most connections of one address in a crowd.
    pub(crate) address_share: usize,
    pub(crate) timeouts: ConnectionTimeouts,
}

/// A socket that is bound, and not yet served.
pub(crate) struct Listener {
    socket: TcpListener,
    tls: Option<TlsAcceptor>,
    bounds: ListenerBounds,
    /// The number of open connections, for the metrics.
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
        // A restart must not wait until the system has forgotten the last connections.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let socket = socket.listen(BACKLOG)?;
        Ok(Self { socket, tls, bounds, open: Arc::default() })
    }

    /// The bound address, with the port that the system chose for port 0.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    pub(crate) fn url(&self) -> io::Result<String> {
        let scheme = if self.is_tls() { "https" } else { "http" };
        Ok(format!("{scheme}://{}", self.address()?))
    }

    /// The number of open connections.
    pub(crate) fn open_connections(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.open)
    }

    /// Serves until a drain has started and all connections have ended.
    pub(crate) async fn serve<S: Service>(self, service: S, drain: Drain) {
        let reaper = Reaper::new(&self.bounds);
        let (reaping, draining, mut tasks) = (Arc::clone(&reaper), drain.clone(), JoinSet::new());
        // In a task of its own, which a crowd of new connections does not delay.
        tasks.spawn(async move { reaping.run(&draining).await });
        self.accept_all(&Arc::new(service), &drain, &reaper).await;
    }

    async fn accept_all<S: Service>(self, service: &Arc<S>, drain: &Drain, reaper: &Arc<Reaper>) {
        let permits =
            Arc::new(Semaphore::new(self.bounds.connections_max.min(Semaphore::MAX_PERMITS)));
        let mut started = pin!(drain.started());
        let mut late_accepts = 0;
        while late_accepts < BACKLOG {
            let permit = tokio::select! {
                biased;
                permit = Arc::clone(&permits).acquire_owned() => permit,
                () = &mut started => break,
            };
            // The semaphore is never closed, so that a permit always comes.
            let Ok(permit) = permit else { break };
            let accepted = tokio::select! {
                biased;
                accepted = self.socket.accept() => accepted,
                () = &mut started => break,
            };
            late_accepts += u32::from(drain.has_started());
            match accepted {
                Ok((stream, address)) => {
                    let client = service.client_of(address.ip());
                    let Some((registration, place)) = reaper.register(client) else {
                        tracing::debug!(event = "connection_refused", "an address has its share");
                        continue;
                    };
                    let peer = Peer { address, is_tls: self.is_tls() };
                    let permit = Arc::new(ConnectionPermit::new(&self.open, permit, place));
                    let (service, drain) = (service.clone(), drain.clone());
                    self.spawn(stream, Connection { peer, service, drain, permit }, registration);
                }
                Err(error) => {
                    tracing::warn!(event = "accept_failed", %error, "could not accept a connection");
                    tokio::time::sleep(ACCEPT_REST).await;
                }
            }
        }
        drop(self.socket);
        let all = u32::try_from(self.bounds.connections_max).unwrap_or(u32::MAX);
        let _ = permits.acquire_many(all).await;
    }

    fn spawn<S: Service>(
        &self,
        stream: TcpStream,
        connection: Connection<S>,
        mut registration: Registration,
    ) {
        // Small answers must not wait for an acknowledgement. A socket that refuses works as well.
        let _ = stream.set_nodelay(true);
        let Some(tls) = self.tls.clone() else {
            tokio::spawn(connection.serve(stream, registration));
            return;
        };
        let head_timeout = self.bounds.timeouts.head;
        tokio::spawn(async move {
            let accepted = tokio::select! {
                accepted = timeout(head_timeout, tls.accept(stream)) => accepted,
                _ = registration.dropped() => return,
            };
            if let Ok(Ok(stream)) = accepted {
                connection.serve(stream, registration).await;
            }
        });
    }
}

/// The right to one open connection, which counts as open until the permit is dropped. A request for an
/// upgrade has the permit in its extensions, so that the tunnel can keep it.
pub(crate) struct ConnectionPermit {
    open: Arc<AtomicUsize>,
    #[expect(dead_code, reason = "held, not read")]
    held: (ConnectionPlace, OwnedSemaphorePermit),
}

impl ConnectionPermit {
    fn new(open: &Arc<AtomicUsize>, permit: OwnedSemaphorePermit, place: ConnectionPlace) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self { open: Arc::clone(open), held: (place, permit) }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}
