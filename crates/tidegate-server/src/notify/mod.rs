//! Notices to people, sent to the webhooks that the policies name.
//!
//! The sender of a notice never waits: a message takes a place in the webhook's bounded queue and is
//! delivered by a task of its own. A message that finds the queue full is dropped, counted and logged.

mod delivery;
mod message;
mod target;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate::clock::SystemClock;
use tidegate::engine::Notice;
use tidegate::engine::identity::Networks;
use tidegate::engine::policy::{Policy, Webhook};
use tokio::time::timeout;

use crate::drain::Drain;
use crate::error::StartError;
use crate::http_client::{AddressFilter, HttpClient};
use crate::telemetry::LogThrottle;
use delivery::deliver;
use message::Message;
use target::{QUEUE_MAX, Target};

/// The time for one attempt to deliver a message.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// How much of a webhook's answer is read.
const ANSWER_BYTES_MAX: usize = 16 << 10;

/// Counts of messages by their outcome, and the messages that are under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NoticeCounts {
    pub(crate) delivered: u64,
    pub(crate) failed: u64,
    pub(crate) refused: u64,
    pub(crate) dropped: u64,
    pub(crate) retries: u64,
    pub(crate) waiting: usize,
}

/// Sends notices to webhooks. Clones share it.
#[derive(Clone)]
pub(crate) struct Notifier {
    shared: Arc<Shared>,
}

struct Shared {
    targets: ArcSwap<Targets>,
    client: HttpClient,
    counts: Mutex<NoticeCounts>,
    drop_throttle: LogThrottle,
    clock: SystemClock,
    drain: Drain,
}

impl Shared {
    fn counts(&self) -> MutexGuard<'_, NoticeCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The webhooks of all policies, by policy and name.
#[derive(Clone, Default)]
pub(crate) struct Targets(HashMap<(String, String), Arc<Target>>);

impl Targets {
    /// The webhooks of these policies. They may be at public addresses and in the networks `allowed`.
    ///
    /// # Errors
    /// No message could ever reach one of them.
    pub(crate) fn of(policies: &[Arc<Policy>], allowed: &Networks) -> Result<Self, StartError> {
        let filter = AddressFilter::Public { besides: allowed.clone() };
        let mut targets = HashMap::new();
        for policy in policies {
            for webhook in policy.webhooks() {
                let key = (policy.name().to_owned(), webhook.name.clone());
                let mut target = Target::new(webhook, &filter)?;
                target.ratios = policy.ratios().map(str::to_owned).collect();
                targets.insert(key, Arc::new(target));
            }
        }
        Ok(Self(targets))
    }

    fn get(&self, policy: &str, webhook: &str) -> Option<&Arc<Target>> {
        // Notices are rare enough for two copies of a name.
        self.0.get(&(policy.to_owned(), webhook.to_owned()))
    }
}

impl Notifier {
    /// A notifier that connects to public addresses and to those of `allowed`.
    pub(crate) fn new(allowed: Networks, clock: SystemClock, drain: Drain) -> Self {
        let filter = AddressFilter::Public { besides: allowed };
        Self::with(HttpClient::new(filter, ATTEMPT_TIMEOUT, ANSWER_BYTES_MAX), clock, drain)
    }

    fn with(client: HttpClient, clock: SystemClock, drain: Drain) -> Self {
        let (targets, counts) = (ArcSwap::default(), Mutex::default());
        let drop_throttle = LogThrottle::default();
        Self { shared: Arc::new(Shared { targets, client, counts, drop_throttle, clock, drain }) }
    }

    /// Replaces the webhooks. Unchanged webhooks keep their queues.
    pub(crate) fn replace_targets(&self, mut targets: Targets) {
        let current = self.shared.targets.load();
        for (key, target) in &mut targets.0 {
            let is_same = |current: &&Arc<Target>| {
                current.webhook == target.webhook && current.ratios == target.ratios
            };
            if let Some(current) = current.0.get(key).filter(is_same) {
                *target = Arc::clone(current);
            }
        }
        self.shared.targets.store(Arc::new(targets));
    }

    /// Adds webhooks while their policies replace others; returns the webhooks of before.
    pub(crate) fn add_targets(&self, mut targets: Targets) -> Targets {
        let current = Targets::clone(&self.shared.targets.load());
        for (key, target) in &current.0 {
            targets.0.entry(key.clone()).or_insert_with(|| Arc::clone(target));
        }
        self.replace_targets(targets);
        current
    }

    /// Queues a notice. `format_subject` tells the parts of its subject, hashed unless the webhook is to
    /// know who it is. It must be called within the runtime, and never waits.
    pub(crate) fn send(
        &self,
        notice: &Notice,
        format_subject: impl FnOnce(bool) -> Vec<(String, String)>,
    ) {
        let targets = self.shared.targets.load();
        let Some(target) = targets.get(&notice.policy, &notice.webhook) else {
            // A policy that was replaced a moment ago may still raise a notice.
            return self.drop_notice(notice, "there is no such webhook any more");
        };
        match Arc::clone(&target.queue).try_acquire_owned() {
            Ok(place) => {
                let (shared, target) = (Arc::clone(&self.shared), Arc::clone(target));
                let is_ratio = target.ratios.contains(&notice.source);
                let Webhook { identities, body, .. } = &target.webhook;
                let subject = format_subject(*identities);
                let message = Message::new(notice, &subject, is_ratio, body.as_ref());
                tokio::spawn(deliver(shared, target, message, place));
            }
            Err(_) => self.drop_notice(notice, "too many messages wait for it"),
        }
    }

    fn drop_notice(&self, notice: &Notice, why: &str) {
        self.shared.counts().dropped += 1;
        if let Some(more) = self.shared.drop_throttle.pass(self.shared.clock.steady_us()) {
            let Notice { webhook, policy, .. } = notice;
            tracing::error!(event = "notify_dropped", webhook, policy, more, "not told: {why}");
        }
    }

    /// The counts at this moment.
    pub(crate) fn counts(&self) -> NoticeCounts {
        let targets = self.shared.targets.load();
        let waiting = targets.0.values().map(|target| target.waiting()).sum();
        NoticeCounts { waiting, ..*self.shared.counts() }
    }

    /// Waits until all queues are empty, at most for this long.
    pub(crate) async fn finish(&self, bound: Duration) {
        let targets = self.shared.targets.load_full();
        let all = async {
            for target in targets.0.values() {
                // The semaphore is never closed.
                drop(target.queue.acquire_many(QUEUE_MAX).await);
            }
        };
        if timeout(bound, all).await.is_err() {
            let waiting = self.counts().waiting;
            tracing::error!(event = "notify_unfinished", waiting, "messages were not told in time");
        }
    }
}
