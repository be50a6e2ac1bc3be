//! A bad network: a proxy between a client and a server that delays, stalls, cuts and loses.
//!
//! The fault can be changed while the proxy runs. The proxy breaks no rule of TCP: a connection may be
//! late, silent or gone, but bytes never overtake each other, and a connection that has lost an answer
//! stays silent until it is cut.

mod acceptor;
mod link;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::servers::free_port;
use link::Link;

/// What the proxy does to connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// Delays bytes by this time, in each direction.
    Delay(Duration),
    /// Accepts connections and keeps them open, but passes nothing on (half-open). Bytes that were
    /// sent meanwhile arrive when the fault is over.
    Stall,
    /// Requests arrive, answers do not.
    DropAnswers,
    /// Refuses new connections; open ones go on.
    Refuse,
}

/// A proxy on a port of its own; it ends with its owner.
///
/// ```no_run
/// use tidegate_testkit::proxy::{Fault, Proxy};
/// use tidegate_testkit::servers::Server;
///
/// # fn main() -> std::io::Result<()> {
/// let redis = Server::start()?;
/// let proxy = Proxy::to(redis.addr())?;
/// // … a client of proxy.url() …
/// proxy.set(Fault::DropAnswers);
/// proxy.cut();
/// proxy.set(Fault::None);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

/// What the threads of a proxy share.
#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    fault: Fault,
    closing: bool,
    /// Whether the proxy listens: not while it refuses connections.
    listening: bool,
    links: Vec<Arc<Link>>,
    accepted: usize,
}

impl Proxy {
    /// Starts one in front of a server.
    ///
    /// # Errors
    /// There is no free port.
    pub fn to(server: SocketAddr) -> io::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { server, state, changed });
        let listener = acceptor::listen(&shared, address)?;
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || acceptor::run(&shared, address, listener)
        });
        Ok(Self { address, shared, acceptor: Some(acceptor) })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// The URL for clients of Redis.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Sets the fault, for open connections too.
    pub fn set(&self, fault: Fault) {
        let mut state = self.shared.state();
        state.fault = fault;
        self.shared.changed.notify_all();
        let listens = fault != Fault::Refuse;
        if state.listening == listens {
            return;
        }
        drop(state);
        if !listens {
            self.shared.wake_acceptor(self.address);
        }
        let settled = |state: &mut State| state.listening != listens && state.fault == fault;
        drop(self.shared.changed.wait_while(self.shared.state(), settled));
    }

    /// Cuts all open connections.
    pub fn cut(&self) {
        // The lock is held throughout; otherwise a thread that is about to wait would miss the change.
        let mut state = self.shared.state();
        for link in std::mem::take(&mut state.links) {
            link.cut();
        }
        self.shared.changed.notify_all();
    }

    /// How many connections are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.state().links.iter().filter(|link| link.is_open()).count()
    }

    /// How many connections were ever made through it.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.shared.state().accepted
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.state().closing = true;
        self.shared.changed.notify_all();
        self.cut();
        self.shared.wake_acceptor(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            // A thread that panicked has said so already.
            let _ = acceptor.join();
        }
        self.cut();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread that waits for connections, by opening one.
    fn wake_acceptor(&self, address: SocketAddr) {
        let _ = std::net::TcpStream::connect(address);
    }
}
