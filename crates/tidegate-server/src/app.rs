//! What all surfaces share: one engine, and what stands around it.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures_util::future::join_all;
use tidegate::StoreError;
use tidegate::clock::{Clock, Now, SystemClock, micros};
use tidegate::engine::identity::Claims;
use tidegate::engine::{Context, IdentityFormat, Pending, Progress, Wait};
use tidegate::{Acquisition, BuildError, Decision, HashKey, Policy, Request, RequestError, Timer};

use crate::challenge::{Challenges, passes_in};
use crate::drain::Drain;
use crate::engine::Engine;
use crate::geo::GeoIp;
use crate::jwt::Verifier;
use crate::leases::Leases;
use crate::notify::{Notifier, Targets};
use crate::protect::{DelayedAnswers, Load};
use crate::seal::{Seal, SealedReservation};
use crate::telemetry::{Log, Metrics, RequestId, UpstreamFailure, store_failed};

/// How many requests of a batch are decided at once: as many as travel in one call to the store.
const BATCH_CALL_MAX: usize = 64;

/// The daemon's one engine, and all that stands around it.
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) leases: Leases,
    pub(crate) challenges: Challenges,
    pub(crate) drain: Drain,
    pub(crate) load: Load,
    pub(crate) delayed_answers: DelayedAnswers,
    pub(crate) clock: SystemClock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) log: Log,
    /// What verifies bearer tokens. It is there whenever a policy reads them.
    pub(crate) verifier: ArcSwapOption<Verifier>,
    /// Which country clients are in, as far as that is known.
    pub(crate) countries: GeoIp,
    pub(crate) notifier: Notifier,
}

