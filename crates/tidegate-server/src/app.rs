//! What all surfaces share: one engine, and what stands around it.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tidegate::clock::{Clock, Now, SystemClock};
use tidegate::identity::Claims;
use tidegate::store::StoreError;
use tidegate::{BuildError, Decision, HashKey, Policy, Request, RequestError, Timer};

use crate::challenge::Challenges;
use crate::drain::Drain;
use crate::engine::Engine;
use crate::geo::GeoIp;
use crate::jwt::Verifier;
use crate::leases::Leases;
use crate::notify::{Notice, Notifier, Targets};
use crate::protect::{Holding, Load};
use crate::seal::{Seal, Travelled};
use crate::telemetry::{Log, Metrics, RequestId, store_failed};

/// The daemon's one engine, and all that stands around it.
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) leases: Leases,
    pub(crate) challenges: Challenges,
    pub(crate) drain: Drain,
    pub(crate) load: Load,
    pub(crate) holding: Holding,
    pub(crate) clock: SystemClock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) log: Log,
    /// What verifies bearer tokens. It is there whenever a policy reads them.
    pub(crate) verifier: ArcSwapOption<Verifier>,
    /// Which country clients are in, as far as that is known.
    pub(crate) countries: GeoIp,
    pub(crate) notifier: Notifier,
}

/// What becomes of a request that a limit would let through a little later.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hold {
    /// It is refused, and told how long to wait.
    Never,
    /// It waits as long as the policy's `exceed: wait` says.
    AsThePolicySays,
    /// It waits for at most this long.
    UpTo(Duration),
}

impl App {
    /// Decides a request, counts and logs it; also how long it waited, in microseconds.
    pub(crate) async fn decide(
        &self,
        request: &Request<'_>,
        request_id: impl FnOnce() -> RequestId,
        hold: Hold,
    ) -> Result<(Decision, u64), RequestError> {
        if let Some(decided) = self.without_waiting(request, hold) {
            let decision = decided?;
            self.tell(&decision, request, request_id);
            return Ok((decision, 0));
        }
        Box::pin(self.decide_later(request, request_id, hold)).await
    }

