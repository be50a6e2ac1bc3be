//! The bounded queue of log lines before standard error. No caller waits for it.
//!
//! Lines gather in one buffer, which one thread takes and writes whole. A line that does not fit is
//! dropped and counted; the count is logged once a second. `tracing-appender` is similar, but bounds
//! lines instead of bytes, copies each line into a buffer of its own, and does not log its count.

use std::io::{self, Write};
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tidegate::clock::Clock;

/// The most bytes that wait to be written.
const WAITING_MAX: usize = 1 << 20;
/// The interval between reports of dropped lines, and the time for the last lines at the end.
const SECOND: Duration = Duration::from_secs(1);
const SECOND_US: u64 = 1_000_000;

/// The queue. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Queue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    /// No line follows, and the thread ends when all is written.
    closed: bool,
    /// The thread has ended.
    ended: bool,
}

/// Writes the rest when it is dropped, and waits for that at most a second.
#[derive(Debug)]
#[must_use = "lines are lost at the end without it"]
pub(crate) struct Flush(Queue);

impl Queue {
    /// Starts the thread that writes. `report` makes the line about dropped ones.
    pub(super) fn start(
        mut out: impl Write + Send + 'static,
        clock: impl Clock,
        report: impl Fn(u64) -> String + Send + 'static,
    ) -> io::Result<(Self, Flush)> {
        let state = Mutex::new(State::default());
        let shared = Shared { state, changed: Condvar::new(), dropped: AtomicU64::new(0) };
        let queue = Self(Arc::new(shared));
        let writer = queue.clone();
        thread::Builder::new().name("log".to_owned()).spawn(move || {
            writer.write_to(&mut out, &clock, &report);
            writer.state().ended = true;
            writer.0.changed.notify_all();
        })?;
        Ok((queue.clone(), Flush(queue)))
    }

    /// Adds a line, or counts it as dropped.
    pub(super) fn push(&self, line: &[u8]) {
        let mut state = self.state();
        if state.waiting.len() + line.len() > WAITING_MAX {
            drop(state);
            self.drop_line();
            return;
        }
        let first = state.waiting.is_empty();
        state.waiting.extend_from_slice(line);
        drop(state);
        if first {
            self.0.changed.notify_all();
        }
    }

    /// True if a line of the usual length fits. Otherwise it is a waste to make one.
    pub(super) fn has_room(&self) -> bool {
        self.state().waiting.len() < WAITING_MAX - 1024
    }

    /// Counts a line that was dropped.
    pub(super) fn drop_line(&self) {
        self.0.dropped.fetch_add(1, Ordering::Relaxed);
    }

    fn write_to(&self, out: &mut impl Write, clock: &impl Clock, report: &impl Fn(u64) -> String) {
        let (mut taken, mut told_us) = (Vec::new(), clock.now().steady_us);
        loop {
            let closed = self.take(&mut taken);
            // An error of the log cannot be logged.
            let _ = out.write_all(&taken);
            taken.clear();
            let now_us = clock.now().steady_us;
            if closed || now_us.saturating_sub(told_us) >= SECOND_US {
                told_us = now_us;
                match self.0.dropped.swap(0, Ordering::Relaxed) {
                    0 => {}
                    dropped => drop(out.write_all(report(dropped).as_bytes())),
                }
            }
            let _ = out.flush();
            if closed {
                return;
            }
        }
    }

    /// Waits for lines, for the end, or for a second; true at the end.
    fn take(&self, taken: &mut Vec<u8>) -> bool {
        let idle = |state: &mut State| state.waiting.is_empty() && !state.closed;
        let waited = self.0.changed.wait_timeout_while(self.state(), SECOND, idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        mem::swap(&mut state.waiting, taken);
        state.closed
    }

    /// Bytes are appended or swapped whole, so a panic leaves the state consistent.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.closed = true;
        self.0.0.changed.notify_all();
        // A slow reader of the log must not delay the end for longer.
        let ended = self.0.0.changed.wait_timeout_while(state, SECOND, |state| !state.ended);
        drop(ended);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use tidegate::clock::SystemClock;

    use super::*;

    /// A reader that takes one write each time it is asked for.
    struct Gate(SyncSender<Vec<u8>>);

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn start() -> (Queue, Flush, Receiver<Vec<u8>>) {
        let (sender, receiver) = sync_channel(0);
        let report = |dropped| format!("dropped {dropped}\n");
        let (queue, flush) = Queue::start(Gate(sender), SystemClock::new(), report).unwrap();
        (queue, flush, receiver)
    }

    #[test]
    fn what_was_pushed_before_the_end_is_written_in_order() {
        let (queue, flush, receiver) = start();
        let reader = thread::spawn(move || receiver.iter().flatten().collect::<Vec<u8>>());
        queue.push(b"one\n");
        queue.push(b"two\n");
        drop(flush);
        assert_eq!(reader.join().unwrap(), b"one\ntwo\n");
    }

    #[test]
    fn a_reader_that_stalls_costs_lines_not_time_and_is_told_how_many() {
        let (queue, flush, receiver) = start();
        let line = [b'x'; 1 << 10];
        let pushed = 3 * WAITING_MAX / line.len();
        // Nobody reads yet, and still every push returns. The first line is in the writer's hands
        // before the others come, so that it takes none of them.
        queue.push(&line);
        while !queue.state().waiting.is_empty() {
            thread::yield_now();
        }
        (1..pushed).for_each(|_| queue.push(&line));
        assert!(!queue.has_room());
        let reader = thread::spawn(move || receiver.iter().flatten().collect::<Vec<u8>>());
        drop(flush);
        let read = reader.join().unwrap();
        let lines = read.iter().filter(|byte| **byte == b'x').count() / line.len();
        let text = String::from_utf8(read.into_iter().filter(|byte| *byte != b'x').collect());
        assert!(lines < pushed);
        assert_eq!(text.unwrap(), format!("dropped {}\n", pushed - lines));
    }
}
