//! What all surfaces share.

use tidegate::plan::Mode;
use tidegate::{Decision, Limiter, Request, RequestError};

use crate::drain::Drain;

/// The daemon's one engine, and all that stands around it.
pub(crate) struct App {
    pub(crate) limiter: Limiter,
    pub(crate) drain: Drain,
}

impl App {
    /// Decides a request of a surface that can hold it while it waits its turn.
    pub(crate) async fn decide(&self, request: &Request<'_>) -> Result<Decision, RequestError> {
        self.limiter.decide(request, Mode::Charge).await
    }
}
