//! What all surfaces share.

use std::time::Duration;

use tidegate::clock::{Clock, Now, SystemClock};
use tidegate::plan::Mode;
use tidegate::{Decision, Limiter, Request, RequestError};

use crate::drain::Drain;
use crate::leases::Leases;

/// The daemon's one engine, and all that stands around it.
pub(crate) struct App {
    pub(crate) limiter: Limiter,
    pub(crate) leases: Leases,
    pub(crate) drain: Drain,
    pub(crate) clock: SystemClock,
}

impl App {
    /// Decides a request; where a limit refuses it, the caller is told how long to wait.
    pub(crate) async fn decide(&self, request: &Request<'_>) -> Result<Decision, RequestError> {
        self.limiter.decide(request, Mode::Charge).await
    }

    /// Decides a request that waits its turn for at most this long; also how long it waited.
    pub(crate) async fn acquire(
        &self,
        request: &Request<'_>,
        _max_wait: Duration,
    ) -> Result<(Decision, u64), RequestError> {
        self.decide(request).await.map(|decision| (decision, 0))
    }

    pub(crate) fn now(&self) -> Now {
        self.clock.now()
    }
}
