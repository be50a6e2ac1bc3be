//! What makes a connection, and makes it again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::dial::{Dialer, Made};
use super::sentinel::{Sentinels, check_role};
use super::{Failure, Link, Signals};
use crate::config::{Place, Server};

/// How long making a connection may take, with greetings and password.
const CONNECT_MAX: Duration = Duration::from_secs(2);
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// How many connections in a row may break as soon as they are made, before the next waits.
const SHORT_MAX: u32 = 5;
/// How often the sentinels are asked whether the master is still the master.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Where to connect to.
#[derive(Clone)]
pub(crate) enum Target {
    /// Here.
    Server(Server),
    /// Wherever the sentinels say.
    Named(Arc<Sentinels>),
}

impl Target {
    /// The only server there is, or the one that sentinels name; `None` for a cluster.
    pub(crate) fn only(place: &Place, dialer: &Dialer) -> Option<Self> {
        match place {
            Place::Single(server) => Some(Self::Server(server.clone())),
            Place::Sentinel { sentinels, master } => {
                let sentinels = Sentinels::new(sentinels.clone(), master.clone(), dialer);
                Some(Self::Named(Arc::new(sentinels)))
            }
            Place::Cluster { .. } => None,
        }
    }

    /// Where that is now.
    pub(crate) async fn find(&self) -> Result<Server, Failure> {
        match self {
            Self::Server(server) => Ok(server.clone()),
            Self::Named(sentinels) => sentinels.master().await,
        }
    }
}

/// What makes the connection, and makes it again.
pub(super) struct Keeper {
    pub(super) dialer: Dialer,
    pub(super) target: Target,
    pub(super) publish: watch::Sender<Link>,
    pub(super) signals: Arc<Signals>,
}

impl Keeper {
    /// Runs until nobody is left who could use a connection.
    pub(super) async fn run(self) {
        tokio::select! {
            () = self.keep() => {}
            () = self.publish.closed() => {}
        }
    }

    async fn keep(&self) {
        let (mut backoff, mut short, mut number) = (BACKOFF_MIN, 0, 0);
        loop {
            match timeout(CONNECT_MAX, self.connect()).await {
                Ok(Ok((server, made))) => {
                    let since = Instant::now();
                    number += 1;
                    self.hold(&server, made, number).await;
                    backoff = BACKOFF_MIN;
                    // One that broke is made again at once, unless it breaks again and again.
                    short = if since.elapsed() < BACKOFF_MIN { short + 1 } else { 0 };
                    if short < SHORT_MAX {
                        continue;
                    }
                }
                Ok(Err(failure)) => self.signals.set_trouble(failure),
                Err(_) => self.signals.set_trouble(Failure::no_connection_in(CONNECT_MAX)),
            }
            self.publish.send_replace(Link::Down);
            sleep(jittered(backoff)).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    async fn connect(&self) -> Result<(Server, Made), Failure> {
        let server = self.target.find().await?;
        let mut made = self.dialer.dial(&server).await?;
        if matches!(self.target, Target::Named(_)) {
            check_role(&mut made).await?;
        }
        Ok((server, made))
    }

    /// Lets everybody use a connection until it breaks or is given up.
    async fn hold(&self, server: &Server, made: Made, number: u64) {
        self.publish.send_replace(Link::Up(made.connection, number));
        tokio::select! {
            () = made.driver => self.signals.set_trouble(Failure::closed()),
            () = self.signals.give_up.notified() => {}
            () = self.is_elsewhere(server) => {}
        }
        self.publish.send_replace(Link::Connecting);
    }

    /// Ends when the sentinels name another server. While none answers, this one is as good as any.
    async fn is_elsewhere(&self, server: &Server) {
        let Target::Named(sentinels) = &self.target else { return std::future::pending().await };
        loop {
            sleep(LOOK_EVERY).await;
            if sentinels.master().await.is_ok_and(|master| master != *server) {
                return;
            }
        }
    }
}

/// Up to a quarter less, so that nodes that lost a server together do not come back together.
pub(crate) fn jittered(wait: Duration) -> Duration {
    (wait - wait / 4) + (wait / 64) * fastrand::u32(0..=16)
}
