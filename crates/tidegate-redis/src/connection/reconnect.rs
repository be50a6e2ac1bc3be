//! Makes a connection, and makes it again when it breaks.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::dial::{Dialer, OpenConnection};
use super::sentinel::{Sentinels, check_role};
use super::{Failure, LinkState, Signals};
use crate::config::{Endpoints, Server};
use crate::lock;

/// How long making a connection may take, with TLS and login.
const CONNECT_MAX: Duration = Duration::from_secs(2);
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// How many connections in a row may break as soon as they are made, before the next waits.
const SHORT_MAX: u32 = 5;
/// How often the sentinels are asked which server is the primary.
const ASK_SENTINELS_EVERY: Duration = Duration::from_secs(1);

/// Where to connect to.
#[derive(Clone)]
pub(crate) enum Target {
    /// This server.
    Server(Server),
    /// The server that the sentinels name.
    Sentinels(Arc<Sentinels>),
}

impl Target {
    /// The target of a deployment with one server; `None` for a cluster.
    pub(crate) fn single(endpoints: &Endpoints, dialer: &Dialer) -> Option<Self> {
        match endpoints {
            Endpoints::Single(server) => Some(Self::Server(server.clone())),
            Endpoints::Sentinel { sentinels, primary } => {
                let sentinels = Sentinels::new(sentinels.clone(), primary.clone(), dialer);
                Some(Self::Sentinels(Arc::new(sentinels)))
            }
            Endpoints::Cluster { .. } => None,
        }
    }

    /// The server, as it is now.
    pub(crate) async fn find(&self) -> Result<Server, Failure> {
        match self {
            Self::Server(server) => Ok(server.clone()),
            Self::Sentinels(sentinels) => sentinels.primary().await,
        }
    }
}

/// The task that makes a connection again and again.
pub(super) struct Reconnector {
    pub(super) dialer: Dialer,
    pub(super) target: Target,
    pub(super) publish: watch::Sender<LinkState>,
    pub(super) signals: Arc<Signals>,
}

impl Reconnector {
    /// Runs until the connection has no users.
    pub(super) async fn run(self) {
        tokio::select! {
            () = self.keep_connected() => {}
            () = self.publish.closed() => {}
        }
    }

    async fn keep_connected(&self) {
        let (mut backoff, mut short, mut number) = (Backoff::default(), 0, 0);
        loop {
            match timeout(CONNECT_MAX, self.connect()).await {
                Ok(Ok((server, open))) => {
                    let since = Instant::now();
                    number += 1;
                    self.hold(&server, open, number).await;
                    backoff = Backoff::default();
                    // A connection that broke is made again at once, unless it keeps breaking.
                    short = if since.elapsed() < BACKOFF_MIN { short + 1 } else { 0 };
                    if short < SHORT_MAX {
                        continue;
                    }
                }
                Ok(Err(failure)) => self.set_failure(failure),
                Err(_) => self.set_failure(Failure::no_connection_in(CONNECT_MAX)),
            }
            self.publish.send_replace(LinkState::Down);
            backoff.wait().await;
        }
    }

    async fn connect(&self) -> Result<(Server, OpenConnection), Failure> {
        let server = self.target.find().await?;
        let mut open = self.dialer.dial(&server).await?;
        if matches!(self.target, Target::Sentinels(_)) {
            check_role(&mut open).await?;
        }
        Ok((server, open))
    }

    /// Publishes a connection until it breaks or is given up.
    async fn hold(&self, server: &Server, open: OpenConnection, number: u64) {
        self.publish.send_replace(LinkState::Up(open.connection, number));
        tokio::select! {
            () = open.driver => self.set_failure(Failure::closed()),
            () = self.signals.give_up.notified() => {}
            () = self.primary_moved(server) => {}
        }
        self.publish.send_replace(LinkState::Connecting);
    }

    /// Ends when the sentinels name another server. While none answers, this one is as good as any.
    async fn primary_moved(&self, server: &Server) {
        let Target::Sentinels(sentinels) = &self.target else {
            return std::future::pending().await;
        };
        loop {
            sleep(ASK_SENTINELS_EVERY).await;
            if sentinels.primary().await.is_ok_and(|primary| primary != *server) {
                return;
            }
        }
    }

    fn set_failure(&self, failure: Failure) {
        *lock(&self.signals.last_failure) = Some(failure);
    }
}

/// The waiting times between attempts: each is twice as long as the one before.
pub(crate) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(BACKOFF_MIN)
    }
}

impl Backoff {
    /// Waits, up to a quarter less than the full time: nodes that lost a server together come back one
    /// after the other.
    pub(crate) async fn wait(&mut self) {
        let Self(wait) = *self;
        sleep((wait - wait / 4) + (wait / 64) * fastrand::u32(0..=16)).await;
        self.0 = (wait * 2).min(BACKOFF_MAX);
    }
}