impl App {
    /// The context of a request over the API, whose headers may hold a pass.
    pub(crate) fn context<'r>(
        &self,
        request: &'r Request<'r>,
    ) -> Result<Context<'r>, RequestError> {
        let mut context = self.engine.context(request)?;
        if self.has_valid_pass(&context, passes_in(&request.headers)) {
            context.set_pass(true);
        }
        Ok(context)
    }

    /// Decides a request, counts and logs it; also how long it waited, in microseconds. All surfaces call
    /// this.
    pub(crate) async fn decide(
        &self,
        context: &mut Context<'_>,
        request_id: impl Fn() -> RequestId + Send,
        wait: Wait,
    ) -> Result<(Decision, u64), RequestError> {
        // A request that waits could outlive the daemon: it is told when to come back.
        let wait = if self.drain.has_started() { Wait::Never } else { wait };
        let decided = match self.engine.start(context, wait) {
            Ok(Progress::Decided(decision)) => Ok((decision, 0)),
            Ok(Progress::Pending(pending)) => Box::pin(self.finish(context, pending)).await,
            Err(error) => Err(error),
        };
        for unread in context.unreadable_attributes() {
            self.metrics.unreadable(unread.1);
            self.log.unreadable(unread, &request_id, self.clock.steady_us());
        }
        let (decision, waited_us) = decided?;
        let took_us = self.clock.steady_us().saturating_sub(decision.now.steady_us);
        self.metrics.decided(&decision, took_us);
        self.follow_up(decision.events(), decision.effects());
        if self.log.wants(&decision) {
            self.log.decision(&self.engine, &decision, context, &request_id());
        }
        Ok((decision, waited_us))
    }

    /// Decides a request that has to wait: for the store, or for its turn.
    async fn finish(
        &self,
        context: &mut Context<'_>,
        pending: Pending,
    ) -> Result<(Decision, u64), RequestError> {
        let (began_us, waits) = (self.now().steady_us, pending.may_wait());
        let finished = tokio::select! {
            biased;
            finished = self.engine.finish(context, pending, &TokioTimer) => Some(finished?),
            () = self.drain.started(), if waits => None,
        };
        if let Some(Acquisition { decision, waited, .. }) = finished {
            return Ok((decision, u64::try_from(waited.as_micros()).unwrap_or(u64::MAX)));
        }
        // The daemon may end before the wait does: the client is told when to come back.
        let waited_us = self.now().steady_us.saturating_sub(began_us);
        let decision = match self.engine.start(context, Wait::Never)? {
            Progress::Decided(decision) => decision,
            Progress::Pending(pending) => {
                self.engine.finish(context, pending, &TokioTimer).await?.decision
            }
        };
        Ok((decision, waited_us))
    }

    /// Decides requests as if one after the other, counts and logs them. None waits for its turn. Those
    /// that a shared store is asked for travel together, in their order, up to the first whose refusal
    /// may ban the next client; one at a time where the store would carry them out in another order.
    pub(crate) async fn decide_all<'r>(
        &self,
        requests: &'r [Request<'r>],
        request_id: impl Fn() -> RequestId + Copy + Send,
    ) -> Vec<Result<(Context<'r>, Decision), RequestError>> {
        let mut decided = Vec::with_capacity(requests.len());
        while let Some(rest) = requests.get(decided.len()..).filter(|rest| !rest.is_empty()) {
            let (together, _) = rest.split_at(self.independent(rest));
            let decide = |request| async move {
                let mut context = self.context(request)?;
                let decided = self.decide(&mut context, request_id, Wait::Never).await;
                decided.map(|(decision, _)| (context, decision))
            };
            decided.extend(join_all(together.iter().map(decide)).await);
        }
        decided
    }

    /// How many of these requests can be decided at once: those before the first whose refusal would be
    /// counted, or that one alone.
    fn independent(&self, requests: &[Request<'_>]) -> usize {
        let keeps_order =
            self.engine.store().shared().is_some_and(|store| store.redis().keeps_order());
        let some = requests.iter().take(if keeps_order { BATCH_CALL_MAX } else { 1 });
        let counts = |request: &&Request<'_>| self.engine.counts_refusals(request);
        some.take_while(|request| !counts(request)).count().max(1)
    }

    /// Tells the webhook of a notice.
    pub(crate) fn notify(&self, notice: &tidegate::engine::Notice) {
        self.notifier.send(notice, |with_identities| {
            let format = match with_identities {
                true => IdentityFormat::Plain,
                false => self.log.identities(),
            };
            self.engine.format_subject(&notice.subject, format)
        });
    }

    /// Replaces the policies, and with them the webhooks.
    pub(crate) fn put_in_force(
        &self,
        policies: &[Arc<Policy>],
        webhooks: Targets,
    ) -> Result<(), BuildError> {
        // Both the old policies and the new ones may raise a notice in between.
        let known = self.notifier.add_targets(webhooks.clone());
        if let Err(error) = self.engine.replace_policies(policies.to_vec()) {
            self.notifier.replace_targets(known);
            return Err(error);
        }
        self.notifier.replace_targets(webhooks);
        self.metrics.load(policies);
        Ok(())
    }

    /// The claims of the bearer token in an `Authorization` header, if it verifies. Whether the
    /// policies read them is not asked: others may be in force by the time of the decision.
    pub(crate) fn claims_of(&self, authorization: &str) -> Option<Claims> {
        let (verifier, now) = (self.verifier.load(), self.now());
        verifier.as_deref()?.claims(authorization, now).unwrap_or_else(|failure| {
            self.metrics.token_failed(failure);
            self.log.token_failed(failure, now.steady_us);
            None
        })
    }

    /// Counts and logs an upstream that did not answer.
    pub(crate) fn upstream_failed(&self, failure: UpstreamFailure, detail: &dyn Display) {
        self.metrics.upstream_failed(failure);
        self.log.upstream_failed(failure, detail, self.now().steady_us);
    }

    /// True if a sealed reservation may be settled: once on all nodes, and only in its time.
    pub(crate) async fn may_settle(&self, sealed: &SealedReservation) -> Result<bool, StoreError> {
        let SealedReservation { reservation, given_unix_us, .. } = sealed;
        let void_at_us = given_unix_us.saturating_add(micros(reservation.void_after()));
        Ok(self.now().unix_us < void_at_us && self.engine.claim(reservation).await?)
    }

    /// Lets leases be settled, and tokens be opened, on any node that has this secret.
    pub(crate) fn share_secret(&self, secret: &HashKey) {
        self.challenges.rekey(secret);
        match Seal::new(secret) {
            Ok(seal) => self.leases.seal_with(seal),
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
        use tidegate::engine::identity::Networks;

        let (policy, clock) = (Arc::new(policy), SystemClock::new());
        let out = std::io::sink();
        let (log, _) =
            Log::start(crate::telemetry::LogSettings::default(), out, clock.clone()).unwrap();
        let drain = Drain::new();
        let secret = HashKey::new([1; 16]);
        Self {
            metrics: Arc::new(Metrics::new(0, &[Arc::clone(&policy)])),
            engine: tidegate::Limiter::builder()
                .policy(policy)
                .clock(clock.clone())
                .store(crate::engine::DaemonStore::Memory(tidegate::engine::store::Memory::new()))
                .build()
                .unwrap(),
            leases: Leases::new(),
            load: Load::default(),
            delayed_answers: DelayedAnswers::default(),
            notifier: Notifier::new(Networks::default(), clock.clone(), drain.clone()),
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
    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> Policy {
        Policy::parse("policy.yaml", text).unwrap()
    }

    #[tokio::test]
    async fn a_request_that_waits_and_is_served_has_violated_nothing() {
        let app = App::new(policy(
            "{ tidegate: 1, name: a,
               limits: { rate: { by: user, token_bucket: 20/s burst 1, exceed: wait 3s } },
               penalties: { p: { event: limited, by: user, within: 1h, ladder: { 3: { ban: 1h } } } } }",
        ));
        let request = Request::new("GET", "/").user("u");
        let mut waits = 0;
        for turn in 0..8 {
            let mut context = app.engine.context(&request).unwrap();
            let (decision, waited_us) =
                app.decide(&mut context, RequestId::random, Wait::ByPolicy).await.unwrap();
            assert_eq!(decision.outcome, tidegate::Outcome::Allowed, "{turn}");
            waits += u32::from(waited_us > 0);
        }
        assert!(waits >= 3, "as many as would be a ban: {waits}");
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

    #[test]
    fn a_bearer_token_that_does_not_verify_is_counted_and_no_token_is_not() {
        let app = App::new(policy("{ tidegate: 1, name: a }"));
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        std::fs::write(&key, [7; 32]).unwrap();
        app.verifier.store(Some(Arc::new(Verifier::load(&key, None, None).unwrap())));
        for authorization in ["Bearer nonsense", "bearer  x.y.z", "Basic dTpw"] {
            assert_eq!(app.claims_of(authorization), None);
        }
        let page = app.metrics.render(&crate::telemetry::Present::default());
        assert!(page.contains("tidegate_token_failures_total{reason=\"malformed\"} 2\n"), "{page}");
    }
}
