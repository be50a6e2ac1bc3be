//! Batches commands: those that arrive while calls are under way travel together in the next call.
//!
//! The queue is bounded, and commands that nobody waits for any more are dropped. Nothing here knows
//! Redis.

mod in_flight;

use std::future::{Future, poll_fn};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use in_flight::InFlight;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};

/// The size of one call, so that no command waits long for others.
const COMMANDS_MAX: usize = 64;
const KEYS_MAX: usize = 256;
/// How many calls may be under way at once. Distant servers need several; a near one is as fast with one.
const CALLS_MAX: usize = 4;
/// How many calls may be under way if the next one is full: a process that is too busy to read replies
/// soon must still be able to send.
const CALLS_FULL_MAX: usize = 16;
/// A call with this many commands waits for no other: more would hardly make each cheaper.
const COMMANDS_ENOUGH: usize = 32;
/// How long a command waits for the reply to the call before it. Later commands check this to the
/// microsecond; without any, the runtime's timer does, which adds up to a millisecond.
const PATIENCE: Duration = Duration::from_micros(500);
/// How many commands may wait: as many as a server answers in half of their time, at 4 microseconds
/// each, within these bounds. Each takes a few kilobytes.
const QUEUE: RangeInclusive<usize> = 4_096..=16_384;
const FASTEST_US: u128 = 4;

/// Carries out calls.
pub(crate) trait BatchHandler: Send + Sync + 'static {
    /// What is sent.
    type Command: Send + 'static;
    /// What comes back.
    type Response: Send + 'static;

    /// Carries out commands in one call; one response for each, in order. The call has its whole
    /// timeout, however long the commands have waited: its outcome tells how the server is.
    fn handle(
        &self,
        commands: Vec<Self::Command>,
    ) -> impl Future<Output = Vec<Self::Response>> + Send;

    /// How many keys a command touches.
    fn keys_of(command: &Self::Command) -> usize;
}

/// Why a command has no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchError {
    /// The queue is full, or the command waited too long in it; it was not sent.
    Full,
    /// Its deadline passed; it is unknown whether it was carried out.
    Late,
    /// Its call ended without a response to it; it is unknown whether it was carried out.
    Lost,
}

/// The queue of a handler. Dropping it ends the dispatcher.
pub(crate) struct Batcher<H: BatchHandler> {
    queue: mpsc::Sender<QueuedCommand<H>>,
}

struct QueuedCommand<H: BatchHandler> {
    command: H::Command,
    /// After this, too little time is left for a response.
    send_by: Instant,
    respond: oneshot::Sender<Result<H::Response, BatchError>>,
}

impl<H: BatchHandler> Batcher<H> {
    /// Starts a dispatcher for commands that have this much time, on the current runtime.
    pub(crate) fn start(handler: Arc<H>, within: Duration) -> Self {
        let (queue, commands) = mpsc::channel(queue_length(within));
        let (next, in_flight) = (PendingBatch::new(), InFlight::default());
        tokio::spawn(Dispatcher { handler, commands, next, in_flight }.run());
        Self { queue }
    }

    /// Sends a command, and waits for its response until `deadline`. A command whose caller goes away
    /// before it is sent is never sent, nor is one that has waited for half of its time.
    pub(crate) async fn send(
        &self,
        command: H::Command,
        deadline: Instant,
    ) -> Result<H::Response, BatchError> {
        let (respond, responded) = oneshot::channel();
        let send_by = deadline - deadline.saturating_duration_since(Instant::now()) / 2;
        let queued = QueuedCommand { command, send_by, respond };
        self.queue.try_send(queued).map_err(|_| BatchError::Full)?;
        match timeout_at(deadline, responded).await {
            Ok(Ok(response)) => response,
            Ok(Err(_)) if deadline <= Instant::now() => Err(BatchError::Late),
            Ok(Err(_)) => Err(BatchError::Lost),
            Err(_) => Err(BatchError::Late),
        }
    }

    /// How many commands wait behind those of the next call.
    pub(crate) fn queued(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }
}

fn queue_length(within: Duration) -> usize {
    let answered = within.as_micros() / 2 / FASTEST_US;
    usize::try_from(answered).unwrap_or(usize::MAX).clamp(*QUEUE.start(), *QUEUE.end())
}

