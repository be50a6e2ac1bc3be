//! Many requests in one call: the clock is read once, and what the store needs of its memory is on
//! its way before the first of them is decided.

use std::cell::Cell;

use arrayvec::ArrayVec;

use super::activate::select_for;
use super::protect::counts;
use super::{Limiter, NEWCOMER};
use crate::active_policy::ActivePolicy;
use crate::clock::Moment;
use crate::decision::Decision;
use crate::plan::{Mode, Plan};
use crate::request::{Request, RequestError};
use crate::store::{ImmediateStore, Tables};

/// So many are prepared before the first of them is decided. They are on the stack, and with what they
/// are decided from they fit the cache that is nearest.
const AT_ONCE: usize = 8;

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
        let (moment, mut at_once) = (Moment::of(&*self.shared.clock), AT_ONCE);
        let mut plans: [Plan; AT_ONCE] = std::array::from_fn(|_| Plan::new(Mode::Charge));
        let mut decided = Vec::with_capacity(requests.len());
        while let Some(rest) = requests.get(decided.len()..).filter(|rest| !rest.is_empty()) {
            let batch = &rest[..rest.len().min(at_once)];
            // Others may come into force in the middle, and with another secret who is banned has
            // another key.
            let policies = self.shared.policies.load();
            let counted = self.check_some(batch, &policies, &moment, &mut plans, &mut decided);
            // Where one is counted the next may well be, and what was prepared behind it is in vain.
            at_once = if counted { 1 } else { AT_ONCE };
        }
        decided
    }

    /// Decides requests up to the first whose events are counted, and says whether there was one:
    /// whoever comes behind it may be banned by them, and must not be prepared before.
    fn check_some(
        &self,
        requests: &[Request<'_>],
        policies: &[ActivePolicy],
        moment: &Moment<'_>,
        plans: &mut [Plan; AT_ONCE],
        decided: &mut Vec<Result<Decision, RequestError>>,
    ) -> bool {
        let shared = &*self.shared;
        requests.iter().for_each(Request::foresee);
        let mut found: ArrayVec<_, AT_ONCE> = ArrayVec::new();
        for (request, plan) in requests.iter().zip(&mut *plans) {
            plan.clear(Mode::Charge);
            found.push(select_for(policies, request).and_then(|active| {
                let found = shared.find(active, request, moment, NEWCOMER, plan, |_, _| {})?;
                Ok((found, active.tables.get()))
            }));
        }
        // Where its tables are known, the memory of a key was asked for as soon as the key was.
        if found.iter().flatten().any(|(_, tables)| tables.is_none_or(Tables::is_empty)) {
            shared.store.foresee_all(&plans[..requests.len()]);
        }
        for ((request, found), plan) in requests.iter().zip(found.drain(..)).zip(plans) {
            let counted = Cell::new(false);
            let counts = |outcome| {
                counted.set(counts(policies, request, outcome));
                counted.get()
            };
            decided.push(match found {
                Ok((found, tables)) => self.conclude_now(request, found, tables, plan, counts),
                Err(error) => Err(error),
            });
            if counted.get() {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use crate::clock::Now;
    use crate::plan::Plan;
    use crate::policy::Policy;
    use crate::store::{Amended, Amendment, Answer, ImmediateStore, Memory, StoreError};
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

    /// Counts how many plans were prepared.
    #[derive(Default)]
    struct Foreseen {
        memory: Memory,
        plans: AtomicUsize,
    }

    impl ImmediateStore for Foreseen {
        fn decide_now(&self, plan: &Plan) -> Result<Answer, StoreError> {
            self.memory.decide_now(plan)
        }

        fn foresee(&self, _: &Plan) {
            self.plans.fetch_add(1, Ordering::Relaxed);
        }

        fn amend_now(&self, now: Now, amendments: &[Amendment]) -> Result<Amended, StoreError> {
            self.memory.amend_now(now, amendments)
        }

        fn announce_now(&self, families: &[u64]) {
            self.memory.announce_now(families);
        }
    }

    #[test]
    fn a_batch_that_is_refused_throughout_is_prepared_about_once() {
        let text = POLICY.replace("ladder: { 2:", "ladder: { 1000:");
        let store = Arc::new(Foreseen::default());
        let policy = Policy::parse("shop.yaml", &text).unwrap();
        let limiter = Limiter::builder().policy(policy).store(Arc::clone(&store)).build().unwrap();
        let requests = vec![Request::new("POST", "/buy").user("u1"); 200];
        let decisions = limiter.check_batch(&requests);
        let limited = decisions.iter().flatten().filter(|one| one.outcome == Outcome::Limited);
        assert_eq!(limited.count(), 197);
        let plans = store.plans.load(Ordering::Relaxed);
        assert!((200..220).contains(&plans), "{plans} were prepared");
    }

    #[test]
    fn an_empty_batch_has_no_decisions() {
        assert!(limiter().check_batch(&[]).is_empty());
    }
}