    /// Decides requests one after the other, counts and logs them. None waits for its turn.
    pub(crate) async fn decide_all(
        &self,
        requests: &[Request<'_>],
        request_id: impl Fn() -> RequestId,
    ) -> Vec<Result<Decision, RequestError>> {
        let decided = self.engine.decide_all(requests).await;
        for (request, decision) in requests.iter().zip(&decided) {
            if let Ok(decision) = decision {
                self.tell(decision, request, &request_id);
            }
        }
        decided
    }

    /// The same where nothing is to be waited for; `None` where something is. A decision is large, and
    /// stays where it was made.
    pub(crate) fn decide_now(
        &self,
        request: &Request<'_>,
        request_id: impl FnOnce() -> RequestId,
        hold: Hold,
    ) -> Option<Result<Decision, RequestError>> {
        let decided = self.without_waiting(request, hold);
        if let Some(Ok(decision)) = &decided {
            self.tell(decision, request, request_id);
        }
        decided
    }

    /// The same where something is to be waited for.
    pub(crate) async fn decide_later(
        &self,
        request: &Request<'_>,
        request_id: impl FnOnce() -> RequestId,
        hold: Hold,
    ) -> Result<(Decision, u64), RequestError> {
        let (decision, waited_us) = self.later(request, hold).await?;
        self.tell(&decision, request, request_id);
        Ok((decision, waited_us))
    }

    fn without_waiting(
        &self,
        request: &Request<'_>,
        hold: Hold,
    ) -> Option<Result<Decision, RequestError>> {
        if matches!(hold, Hold::UpTo(_)) {
            return None;
        }
        let mut decided = self.engine.decide_now(request);
        let may_wait = matches!(hold, Hold::AsThePolicySays);
        if let Some(Ok(decision)) = &decided
            && may_wait
            && decision.wait().is_some()
        {
            decided = None;
        }
        decided
    }

    /// Counts and logs a decision.
    fn tell(
        &self,
        decision: &Decision,
        request: &Request<'_>,
        request_id: impl FnOnce() -> RequestId,
    ) {
        let took_us = self.clock.steady_us().saturating_sub(decision.now.steady_us);
        self.metrics.decided(decision, took_us);
        self.follow_up(decision.events(), decision.effects());
        if self.log.wants(decision) {
            self.log.decision(&self.engine, decision, request, &request_id());
        }
    }

    /// What has to wait: for the store, or for its turn.
    async fn later(
        &self,
        request: &Request<'_>,
        hold: Hold,
    ) -> Result<(Decision, u64), RequestError> {
        let max_wait = match hold {
            Hold::UpTo(max_wait) => Some(max_wait),
            Hold::AsThePolicySays => None,
            Hold::Never => return Ok((self.engine.decide(request).await?, 0)),
        };
        if self.drain.has_started() {
            return Ok((self.engine.decide(request).await?, 0));
        }
        self.acquire(request, max_wait).await
    }

    async fn acquire(
        &self,
        request: &Request<'_>,
        max_wait: Option<Duration>,
    ) -> Result<(Decision, u64), RequestError> {
        let began_us = self.now().steady_us;
        tokio::select! {
            biased;
            acquired = self.engine.acquire(request, max_wait, &TokioTimer) => {
                let acquired = acquired?;
                let waited_us = u64::try_from(acquired.waited.as_micros()).unwrap_or(u64::MAX);
                Ok((acquired.decision, waited_us))
            }
            // Nobody waits for an end that may come first: it is told when to come back.
            () = self.drain.started() => {
                let waited_us = self.now().steady_us.saturating_sub(began_us);
                Ok((self.engine.decide(request).await?, waited_us))
            }
        }
    }

    /// Tells the webhook of a notice.
    pub(crate) fn notify(&self, notice: &tidegate::Notice) {
        self.notifier.tell(&Notice {
            policy: &notice.policy,
            webhook: &notice.webhook,
            source: &notice.source,
            subject: self.engine.format_subject(&notice.subject, self.log.identities()),
            action: notice.action,
            count: notice.count,
            until_unix_us: notice.until_unix_us,
            at_unix_us: notice.at_unix_us,
        });
    }

    /// Replaces the policies, and with them the webhooks.
    pub(crate) fn put_in_force(
        &self,
        policies: &[Arc<Policy>],
        webhooks: Targets,
    ) -> Result<(), BuildError> {
        // Both the old policies and the new ones may raise a notice in between.
        let known = self.notifier.load_besides(webhooks.clone());
        if let Err(error) = self.engine.replace_policies(policies.to_vec()) {
            self.notifier.load(known);
            return Err(error);
        }
        self.notifier.load(webhooks);
        self.metrics.load(policies);
        Ok(())
    }

    /// The claims of the bearer token in an `Authorization` header, if it verifies. Whether the
    /// policies read them is not asked: others may be in force by the time of the decision.
    pub(crate) fn claims_of(&self, authorization: &str) -> Option<Claims> {
        self.verifier.load().as_deref()?.claims(authorization, self.now())
    }

    /// Whether a lease that travelled may be settled: once in all, and only in its time.
    pub(crate) async fn may_settle(&self, travelled: &Travelled) -> Result<bool, StoreError> {
        let Travelled { lease, given_unix_us, .. } = travelled;
        let void_at_us = given_unix_us.saturating_add(lease.void_after_us());
        Ok(self.now().unix_us < void_at_us && self.engine.claim(lease).await?)
    }

    /// Lets leases be settled, and tokens be opened, on any node that has this secret.
    pub(crate) fn share_secret(&self, secret: &HashKey) {
        self.challenges.rekey(secret);
        match Seal::new(secret) {
            Ok(seal) => self.leases.travel(seal),
            // They stay on this node, which is all that is lost.
            Err(error) => tracing::warn!(event = "warning", "leases cannot travel: {error}"),
        }
    }

    /// Counts and logs a store that could not answer outside of a decision, and what follows.
    pub(crate) fn store_failed(&self, error: &StoreError, consequence: &str) {
        self.metrics.store_failed(error);
        store_failed(error, consequence);
    }

    pub(crate) fn now(&self) -> Now {
        self.clock.now()
    }
}

#[cfg(test)]
impl App {
    /// One that logs nowhere.
    pub(crate) fn new(policy: tidegate::Policy) -> Self {
        use tidegate::identity::Networks;

        let (policy, clock) = (Arc::new(policy), SystemClock::new());
        let out = std::io::sink();
        let (log, _) = Log::start(crate::LogSettings::default(), out, clock.clone()).unwrap();
        let drain = Drain::new();
        let secret = HashKey::new([1; 16]);
        Self {
            metrics: Arc::new(Metrics::new(0, &[Arc::clone(&policy)])),
            engine: Engine::Memory(
                tidegate::Limiter::builder().policy(policy).clock(clock.clone()).build().unwrap(),
            ),
            leases: Leases::new(),
            load: Load::default(),
            holding: Holding::default(),
            notifier: Notifier::new(Networks::default(), clock.clone(), drain.clone()).unwrap(),
            countries: GeoIp::default(),
            drain,
            challenges: Challenges::new(&secret),
            clock,
            log,
            verifier: ArcSwapOption::empty(),
        }
    }
}

struct TokioTimer;

impl Timer for TokioTimer {
    async fn sleep_us(&self, us: u64) {
        tokio::time::sleep(Duration::from_micros(us)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> Policy {
        Policy::parse("policy.yaml", text).unwrap()
    }

    #[test]
    fn a_store_that_fails_outside_of_a_decision_is_counted() {
        let app = App::new(policy("{ tidegate: 1, name: a }"));
        let error = StoreError { transient: true, detail: "gone".to_owned() };
        app.store_failed(&error, "a place frees itself");
        let page = app.metrics.render(&crate::telemetry::Present::default());
        assert!(page.contains("tidegate_store_errors_total{reason=\"unavailable\"} 1\n"), "{page}");
        assert!(
            page.contains("tidegate_store_fallback_total{reason=\"unavailable\"} 0\n"),
            "{page}"
        );
    }
}