/// Takes commands from the queue and makes calls of them.
struct Dispatcher<H: BatchHandler> {
    handler: Arc<H>,
    commands: mpsc::Receiver<QueuedCommand<H>>,
    next: PendingBatch<H>,
    in_flight: InFlight,
}

/// The commands of the next call.
struct PendingBatch<H: BatchHandler> {
    commands: Vec<QueuedCommand<H>>,
    keys: usize,
    /// When its first command was taken.
    since: Instant,
}

impl<H: BatchHandler> PendingBatch<H> {
    fn new() -> Self {
        Self { commands: Vec::new(), keys: 0, since: Instant::now() }
    }

    fn is_full(&self) -> bool {
        self.commands.len() >= COMMANDS_MAX || self.keys >= KEYS_MAX
    }

    /// True if it need not wait for the call before it.
    fn is_due(&self, now: Instant) -> bool {
        self.commands.len() >= COMMANDS_ENOUGH
            || self.keys >= KEYS_MAX
            || now >= self.since + PATIENCE
    }

    /// Drops commands that nobody waits for any more, and refuses those that waited too long.
    fn shed(&mut self, now: Instant) {
        let is_over =
            |queued: &mut QueuedCommand<H>| queued.respond.is_closed() || queued.send_by <= now;
        for QueuedCommand { command, respond, .. } in self.commands.extract_if(.., is_over) {
            self.keys -= H::keys_of(&command);
            _ = respond.send(Err(BatchError::Full));
        }
    }

    fn push(&mut self, queued: QueuedCommand<H>) {
        if self.commands.is_empty() {
            self.since = Instant::now();
        }
        self.keys += H::keys_of(&queued.command);
        self.commands.push(queued);
    }
}

impl<H: BatchHandler> Dispatcher<H> {
    /// Runs until the batcher is dropped.
    async fn run(mut self) {
        loop {
            let (is_waiting, is_full) = (!self.next.commands.is_empty(), self.next.is_full());
            let may_call = self.may_call();
            tokio::select! {
                biased;
                () = self.in_flight.one_ends() => {
                    // Callers that just got a response may send more, which then travels along.
                    yield_to_ready_tasks().await;
                    self.flush();
                }
                received = self.commands.recv(), if !is_full => match received {
                    Some(queued) => self.take(queued),
                    None => return,
                },
                () = sleep_until(self.next.since + PATIENCE), if is_waiting && may_call => {
                    self.flush();
                }
            }
        }
    }

    /// Takes all commands that have arrived. Waiting gains nothing while no call is under way, or with
    /// enough commands for one.
    fn take(&mut self, first: QueuedCommand<H>) {
        self.next.push(first);
        self.fill();
        if self.in_flight.len() == 0 || (self.may_call() && self.next.is_due(Instant::now())) {
            self.flush();
        }
    }

    fn may_call(&self) -> bool {
        let max = if self.next.is_full() { CALLS_FULL_MAX } else { CALLS_MAX };
        self.in_flight.len() < max
    }

    fn fill(&mut self) {
        while !self.next.is_full()
            && let Ok(queued) = self.commands.try_recv()
        {
            self.next.push(queued);
        }
    }

    /// Sends the next call with as much of the queue as it can hold. Commands that waited too long make
    /// room for others.
    fn flush(&mut self) {
        let now = Instant::now();
        loop {
            self.fill();
            let count = self.next.commands.len();
            self.next.shed(now);
            if self.next.commands.len() == count {
                break;
            }
        }
        if self.next.commands.is_empty() {
            return;
        }
        let next = std::mem::replace(&mut self.next, PendingBatch::new());
        let (commands, responders): (Vec<_>, Vec<_>) =
            next.commands.into_iter().map(|queued| (queued.command, queued.respond)).unzip();
        let handler = Arc::clone(&self.handler);
        self.in_flight.push(async move {
            let responses = handler.handle(commands).await;
            for (respond, response) in responders.into_iter().zip(responses) {
                // A caller that went away needs no response.
                _ = respond.send(Ok(response));
            }
        });
    }
}

/// Lets every task run that is ready. `tokio::task::yield_now` would also wait until the runtime has
/// polled its sockets, which is much later where many are ready.
async fn yield_to_ready_tasks() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests;
