//! Many requests in one call, at one instant.

use super::Limiter;
use crate::context::Context;
use crate::decision::Decision;
use crate::plan::Mode;
use crate::request::{Request, RequestError};
use crate::store::ImmediateStore;

impl<S: ImmediateStore> Limiter<S> {
    /// Decides requests, and charges those that pass: the same as [`check`](Self::check) for each, one
    /// after the other, all at one instant.
    ///
    /// ```
    /// # use tidegate::{Limiter, Policy, Request};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let text = "{tidegate: 1, name: api, limits: {a: {by: user, token_bucket: 1/s burst 2}}}";
    /// let limiter = Limiter::new(Policy::parse("api.yaml", text)?);
    /// let request = Request::new("GET", "/").user("u1");
    /// let decisions = limiter.check_batch(&[request.clone(), request.clone(), request]);
    /// let allowed = decisions.iter().filter(|one| one.as_ref().is_ok_and(|one| one.is_allowed()));
    /// assert_eq!(allowed.count(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn check_batch(&self, requests: &[Request<'_>]) -> Vec<Result<Decision, RequestError>> {
        let now = self.now();
        let check = |request| {
            let context = Context::new(self.inner.select(request)?, request, now)?;
            self.check_context(&context, Mode::Charge)
        };
        requests.iter().map(check).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::Policy;
    use crate::{Limiter, Outcome, Request};

    const POLICY: &str = "
tidegate: 1
name: shop
operations: { buy: POST /buy }
limits:
  buying: { when: buy, by: user, token_bucket: 1/h burst 3 }
  all: { by: global, token_bucket: 1/h burst 40 }
penalties:
  pushing: { event: limited, by: user, within: 1h, ladder: { 2: { ban: 1h } } }
";

    fn limiter() -> Limiter {
        Limiter::new(Policy::parse("shop.yaml", POLICY).unwrap())
    }

    /// Sixty requests of three users, one of them without a path.
    fn requests() -> Vec<Request<'static>> {
        let request = |turn: usize| {
            let path = if turn == 7 { "/%zz" } else { "/buy" };
            Request::new("POST", path).user(["u1", "u2", "u3"][turn * turn % 3])
        };
        (0..60).map(request).collect()
    }

    #[test]
    fn a_batch_is_decided_as_its_requests_would_be_one_by_one() {
        let (batched, single, requests) = (limiter(), limiter(), requests());
        let outcome = |decided: Result<crate::Decision, _>| decided.map(|one| one.outcome).ok();
        let together: Vec<Option<Outcome>> =
            batched.check_batch(&requests).into_iter().map(outcome).collect();
        let apart: Vec<Option<Outcome>> =
            requests.iter().map(|request| outcome(single.check(request))).collect();
        assert_eq!(together, apart);
        for expected in
            [None, Some(Outcome::Allowed), Some(Outcome::Limited), Some(Outcome::Banned)]
        {
            assert!(together.contains(&expected), "no {expected:?} among {together:?}");
        }
    }

    #[test]
    fn an_empty_batch_has_no_decisions() {
        assert!(limiter().check_batch(&[]).is_empty());
    }
}
