//! Many asks in one call: what arrives while calls are under way travels together in the next.
//!
//! It refuses what it cannot hold, forgets what nobody waits for any more, and knows nothing of Redis.

mod calls;

use std::future::{Future, poll_fn};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use calls::Calls;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};

/// What may be in one call, so that nobody waits long for others.
const ASKS_MAX: usize = 64;
const KEYS_MAX: usize = 256;
/// How many calls may be under way at once, for servers that are far away. A near one is as fast with
/// one at a time.
const CALLS_MAX: usize = 4;
/// How many if all further ones are full: where this process is so busy that it seldom sees to the
/// replies, what it can ask in between must not be what limits it.
const CALLS_FULL_MAX: usize = 16;
/// From how many asks on a call waits for no other: with more, each costs the server hardly less.
const ASKS_ENOUGH: usize = 32;
/// How long an ask waits for the reply to the call before it. Those that arrive later see to it to the
/// microsecond; without any, the runtime's timer does, which adds up to a millisecond.
const PATIENCE: Duration = Duration::from_micros(500);
/// How many asks may wait: as many as a server could answer in the half of their time in which they
/// are sent, at 4 microseconds each, within these bounds. Each takes a few kilobytes of this process.
const QUEUE: RangeInclusive<usize> = 4_096..=16_384;
const FASTEST_US: u128 = 4;

/// Something to ask.
pub(crate) trait Weighed: Send + 'static {
    /// How many keys it touches.
    fn keys(&self) -> usize;
}

/// What carries out a call.
pub(crate) trait Caller: Send + Sync + 'static {
    /// What can be asked.
    type Ask: Weighed;
    /// One answer, or why there is none.
    type Told: Send + 'static;

    /// Carries out all asks in one call. One answer for each, in order. However long they waited
    /// before, the call has the time that it may take: it tells how the server is.
    fn call(&self, asks: Vec<Self::Ask>) -> impl Future<Output = Vec<Self::Told>> + Send;
}

/// Why an ask was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// Too many wait already, or it waited too long because of them; it was not sent.
    Full,
    /// Its deadline passed; whether it was carried out is unknown.
    Late,
    /// Its call ended without an answer to it; whether it was carried out is unknown.
    Lost,
}

/// The way to a caller. Clones share it; the last one to go ends it.
pub(crate) struct Batch<C: Caller> {
    queue: mpsc::Sender<Waiting<C>>,
}

struct Waiting<C: Caller> {
    ask: C::Ask,
    /// When too little time would be left for an answer.
    send_by: Instant,
    answer: Answer<C>,
}

type Answer<C> = oneshot::Sender<Result<<C as Caller>::Told, Unanswered>>;

impl<C: Caller> Clone for Batch<C> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone() }
    }
}

impl<C: Caller> Batch<C> {
    /// Starts it for asks that have so much time, on the runtime that this is called on.
    pub(crate) fn start(caller: Arc<C>, within: Duration) -> Self {
        let (queue, asks) = mpsc::channel(most_waiting(within));
        tokio::spawn(Dispatcher::new(caller, asks).run());
        Self { queue }
    }

    /// Asks, and waits for the answer until `deadline`. An ask that is given up before it is sent is
    /// never sent, nor is one that waits for half of its time.
    pub(crate) async fn ask(&self, ask: C::Ask, deadline: Instant) -> Result<C::Told, Unanswered> {
        let (answer, answered) = oneshot::channel();
        let send_by = deadline - deadline.saturating_duration_since(Instant::now()) / 2;
        self.queue.try_send(Waiting { ask, send_by, answer }).map_err(|_| Unanswered::Full)?;
        match timeout_at(deadline, answered).await {
            Ok(Ok(told)) => told,
            Ok(Err(_)) if deadline <= Instant::now() => Err(Unanswered::Late),
            Ok(Err(_)) => Err(Unanswered::Lost),
            Err(_) => Err(Unanswered::Late),
        }
    }

    /// How many asks wait behind those of the next call.
    pub(crate) fn queued(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }
}

fn most_waiting(within: Duration) -> usize {
    let answered = within.as_micros() / 2 / FASTEST_US;
    usize::try_from(answered).unwrap_or(usize::MAX).clamp(*QUEUE.start(), *QUEUE.end())
}

/// Takes asks from the queue and makes calls of them.
struct Dispatcher<C: Caller> {
    caller: Arc<C>,
    asks: mpsc::Receiver<Waiting<C>>,
    next: Next<C>,
    calls: Calls,
}

