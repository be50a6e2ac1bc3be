//! Connections to the upstream are bounded, be they in use, kept for the next request or a tunnel.
//!
//! Whoever needs one takes a kept connection, last used first, or a place for a new one. Where there
//! is neither, requests stand in line, and what comes free goes to the first of them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::oneshot::{self, Receiver};
use tokio::time::{Instant, timeout_at};

use super::GatewayBounds;
use super::connection::Sender;

/// How often kept connections are looked at, at most.
const SWEEP_MIN: Duration = Duration::from_millis(100);

pub(super) struct Places {
    bounds: GatewayBounds,
    stock: Mutex<Stock>,
}

struct Stock {
    /// Connections that wait for the next request, the last used at the back.
    idle: VecDeque<Idle>,
    /// Whether somebody will close those that wait for too long.
    sweeping: bool,
    /// How many more may be opened.
    free: usize,
    line: VecDeque<oneshot::Sender<Turn>>,
}

struct Idle {
    sender: Sender,
    since: Instant,
}

/// What a request goes on with.
pub(super) enum Turn {
    /// A kept connection, which may have ended meanwhile.
    Kept(Sender),
    /// A new one may be opened.
    Open(UpstreamPlace),
}

/// How long a request may stand in line, from the first time that it has to.
pub(super) struct Patience {
    bound: Duration,
    until: Option<Instant>,
}

impl Patience {
    pub(super) fn of(bound: Duration) -> Self {
        Self { bound, until: None }
    }

    fn until(&mut self) -> Instant {
        *self.until.get_or_insert_with(|| Instant::now() + self.bound)
    }
}

impl Places {
    pub(super) fn new(bounds: GatewayBounds) -> Arc<Self> {
        let (idle, line, free) = (VecDeque::new(), VecDeque::new(), bounds.connections_max);
        Arc::new(Self { bounds, stock: Mutex::new(Stock { idle, sweeping: false, free, line }) })
    }

    /// A kept connection, or a place for a new one; `None` if neither comes in time.
    pub(super) async fn turn(self: &Arc<Self>, patience: &mut Patience) -> Option<Turn> {
        match self.ask() {
            Ok(turn) => Some(turn),
            Err(given) => timeout_at(patience.until(), given).await.ok()?.ok(),
        }
    }

    /// A place for a new connection. Where there is none, the kept one that was used longest ago is
    /// closed to make room, and so is one that is offered instead.
    pub(super) async fn place(self: &Arc<Self>, patience: &mut Patience) -> Option<UpstreamPlace> {
        loop {
            let given = match self.ask_for_place() {
                Ok(place) => return Some(place),
                Err(given) => given,
            };
            if let Turn::Open(place) = timeout_at(patience.until(), given).await.ok()?.ok()? {
                return Some(place);
            }
        }
    }

    /// Keeps a connection for the next request.
    pub(super) fn keep(self: &Arc<Self>, mut sender: Sender) {
        let since = Instant::now();
        let mut stock = self.lock();
        while let Some(first) = stock.first_in_line() {
            match first.send(Turn::Kept(sender)) {
                Err(Turn::Kept(refused)) => sender = refused,
                _ => return,
            }
        }
        stock.idle.push_back(Idle { sender, since });
        if stock.idle.len() > self.bounds.idle_max {
            stock.idle.pop_front();
        }
        if !std::mem::replace(&mut stock.sweeping, true) {
            tokio::spawn(sweep(Arc::downgrade(self), self.bounds.idle));
        }
    }

    /// Closes what was kept for too long; returns whether anything is left.
    fn close_old(&self) -> bool {
        let mut stock = self.lock();
        let is_old = |oldest: &Idle| oldest.since.elapsed() >= self.bounds.idle;
        while stock.idle.front().is_some_and(is_old) {
            stock.idle.pop_front();
        }
        stock.sweeping = !stock.idle.is_empty();
        stock.sweeping
    }

    fn ask(self: &Arc<Self>) -> Result<Turn, Receiver<Turn>> {
        let mut stock = self.lock();
        while let Some(Idle { sender, since }) = stock.idle.pop_back() {
            if since.elapsed() < self.bounds.idle {
                return Ok(Turn::Kept(sender));
            }
        }
        match stock.take_free() {
            true => Ok(Turn::Open(UpstreamPlace(Arc::downgrade(self)))),
            false => Err(stock.stand_in_line()),
        }
    }

    fn ask_for_place(self: &Arc<Self>) -> Result<UpstreamPlace, Receiver<Turn>> {
        let mut stock = self.lock();
        if stock.take_free() {
            return Ok(UpstreamPlace(Arc::downgrade(self)));
        }
        let (oldest, given) = (stock.idle.pop_front(), stock.stand_in_line());
        // Its place goes to the first in line once its socket is closed.
        drop(stock);
        drop(oldest);
        Err(given)
    }

    fn lock(&self) -> MutexGuard<'_, Stock> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stock {
    fn take_free(&mut self) -> bool {
        let left = self.free.checked_sub(1);
        self.free = left.unwrap_or(0);
        left.is_some()
    }

    fn stand_in_line(&mut self) -> Receiver<Turn> {
        // Where nothing comes free for long, those who gave up must not pile up: the first who came
        // are the first to do so.
        while self.line.front().is_some_and(oneshot::Sender::is_closed) {
            self.line.pop_front();
        }
        let (give, given) = oneshot::channel();
        self.line.push_back(give);
        given
    }

    /// The first who has not given up.
    fn first_in_line(&mut self) -> Option<oneshot::Sender<Turn>> {
        while let Some(first) = self.line.pop_front() {
            if !first.is_closed() {
                return Some(first);
            }
        }
        None
    }
}

/// Closes kept connections when their time is over, for as long as there are any.
async fn sweep(places: Weak<Places>, every: Duration) {
    loop {
        tokio::time::sleep((every / 4).max(SWEEP_MIN)).await;
        if !places.upgrade().is_some_and(|places| places.close_old()) {
            return;
        }
    }
}

/// The right to one open connection, for as long as it is held.
pub(super) struct UpstreamPlace(Weak<Places>);

impl Drop for UpstreamPlace {
    fn drop(&mut self) {
        let Some(places) = self.0.upgrade() else { return };
        let first = {
            let mut stock = places.lock();
            let first = stock.first_in_line();
            stock.free += usize::from(first.is_none());
            first
        };
        // Whoever gives up at this very moment drops it once more, for the next in line.
        if let Some(first) = first {
            drop(first.send(Turn::Open(Self(Weak::clone(&self.0)))));
        }
    }
}
