//! The delivery of one message, from its first attempt to its last.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request};
use tidegate::clock::Clock as _;
use tokio::sync::OwnedSemaphorePermit;

use super::Shared;
use super::message::Message;
use super::target::Target;
use crate::http_client::HttpClientError;

/// At most this many attempts for one message.
const ATTEMPTS_MAX: u32 = 10;
/// The delay before the second attempt; it doubles before every further one.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const DELAY_MAX: Duration = Duration::from_secs(300);

/// Why an attempt failed.
#[derive(Debug)]
enum DeliveryError {
    /// Another attempt may succeed.
    Transient(String),
    /// The webhook does not want the message.
    Unwanted(String),
    /// The webhook's name resolves to a forbidden address.
    Forbidden,
}

impl fmt::Display for DeliveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transient(why) | Self::Unwanted(why) => f.write_str(why),
            Self::Forbidden => f.write_str(
                "its name leads to an address that is not public, and that --notify-allow-private does not list",
            ),
        }
    }
}

/// Sends a message until it is delivered, or cannot be. Then its place in the queue is free.
pub(super) async fn deliver(
    shared: Arc<Shared>,
    target: Arc<Target>,
    message: Message,
    place: OwnedSemaphorePermit,
) {
    let (webhook, id) = (&*target.webhook.name, &*message.id);
    let mut attempt = 1;
    loop {
        let is_last = attempt == ATTEMPTS_MAX || shared.drain.has_started();
        let Err(error) = attempt_delivery(&shared, &target, &message).await else {
            tracing::info!(event = "notified", webhook, id, attempt, "a webhook was told");
            shared.counts().delivered += 1;
            break;
        };
        match error {
            DeliveryError::Forbidden => {
                tracing::error!(event = "notify_refused", webhook, id, "not told: {error}");
                shared.counts().refused += 1;
                break;
            }
            DeliveryError::Transient(_) if !is_last => {
                let delay = retry_delay(attempt, fastrand::u64(..));
                let retry_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
                let message = "a webhook was not told yet";
                tracing::warn!(
                    event = "notify_retry",
                    webhook,
                    id,
                    attempt,
                    retry_ms,
                    "{message}: {error}"
                );
                shared.counts().retries += 1;
                // Before the daemon ends there is one more attempt, at once.
                tokio::select! {
                    () = tokio::time::sleep(delay) => {}
                    () = shared.drain.started() => {}
                }
            }
            DeliveryError::Transient(_) | DeliveryError::Unwanted(_) => {
                let message = "a webhook was not told";
                tracing::error!(event = "notify_lost", webhook, id, attempt, "{message}: {error}");
                shared.counts().failed += 1;
                break;
            }
        }
        attempt += 1;
    }
    drop(place);
}

async fn attempt_delivery(
    shared: &Shared,
    target: &Target,
    message: &Message,
) -> Result<(), DeliveryError> {
    // The semaphore is never closed.
    let _connection = target.connections.acquire().await;
    let request = request(target, message, shared.clock.now().unix_us / 1_000_000);
    let answer = shared.client.send(request).await.map_err(|error| match error {
        HttpClientError::ForbiddenAddress => DeliveryError::Forbidden,
        error => DeliveryError::Transient(error.to_string()),
    })?;
    let status = answer.status;
    match status.as_u16() {
        200..=299 => Ok(()),
        300..=399 => {
            Err(DeliveryError::Unwanted(format!("it answers {status}; redirects are not followed")))
        }
        408 | 425 | 429 | 500..=599 => {
            Err(DeliveryError::Transient(format!("it answers {status}")))
        }
        _ => Err(DeliveryError::Unwanted(format!("it answers {status}"))),
    }
}

fn request(target: &Target, message: &Message, unix_s: u64) -> Request<Bytes> {
    let mut request = Request::new(message.body.clone());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = target.url.clone();
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let signature = target.key.as_ref().map(|key| message.signature(key, unix_s));
    for (name, value) in
        [("tidegate-delivery", Some(message.id.clone())), ("tidegate-signature", signature)]
    {
        // Digits and letters are always a header's value.
        if let Some(Ok(value)) = value.map(HeaderValue::try_from) {
            headers.insert(name, value);
        }
    }
    request
}

/// The delay after an attempt. Half of it is random, so that messages that failed together do not come
/// back together.
fn retry_delay(attempt: u32, random: u64) -> Duration {
    let doubled = 2_u32.saturating_pow(attempt.saturating_sub(1));
    let longest = FIRST_DELAY.saturating_mul(doubled).min(DELAY_MAX);
    let half_us = u64::try_from(longest.as_micros() / 2).unwrap_or(u64::MAX).max(1);
    longest / 2 + Duration::from_micros(random % half_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_bound_and_differ_by_chance() {
        let seconds = |attempt, random| retry_delay(attempt, random).as_millis();
        assert_eq!([1, 2, 3, 9].map(|attempt| seconds(attempt, 0)), [500, 1_000, 2_000, 128_000]);
        assert_eq!(seconds(1, 499_999), 999);
        assert_eq!(seconds(12, 0), 150_000, "bounded");
        assert_ne!(retry_delay(3, 1), retry_delay(3, 2));
    }
}
