//! What is given back just after a refusal, and before the refused one stands in line.

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::clock::{FakeClock, Now};
use tidegate::engine::plan::Plan;
use tidegate::engine::store::{
    Amendment, AmendmentResults, Answer, Change, ImmediateStore, Memory, StoreError,
};
use tidegate::{Limiter, Timer};

use crate::stage::{policy, user};

struct Never;

impl Timer for Never {
    fn sleep(&self, _: Duration) -> impl Future<Output = ()> + Send {
        pending()
    }
}

/// Frees the place of its first holder right after it has refused somebody.
struct Freeing {
    memory: Memory,
    held: Mutex<Option<Amendment>>,
}

impl ImmediateStore for Freeing {
    fn decide_now(&self, plan: &Plan) -> Result<Answer, StoreError> {
        let answer = self.memory.decide_now(plan)?;
        let level = plan.levels[0];
        let mut held = self.held.lock().unwrap();
        if answer.replies[0].charged {
            let (charged_at_us, holder) = (answer.replies[0].charged_at_us, plan.holder);
            *held = Some(Amendment {
                level,
                name: None,
                charged_at_us,
                holder,
                change: Change::Release,
            });
        } else if let Some(release) = held.take() {
            self.memory.amend_now(plan.now, &[release])?;
        }
        Ok(answer)
    }

    fn amend_now(
        &self,
        now: Now,
        amendments: &[Amendment],
    ) -> Result<AmendmentResults, StoreError> {
        self.memory.amend_now(now, amendments)
    }

    fn announce_now(&self, families: &[u64]) {
        self.memory.announce_now(families);
    }
}

#[test]
fn what_is_freed_before_the_place_in_line_is_taken_is_not_missed() {
    let clock = FakeClock::at_unix_seconds(1_767_603_600);
    let store = Freeing { memory: Memory::new(), held: Mutex::default() };
    let builder = Limiter::builder().policy(policy("  place: { by: user, concurrency: 1 }"));
    let limiter = builder.store(store).clock(clock).build().unwrap();
    assert!(limiter.check(&user("u")).unwrap().is_allowed());
    let request = user("u");
    let mut waits = pin!(limiter.acquire(&request, Some(Duration::from_secs(9)), &Never));
    let Poll::Ready(acquired) = waits.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("it waits for a place that is free");
    };
    assert!(acquired.unwrap().decision.is_allowed());
}
