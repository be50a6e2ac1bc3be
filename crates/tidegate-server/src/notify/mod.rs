//! Notices: what people are to be told of, sent to the webhooks that the policies name.
//!
//! Whoever raises a notice never waits: a message takes a place in the webhook's bounded room and
//! goes its way in a task of its own; where there is no place, it is dropped, counted and logged.

mod address;
mod client;
mod counts;
mod delivery;
mod message;
mod target;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate::clock::SystemClock;
use tidegate::identity::Networks;
use tidegate::policy::Policy;
use tokio::time::timeout;

pub(crate) use counts::NoticeCounts;
pub(crate) use target::TargetError;

use crate::drain::Drain;
use crate::telemetry::Sparingly;
use crate::tls::{TlsError, Trust};
use client::{Client, Resolve, System};
use counts::Counts;
use delivery::deliver;
use message::Message;
use target::{Target, WAITING_MAX};

/// Something that people are to be told of, once.
#[derive(Debug)]
pub(crate) struct Notice<'n> {
    pub(crate) policy: &'n str,
    /// Whom to tell, by the name in the policy.
    pub(crate) webhook: &'n str,
    /// The penalty or ratio that raised it.
    pub(crate) source: &'n str,
    /// Whom it is about: parts and values, hashed unless identities may be told.
    pub(crate) subject: Vec<(String, String)>,
    /// What was done: `ban`, `flag`, …
    pub(crate) action: &'n str,
    /// How many events there were.
    pub(crate) count: u64,
    /// When what was done ends.
    pub(crate) until_unix_us: Option<u64>,
    pub(crate) at_unix_us: u64,
}

/// Tells webhooks. Clones share it.
#[derive(Clone)]
pub(crate) struct Notifier {
    shared: Arc<Shared>,
}

struct Shared {
    /// By policy and name.
    targets: ArcSwap<Targets>,
    client: Client,
    counts: Counts,
    dropping: Sparingly,
    clock: SystemClock,
    drain: Drain,
}

/// The webhooks of policies, ready to be told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Targets(HashMap<(String, String), Arc<Target>>);

impl Targets {
    /// The webhooks of these policies.
    ///
    /// # Errors
    /// One of them can never be told.
    pub(crate) fn of(policies: &[Arc<Policy>], allowed: &Networks) -> Result<Self, TargetError> {
        let mut targets = HashMap::new();
        for policy in policies {
            for webhook in policy.webhooks() {
                let key = (policy.name().to_owned(), webhook.name.clone());
                let mut target = Target::new(webhook, allowed)?;
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
    /// One that tells public addresses and, besides, those of `allowed`, until it is drained.
    ///
    /// # Errors
    /// The well-known roots cannot be used.
    pub(crate) fn new(
        allowed: Networks,
        clock: SystemClock,
        drain: Drain,
    ) -> Result<Self, TlsError> {
        Ok(Self::with(Trust::load(None)?, allowed, Box::new(System), clock, drain))
    }

    fn with(
        trust: Arc<Trust>,
        allowed: Networks,
        resolver: Box<dyn Resolve>,
        clock: SystemClock,
        drain: Drain,
    ) -> Self {
        let client = Client { trust, allowed, resolver };
        let (targets, counts) = (ArcSwap::default(), Counts::default());
        let dropping = Sparingly::default();
        Self { shared: Arc::new(Shared { targets, client, counts, dropping, clock, drain }) }
    }

    /// Tells these webhooks from now on. Those that stay as they were keep their places.
    pub(crate) fn load(&self, mut targets: Targets) {
        let known = self.shared.targets.load();
        for (key, target) in &mut targets.0 {
            let same = |known: &&Arc<Target>| {
                known.webhook == target.webhook && known.ratios == target.ratios
            };
            if let Some(known) = known.0.get(key).filter(same) {
                *target = Arc::clone(known);
            }
        }
        self.shared.targets.store(Arc::new(targets));
    }

    /// Tells these webhooks besides the others, while policies take the place of others; returns those
    /// that were there before.
    pub(crate) fn load_besides(&self, mut targets: Targets) -> Targets {
        let known = Targets::clone(&self.shared.targets.load());
        for (key, target) in &known.0 {
            targets.0.entry(key.clone()).or_insert_with(|| Arc::clone(target));
        }
        self.load(targets);
        known
    }

    /// Sends a notice on its way. It must be called within the runtime, and never waits.
    pub(crate) fn tell(&self, notice: &Notice<'_>) {
        let targets = self.shared.targets.load();
        let Some(target) = targets.get(notice.policy, notice.webhook) else {
            // A policy that was replaced a moment ago may still raise one.
            return self.drop_one(notice, "there is no such webhook any more");
        };
        match Arc::clone(&target.room).try_acquire_owned() {
            Ok(room) => {
                let (shared, target) = (Arc::clone(&self.shared), Arc::clone(target));
                let message =
                    Message::new(notice, target.ratios.iter().any(|name| name == notice.source));
                tokio::spawn(deliver(shared, target, message, room));
            }
            Err(_) => self.drop_one(notice, "too many messages wait for it"),
        }
    }

    fn drop_one(&self, notice: &Notice<'_>, why: &str) {
        self.shared.counts.dropped();
        if let Some(more) = self.shared.dropping.take(self.shared.clock.steady_us()) {
            let Notice { webhook, policy, .. } = notice;
            tracing::error!(event = "notify_dropped", webhook, policy, more, "not told: {why}");
        }
    }

    /// How messages fared, and how many are on the way.
    pub(crate) fn counts(&self) -> NoticeCounts {
        let waiting = self.shared.targets.load().0.values().map(|target| target.waiting()).sum();
        self.shared.counts.now(waiting)
    }

    /// Waits until every message has ended, but not for long.
    pub(crate) async fn finish(&self, bound: Duration) {
        let targets = self.shared.targets.load_full();
        let all = async {
            for target in targets.0.values() {
                // It is never closed.
                drop(target.room.acquire_many(WAITING_MAX).await);
            }
        };
        if timeout(bound, all).await.is_err() {
            let waiting = self.counts().waiting;
            tracing::error!(event = "notify_unfinished", waiting, "messages were not told in time");
        }
    }
}
