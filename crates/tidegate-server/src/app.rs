//! What all surfaces share: one engine, and what stands around it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use http::{HeaderMap, header};
use tidegate::clock::{Clock, Now, SystemClock};
use tidegate::identity::Claims;
use tidegate::plan::Mode;
use tidegate::{Decision, Limiter, Request, RequestError, Timer};

use crate::drain::Drain;
use crate::jwt::Verifier;
use crate::leases::Leases;
use crate::telemetry::{Log, Metrics, RequestId};

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
        let (decision, waited_us) = match hold {
            Hold::Never => (self.limiter.decide(request, Mode::Charge).await?, 0),
            Hold::AsThePolicySays => {
                let decision = self.limiter.decide(request, Mode::Charge).await?;
                match decision.wait() {
                    None => (decision, 0),
                    Some(_) => self.acquire(request, None).await?,
                }
            }
            Hold::UpTo(max_wait) => self.acquire(request, Some(max_wait)).await?,
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
        let acquired = self.limiter.acquire(request, max_wait, &TokioTimer).await?;
        let waited_us = u64::try_from(acquired.waited.as_micros()).unwrap_or(u64::MAX);
        Ok((acquired.decision, waited_us))
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
