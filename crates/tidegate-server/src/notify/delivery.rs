//! A message from its first attempt to its last.

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::Clock as _;
use tokio::sync::OwnedSemaphorePermit;

use super::Shared;
use super::client::Failure;
use super::message::Message;
use super::target::Target;

/// A message is sent at most so often.
const ATTEMPTS_MAX: u32 = 10;
/// Before the second attempt; twice as long before every further one.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(300);

/// How a message ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Delivered,
    /// No attempt succeeded, or the webhook does not want it.
    Failed,
    /// It would have gone where no webhook may be.
    Refused,
}

/// Sends a message until it is delivered, or cannot be. Its place is free afterwards.
pub(super) async fn deliver(
    shared: Arc<Shared>,
    target: Arc<Target>,
    message: Message,
    room: OwnedSemaphorePermit,
) {
    let end = attempts(&shared, &target, &message).await;
    shared.counts.ended(end);
    drop(room);
}

async fn attempts(shared: &Shared, target: &Target, message: &Message) -> End {
    let (webhook, id) = (&*target.webhook.name, &*message.id);
    let mut attempt = 1;
    loop {
        let is_last = attempt == ATTEMPTS_MAX || shared.drain.has_started();
        let Err(failure) = once(shared, target, message).await else {
            tracing::info!(event = "notified", webhook, id, attempt, "a webhook was told");
            return End::Delivered;
        };
        match failure {
            Failure::Forbidden => {
                tracing::error!(event = "notify_refused", webhook, id, "not told: {failure}");
                return End::Refused;
            }
            Failure::Later(_) if !is_last => {
                let wait = wait(attempt, fastrand::u64(..));
                let retry_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                tracing::warn!(
                    event = "notify_retry",
                    webhook,
                    id,
                    attempt,
                    retry_ms,
                    "a webhook was not told yet: {failure}"
                );
                shared.counts.retried();
                // Before the daemon ends there is one more attempt, at once.
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = shared.drain.started() => {}
                }
            }
            Failure::Later(_) | Failure::Unwanted(_) => {
                tracing::error!(
                    event = "notify_lost",
                    webhook,
                    id,
                    attempt,
                    "a webhook was not told: {failure}"
                );
                return End::Failed;
            }
        }
        attempt += 1;
    }
}

async fn once(shared: &Shared, target: &Target, message: &Message) -> Result<(), Failure> {
    // It is never closed.
    let _connection = target.connections.acquire().await;
    shared.client.send(target, message, shared.clock.now().unix_us / 1_000_000).await
}

/// How long to wait after an attempt: half of it is chance, so that what failed together does not
/// come back together.
fn wait(attempt: u32, chance: u64) -> Duration {
    let doubled = 2_u32.saturating_pow(attempt.saturating_sub(1));
    let longest = FIRST_WAIT.saturating_mul(doubled).min(WAIT_MAX);
    let half_us = u64::try_from(longest.as_micros() / 2).unwrap_or(u64::MAX).max(1);
    longest / 2 + Duration::from_micros(chance % half_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_bound_and_differ_by_chance() {
        let seconds = |attempt, chance| wait(attempt, chance).as_millis();
        assert_eq!([1, 2, 3, 9].map(|attempt| seconds(attempt, 0)), [500, 1_000, 2_000, 128_000]);
        assert_eq!(seconds(1, 499_999), 999);
        assert_eq!(seconds(12, 0), 150_000, "bounded");
        assert_ne!(wait(3, 1), wait(3, 2));
    }
}
