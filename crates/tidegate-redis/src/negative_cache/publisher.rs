//! Publishes this node's invalidations to all nodes. No request waits for it. Changes that happen
//! together travel in one message.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::NegativeCache;
use super::invalidation::{self, Invalidation};
use crate::connection::Failure;
use crate::lock;
use crate::store::Topology;

/// How many changes may wait. A longer list is replaced by [`Invalidation::All`].
const QUEUED_MAX: usize = 1024;
/// How many changes one message carries.
const MESSAGE_MAX: usize = 256;
/// How long changes gather after a message.
const GATHER: Duration = Duration::from_millis(10);
const TIMEOUT: Duration = Duration::from_millis(500);

/// The changes that wait to be published.
#[derive(Debug, Default)]
pub(super) struct InvalidationQueue {
    pub(super) changes: Mutex<Vec<Invalidation>>,
    wake: Notify,
}

impl InvalidationQueue {
    pub(super) fn push(&self, change: Invalidation) {
        let mut changes = lock(&self.changes);
        if changes.len() < QUEUED_MAX {
            changes.push(change);
        } else {
            *changes = vec![Invalidation::All];
        }
        drop(changes);
        self.wake.notify_one();
    }

    async fn next_message(&self) -> Vec<u8> {
        loop {
            let next = self.take_next();
            if !next.is_empty() {
                return invalidation::write(&next);
            }
            self.wake.notified().await;
        }
    }

    fn take_next(&self) -> Vec<Invalidation> {
        let mut changes = lock(&self.changes);
        let count = changes.len().min(MESSAGE_MAX);
        changes.drain(..count).collect()
    }
}

/// Publishes until the task is dropped. A message that fails is not repeated: no node caches a refusal
/// for longer than a second.
pub(crate) async fn keep_publishing(
    cache: Arc<NegativeCache>,
    topology: Arc<Topology>,
    channel: Vec<u8>,
) {
    loop {
        let message = cache.outgoing.next_message().await;
        if let Err(failure) = publish(&topology, &channel, &message).await {
            let error = failure.error;
            tracing::debug!(event = "change_untold", %error, "other nodes were not told of a change");
        }
        sleep(GATHER).await;
    }
}

async fn publish(topology: &Topology, channel: &[u8], message: &[u8]) -> Result<(), Failure> {
    let mut publish = redis::cmd("PUBLISH");
    publish.arg(channel).arg(message);
    let handle = topology.own_shard()?;
    handle.shard.connection.send(&publish, Instant::now() + TIMEOUT).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn next(queue: &InvalidationQueue) -> Vec<Invalidation> {
        invalidation::read(&queue.next_message().await)
    }

    #[tokio::test]
    async fn changes_that_happen_together_travel_together() {
        let queue = InvalidationQueue::default();
        let changes = [Invalidation::Family(1), Invalidation::Key("a".into())];
        changes.iter().for_each(|change| queue.push(change.clone()));
        assert_eq!(next(&queue).await, changes);
        for family in 0..=MESSAGE_MAX {
            queue.push(Invalidation::Family(family as u64));
        }
        assert_eq!([next(&queue).await.len(), next(&queue).await.len()], [MESSAGE_MAX, 1]);
    }

    #[tokio::test]
    async fn more_changes_than_can_wait_are_published_as_all() {
        let queue = InvalidationQueue::default();
        for family in 0..=QUEUED_MAX {
            queue.push(Invalidation::Family(family as u64));
        }
        queue.push(Invalidation::Family(7));
        assert_eq!(next(&queue).await, [Invalidation::All, Invalidation::Family(7)]);
    }
}