/// The next call, as far as it is known.
struct Next<C: Caller> {
    asks: Vec<Waiting<C>>,
    keys: usize,
    /// When its first ask was taken.
    since: Instant,
}

impl<C: Caller> Next<C> {
    fn new() -> Self {
        Self { asks: Vec::new(), keys: 0, since: Instant::now() }
    }

    fn is_full(&self) -> bool {
        self.asks.len() >= ASKS_MAX || self.keys >= KEYS_MAX
    }

    /// Whether it need not wait for the one before it.
    fn is_due(&self, now: Instant) -> bool {
        self.asks.len() >= ASKS_ENOUGH || self.keys >= KEYS_MAX || now >= self.since + PATIENCE
    }

    /// Leaves out what nobody waits for any more, and refuses what waited too long.
    fn shed(&mut self, now: Instant) {
        let is_over =
            |waiting: &mut Waiting<C>| waiting.answer.is_closed() || waiting.send_by <= now;
        for Waiting { ask, answer, .. } in self.asks.extract_if(.., is_over) {
            self.keys -= ask.keys();
            _ = answer.send(Err(Unanswered::Full));
        }
    }

    fn take(&mut self, waiting: Waiting<C>) {
        if self.asks.is_empty() {
            self.since = Instant::now();
        }
        self.keys += waiting.ask.keys();
        self.asks.push(waiting);
    }
}

impl<C: Caller> Dispatcher<C> {
    fn new(caller: Arc<C>, asks: mpsc::Receiver<Waiting<C>>) -> Self {
        Self { caller, asks, next: Next::new(), calls: Calls::default() }
    }

    /// Runs until nobody is left who could ask.
    async fn run(mut self) {
        loop {
            let (waits, full) = (!self.next.asks.is_empty(), self.next.is_full());
            let may_call = self.may_call();
            tokio::select! {
                biased;
                () = self.calls.one_ends() => {
                    // Those who were just answered may ask for more, which then travels along.
                    let_others_go_first().await;
                    self.flush();
                }
                taken = self.asks.recv(), if !full => match taken {
                    Some(waiting) => self.take(waiting),
                    None => return,
                },
                () = sleep_until(self.next.since + PATIENCE), if waits && may_call => self.flush(),
            }
        }
    }

    /// Takes all that has arrived. Nothing is gained by waiting while no call is under way, or with
    /// asks enough for one.
    fn take(&mut self, first: Waiting<C>) {
        self.next.take(first);
        self.fill(ASKS_MAX);
        if self.calls.len() == 0 || (self.may_call() && self.next.is_due(Instant::now())) {
            self.flush();
        }
    }

    fn may_call(&self) -> bool {
        let max = if self.next.is_full() { CALLS_FULL_MAX } else { CALLS_MAX };
        self.calls.len() < max
    }

    fn fill(&mut self, asks: usize) {
        while self.next.asks.len() < asks
            && !self.next.is_full()
            && let Ok(waiting) = self.asks.try_recv()
        {
            self.next.take(waiting);
        }
    }

    /// Sends all that wait, as far as one call can hold them: what is still in the queue has arrived
    /// too. What waited too long makes room for what did not.
    fn flush(&mut self) {
        let now = Instant::now();
        loop {
            self.fill(ASKS_MAX);
            let arrived = self.next.asks.len();
            self.next.shed(now);
            if self.next.asks.len() == arrived {
                break;
            }
        }
        if self.next.asks.is_empty() {
            return;
        }
        let next = std::mem::replace(&mut self.next, Next::new());
        let (asks, answers): (Vec<_>, Vec<_>) =
            next.asks.into_iter().map(|waiting| (waiting.ask, waiting.answer)).unzip();
        let caller = Arc::clone(&self.caller);
        self.calls.push(async move {
            let told = caller.call(asks).await;
            for (answer, told) in answers.into_iter().zip(told) {
                // Whoever gave up in the meantime needs no answer.
                _ = answer.send(Ok(told));
            }
        });
    }
}

/// Lets everybody have a turn who is ready for one. The runtime's own way to do it also waits for the
/// sockets to be looked at, which is much later where many are ready.
async fn let_others_go_first() {
    let mut gone = false;
    poll_fn(|context| {
        if std::mem::replace(&mut gone, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests;
