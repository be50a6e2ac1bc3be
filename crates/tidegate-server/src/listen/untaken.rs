//! What HTTP/2 keeps of a connection's answers until the client takes it.
//!
//! hyper takes a piece of an answer as soon as there is one, whether the client reads or not. So pieces
//! are handed out within two bounds: each connection has a bound of its own, which shrinks to one piece
//! once all connections of a listener together hold too much.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use tokio::time::Instant;

use super::patience::Patience;

/// The largest piece that is handed out: an HTTP/2 frame by default.
pub(super) const PIECE_BYTES: usize = 16 * 1024;
/// The most bytes that one connection holds.
const CONNECTION_BYTES: usize = 1 << 20;
/// What all connections of a listener hold before each has room for one piece only.
const LISTENER_BYTES: usize = 64 << 20;

/// The untaken answers of one connection.
#[derive(Debug)]
pub(super) struct UntakenAnswers {
    bound: Duration,
    /// By the number of the request.
    answers: HashMap<u64, UntakenAnswer>,
    /// The bytes that were handed out and not taken.
    bytes: usize,
    /// The same of all connections of the listener.
    all_bytes: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct UntakenAnswer {
    patience: Patience,
    bytes: usize,
    /// hyper has asked for the next piece, which is still to come.
    is_asked: bool,
    /// Wakes the answer that waits for room.
    waker: Option<Waker>,
}

impl UntakenAnswers {
    /// For clients that may be late by this much.
    pub(super) fn new(bound: Duration, all_bytes: Arc<AtomicUsize>) -> Self {
        Self { bound, answers: HashMap::new(), bytes: 0, all_bytes }
    }

    /// An answer has begun. Until hyper asks for its first piece, the client is waited for.
    pub(super) fn begin(&mut self, number: u64, now: Instant) {
        let mut patience = Patience::new(self.bound, now);
        patience.set_waiting(true, now);
        let answer = UntakenAnswer { patience, bytes: 0, is_asked: false, waker: None };
        self.answers.insert(number, answer);
    }

    /// Forgets an answer of which nothing is left.
    pub(super) fn end(&mut self, number: u64) {
        self.answers.remove(&number);
    }

    /// False if the next piece of an answer must wait. The waker is called when there is room.
    pub(super) fn has_room(&mut self, number: u64, waker: &Waker) -> bool {
        let has_room = self.bytes < self.room();
        if let Some(answer) = self.answers.get_mut(&number) {
            answer.waker = (!has_room).then(|| waker.clone());
        }
        has_room
    }

    /// The next piece of an answer is still to come.
    pub(super) fn ask(&mut self, number: u64, now: Instant) {
        if let Some(answer) = self.answers.get_mut(&number) {
            answer.is_asked = true;
            answer.patience.set_waiting(answer.bytes > 0, now);
        }
    }

    /// A piece was handed to hyper.
    pub(super) fn hand_out(&mut self, number: u64, bytes: usize, now: Instant) {
        self.bytes += bytes;
        self.all_bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Some(answer) = self.answers.get_mut(&number) {
            answer.bytes += bytes;
            answer.is_asked = false;
            answer.patience.set_waiting(true, now);
        }
    }

    /// The socket took bytes of an answer, or they were dropped. Returns who has room then.
    pub(super) fn take(&mut self, number: u64, bytes: usize, now: Instant) -> Vec<Waker> {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.all_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let readers = self.answers.values().filter(|one| one.patience.is_waiting()).count();
        if let Some(answer) = self.answers.get_mut(&number) {
            answer.bytes = answer.bytes.saturating_sub(bytes);
            answer.patience.take(bytes, readers, now);
            answer.patience.set_waiting(answer.bytes > 0 || !answer.is_asked, now);
        }
        // Not at every byte, or many answers would wake for room that one of them takes.
        if self.bytes > self.room() / 2 {
            return Vec::new();
        }
        self.answers.values_mut().filter_map(|answer| answer.waker.take()).collect()
    }

    /// True if the client takes an answer too slowly.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.answers.values().any(|answer| answer.patience.is_over(now))
    }

    #[cfg(test)]
    pub(super) fn is_waiting(&self) -> bool {
        self.answers.values().any(|answer| answer.patience.is_waiting())
    }

    fn room(&self) -> usize {
        let is_full = self.all_bytes.load(Ordering::Relaxed) >= LISTENER_BYTES;
        if is_full { PIECE_BYTES } else { CONNECTION_BYTES }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The most bytes that a connection hands out while nothing is taken.
    fn fill(connection: &mut UntakenAnswers, now: Instant) -> usize {
        while connection.has_room(0, Waker::noop()) {
            connection.hand_out(0, PIECE_BYTES, now);
        }
        connection.bytes
    }

    #[test]
    fn a_connection_holds_a_bounded_number_of_bytes_and_wakes_the_blocked_when_half_is_taken() {
        let now = Instant::now();
        let mut connection = UntakenAnswers::new(Duration::from_secs(30), Arc::default());
        connection.begin(0, now);
        assert_eq!(fill(&mut connection, now), CONNECTION_BYTES);
        assert!(connection.take(0, PIECE_BYTES, now).is_empty());
        assert_eq!(connection.take(0, CONNECTION_BYTES / 2, now).len(), 1);
        assert!(connection.has_room(0, Waker::noop()));
    }

    #[test]
    fn where_all_hold_too_much_each_has_room_for_one_piece() {
        let (now, all) = (Instant::now(), Arc::default());
        let connection = || {
            let mut connection = UntakenAnswers::new(Duration::from_secs(30), Arc::clone(&all));
            connection.begin(0, now);
            connection
        };
        let mut crowd: Vec<UntakenAnswers> = (0..1_000).map(|_| connection()).collect();
        for one in &mut crowd {
            fill(one, now);
        }
        assert!(all.load(Ordering::Relaxed) <= LISTENER_BYTES + 1_000 * PIECE_BYTES);
        assert_eq!(fill(&mut connection(), now), PIECE_BYTES);
        // A client that takes the first piece gets the next.
        let last = crowd.last_mut().unwrap();
        assert_eq!(last.take(0, PIECE_BYTES, now).len(), 1);
        assert!(last.has_room(0, Waker::noop()));
    }

    #[test]
    fn answers_of_one_connection_share_its_pace() {
        let now = Instant::now();
        let mut connection = UntakenAnswers::new(Duration::from_secs(4), Arc::default());
        for number in 0..16 {
            connection.begin(number, now);
            connection.hand_out(number, PIECE_BYTES, now);
        }
        let mut later = now;
        for _ in 0..60 {
            later += Duration::from_secs(1);
            assert!(!connection.is_late(later));
            (0..16).for_each(|number| drop(connection.take(number, 64, later)));
        }
        assert!(connection.is_late(later + Duration::from_secs(5)));
    }
}
