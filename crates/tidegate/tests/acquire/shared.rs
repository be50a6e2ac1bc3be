//! Waiting for what others hold on a store that several limiters share: nobody here is woken when they
//! give it back.

use std::future::{Future, ready};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::clock::Now;
use tidegate::engine::plan::Plan;
use tidegate::engine::store::{
    Amendment, AmendmentResults, Answer, ImmediateStore as _, Memory, Store, StoreError,
};
use tidegate::{HashKey, Limiter, Reservation, Timer};

use crate::stage::{policy, user};

#[derive(Clone, Default)]
struct Shared(Arc<Memory>);

impl Store for Shared {
    fn names_keys(&self) -> bool {
        true
    }

    fn poll_interval(&self) -> Option<Duration> {
        Some(Duration::from_millis(50))
    }

    fn decide(&self, plan: &Plan) -> impl Future<Output = Result<Answer, StoreError>> + Send {
        ready(self.0.decide_now(plan))
    }

    fn amend(
        &self,
        now: Now,
        amendments: &[Amendment],
    ) -> impl Future<Output = Result<AmendmentResults, StoreError>> + Send {
        ready(self.0.amend_now(now, amendments))
    }

    fn announce(&self, families: &[u64]) {
        self.0.announce_now(families);
    }
}

impl Shared {
    fn node(&self) -> Limiter<Self> {
        let policy = policy("  places: { by: user, concurrency: 1, lease: 1h }");
        let builder = Limiter::builder().policy(policy).store(self.clone());
        builder.hash_key(HashKey::new([1; 16])).build().unwrap()
    }
}

/// Notes how long each sleep was to be, and has the other node give its place back in the third.
struct Notes {
    asleep_us: Mutex<Vec<u64>>,
    other: Limiter<Shared>,
    lease: Mutex<Option<Reservation>>,
}

impl Timer for Notes {
    async fn sleep(&self, duration: Duration) {
        let sleeps = {
            let mut asleep_us = self.asleep_us.lock().unwrap();
            asleep_us.push(u64::try_from(duration.as_micros()).unwrap());
            asleep_us.len()
        };
        let lease = if sleeps == 3 { self.lease.lock().unwrap().take() } else { None };
        if let Some(mut lease) = lease {
            assert!(self.other.release_async(&mut lease).await.unwrap());
        }
    }
}

#[test]
fn what_another_node_gives_back_is_found_by_looking_again() {
    let store = Shared::default();
    let (here, other) = (store.node(), store.node());
    let decided = crate::threads::block_on(other.check_async(&user("u")));
    let lease = Mutex::new(decided.unwrap().reservation);
    let timer = Notes { asleep_us: Mutex::default(), other, lease };
    let request = user("u");
    let waits = here.acquire(&request, Some(Duration::from_secs(7_200)), &timer);
    let acquired = crate::threads::block_on(waits).unwrap();
    assert!(acquired.decision.is_allowed());
    let asleep_us = timer.asleep_us.into_inner().unwrap();
    assert_eq!(asleep_us.len(), 3, "it looks as often as it sleeps");
    assert!(asleep_us.iter().all(|us| *us <= 50_000), "{asleep_us:?}");
}
