//! Tells all nodes what this one changed. Nobody waits for it, and what is told together travels
//! together; more than can be kept is told as everything.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::changed::{self, Changed};
use crate::connection::Failure;
use crate::store::Topology;

/// How many changes may wait.
const WAITING_MAX: usize = 1024;
/// How many travel together.
const TOGETHER_MAX: usize = 256;
/// How long changes gather behind those that were told.
const GATHER: Duration = Duration::from_millis(10);
const TIMEOUT: Duration = Duration::from_millis(500);

/// Where changes are handed in.
#[derive(Debug)]
pub(crate) struct Announcer {
    waiting: mpsc::Sender<Changed>,
    too_many: Arc<AtomicBool>,
}

/// What is told, and how.
pub(crate) struct Announcing {
    waiting: mpsc::Receiver<Changed>,
    too_many: Arc<AtomicBool>,
}

impl Announcer {
    pub(crate) fn new() -> (Self, Announcing) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let too_many = Arc::<AtomicBool>::default();
        let announcing = Announcing { waiting: receiver, too_many: Arc::clone(&too_many) };
        (Self { waiting: sender, too_many }, announcing)
    }

    /// Tells of a change, soon.
    pub(crate) fn announce(&self, changed: Changed) {
        if self.waiting.try_send(changed).is_err() {
            self.too_many.store(true, Ordering::SeqCst);
        }
    }
}

impl Announcing {
    /// What is to be told next; `None` once nobody is left who could change anything.
    async fn next(&mut self) -> Option<Vec<u8>> {
        let mut changes = Vec::new();
        if self.waiting.recv_many(&mut changes, TOGETHER_MAX).await == 0 {
            return None;
        }
        if self.too_many.swap(false, Ordering::SeqCst) {
            changes = vec![Changed::Everything];
        }
        Some(changed::write(&changes))
    }
}

/// Tells for as long as it is let. What cannot be told is not told again: nobody remembers a refusal
/// for longer than a second.
pub(crate) async fn keep_announcing(
    mut announcing: Announcing,
    topology: Arc<Topology>,
    channel: Vec<u8>,
) {
    while let Some(message) = announcing.next().await {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(&channel).arg(message);
        if let Err(failure) = tell(&topology, &publish).await {
            let error = failure.error;
            tracing::debug!(event = "change_untold", %error, "other nodes were not told of a change");
        }
        sleep(GATHER).await;
    }
}

async fn tell(topology: &Topology, publish: &Cmd) -> Result<Value, Failure> {
    let member = topology.own_member()?;
    member.shard.connection.send(publish, Instant::now() + TIMEOUT).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_changed_together_is_told_together() {
        let (announcer, mut announcing) = Announcer::new();
        let changes = [Changed::Family(1), Changed::Key("a".into())];
        changes.iter().for_each(|changed| announcer.announce(changed.clone()));
        let message = announcing.next().await.unwrap();
        assert_eq!(changed::read(&message), changes);
        drop(announcer);
        assert_eq!(announcing.next().await, None);
    }

    #[tokio::test]
    async fn more_than_can_be_kept_is_told_as_everything() {
        let (announcer, mut announcing) = Announcer::new();
        for family in 0..=WAITING_MAX {
            announcer.announce(Changed::Family(family as u64));
        }
        let message = announcing.next().await.unwrap();
        assert_eq!(changed::read(&message), [Changed::Everything]);
        let message = announcing.next().await.unwrap();
        assert_eq!(changed::read(&message).len(), TOGETHER_MAX);
    }
}
