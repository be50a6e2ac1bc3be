//! What all surfaces share: one engine, and what stands around it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use http::{HeaderMap, header};
use tidegate::clock::{Clock, Now, SystemClock};
use tidegate::identity::Claims;
use tidegate::store::StoreError;
use tidegate::{BuildError, Decision, Limiter, Policy, Request, RequestError, Timer};

use crate::drain::Drain;
use crate::jwt::Verifier;
use crate::leases::Leases;
use crate::sources::reads_tokens;
use crate::telemetry::{Log, Metrics, RequestId, store_failed};

/// The daemon's one engine, and all that stands around it.
pub(crate) struct App {
    pub(crate) limiter: Limiter,
    pub(crate) leases: Leases,
    pub(crate) drain: Drain,
    pub(crate) clock: SystemClock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) log: Log,
    /// What verifies bearer tokens, and whether a policy in force reads them.
    pub(crate) verifier: ArcSwapOption<Verifier>,
    pub(crate) reads_tokens: AtomicBool,
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
        // Memory answers at once. Waiting goes to the heap: every request would be moved about with
        // the room for it.
        let (decision, waited_us) = match hold {
            Hold::Never => (self.limiter.check(request)?, 0),
            Hold::AsThePolicySays => {
                let decision = self.limiter.check(request)?;
                match decision.wait() {
                    None => (decision, 0),
                    Some(_) => Box::pin(self.acquire(request, None)).await?,
                }
            }
            Hold::UpTo(max_wait) => Box::pin(self.acquire(request, Some(max_wait))).await?,
        };
        let took_us = self.now().steady_us.saturating_sub(decision.now.steady_us);
        self.metrics.decided(&decision, took_us);
        if self.log.wants(&decision) {
            self.log.decision(&self.limiter, &decision, request, &request_id());
        }
        Ok((decision, waited_us))
    }

    async fn acquire(
        &self,
        request: &Request<'_>,
        max_wait: Option<Duration>,
    ) -> Result<(Decision, u64), RequestError> {
        let began_us = self.now().steady_us;
        tokio::select! {
            biased;
            acquired = self.limiter.acquire(request, max_wait, &TokioTimer) => {
                let acquired = acquired?;
                let waited_us = u64::try_from(acquired.waited.as_micros()).unwrap_or(u64::MAX);
                Ok((acquired.decision, waited_us))
            }
            // Nobody waits for an end that may come first: it is told when to come back.
            () = self.drain.started() => {
                let waited_us = self.now().steady_us.saturating_sub(began_us);
                Ok((self.limiter.check(request)?, waited_us))
            }
        }
    }

    /// Replaces the policies. While either the old or the new ones read bearer tokens, requests come
    /// with their claims.
    pub(crate) fn put_in_force(&self, policies: &[Arc<Policy>]) -> Result<(), BuildError> {
        let reads_tokens = reads_tokens(policies);
        let did = self.reads_tokens.fetch_or(reads_tokens, Ordering::SeqCst);
        if let Err(error) = self.limiter.replace_policies(policies.to_vec()) {
            self.reads_tokens.store(did, Ordering::SeqCst);
            return Err(error);
        }
        self.metrics.load(policies);
        self.reads_tokens.store(reads_tokens, Ordering::SeqCst);
        Ok(())
    }

    /// The claims of a request's bearer token, if a policy reads them and the token verifies.
    pub(crate) fn claims(&self, headers: &HeaderMap) -> Option<Claims> {
        self.claims_of(headers.get(header::AUTHORIZATION)?.to_str().ok()?)
    }

    /// The claims of an `Authorization` header, likewise.
    pub(crate) fn claims_of(&self, authorization: &str) -> Option<Claims> {
        if !self.reads_tokens.load(Ordering::Relaxed) {
            return None;
        }
        self.verifier.load().as_deref()?.claims(authorization, self.now())
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
        let (policy, clock) = (Arc::new(policy), SystemClock::new());
        let out = std::io::sink();
        let (log, _) = Log::start(crate::LogSettings::default(), out, clock.clone()).unwrap();
        Self {
            metrics: Arc::new(Metrics::new(0, &[Arc::clone(&policy)])),
            limiter: Limiter::builder().policy(policy).clock(clock.clone()).build().unwrap(),
            leases: Leases::new(),
            drain: Drain::new(),
            clock,
            log,
            verifier: ArcSwapOption::empty(),
            reads_tokens: AtomicBool::new(false),
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
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    fn policy(text: &str) -> Policy {
        Policy::parse("policy.yaml", text).unwrap()
    }

    #[test]
    fn tokens_are_read_before_the_policy_that_needs_them_is_in_force() {
        let plain = "{ tidegate: 1, name: a, limits: { one: { by: client, total: 1 } } }";
        let reading = "{ tidegate: 1, name: b, identity: { user: { jwt: sub } }, limits: { one: { by: client, total: 1 } } }";
        let reading = Arc::new(policy(reading));
        assert!(reading.uses_jwt());
        for _ in 0..200 {
            let (app, start) = (App::new(policy(plain)), Barrier::new(2));
            thread::scope(|scope| {
                scope.spawn(|| {
                    start.wait();
                    app.put_in_force(&[Arc::clone(&reading)]).unwrap();
                });
                start.wait();
                while !app.limiter.policies()[0].uses_jwt() {}
                assert!(app.reads_tokens.load(Ordering::SeqCst), "in force without its claims");
            });
        }
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
