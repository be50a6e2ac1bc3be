//! A store that is late, loses answers and fails when its script says so.
//!
//! Its futures are pending at first, so that their driver must wait and be woken.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tidegate::clock::Now;
use tidegate::engine::plan::Plan;
use tidegate::engine::store::{
    Amendment, AmendmentResults, Answer, ImmediateStore, Memory, Store, StoreError,
};

/// The results of calls, one after the other. After the end of the script all calls succeed.
///
/// ```
/// use tidegate_testkit::scripted::Script;
///
/// // Three answers, two errors, then one answer that takes five polls.
/// let script = Script::new().ok(3).fail(2).slow(5);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Script {
    steps: VecDeque<(Step, usize)>,
    ever_after: Option<Step>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Answer { polls: u32 },
    Fail,
    Lose,
}

impl Script {
    /// A script in which all calls succeed.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The next `calls` calls are answered.
    #[must_use]
    pub fn ok(self, calls: usize) -> Self {
        self.then(Step::Answer { polls: 1 }, calls)
    }

    /// The next `calls` calls fail without an effect.
    #[must_use]
    pub fn fail(self, calls: usize) -> Self {
        self.then(Step::Fail, calls)
    }

    /// The next `calls` calls are carried out, but their answers get lost.
    #[must_use]
    pub fn lose(self, calls: usize) -> Self {
        self.then(Step::Lose, calls)
    }

    /// One call is answered after `polls` polls.
    #[must_use]
    pub fn slow(self, polls: u32) -> Self {
        self.then(Step::Answer { polls }, 1)
    }

    /// All further calls fail, until the next script.
    #[must_use]
    pub fn down(mut self) -> Self {
        self.ever_after = Some(Step::Fail);
        self
    }

    fn then(mut self, step: Step, calls: usize) -> Self {
        if calls > 0 {
            self.steps.push_back((step, calls));
        }
        self
    }

    fn next(&mut self) -> Step {
        let Some((step, calls)) = self.steps.front_mut() else {
            return self.ever_after.unwrap_or(Step::Answer { polls: 1 });
        };
        let step = *step;
        *calls -= 1;
        if *calls == 0 {
            self.steps.pop_front();
        }
        step
    }
}

/// A memory store behind a script. Clones share everything.
#[derive(Clone, Debug)]
pub struct ScriptedStore {
    memory: Arc<Memory>,
    script: Arc<Mutex<Script>>,
}

impl ScriptedStore {
    /// A new store that follows this script.
    #[must_use]
    pub fn new(script: Script) -> Self {
        Self { memory: Arc::default(), script: Arc::new(Mutex::new(script)) }
    }

    /// Another handle to the same memory, with a script of its own: one node may be cut off while the
    /// others are not.
    #[must_use]
    pub fn beside(&self, script: Script) -> Self {
        Self { memory: Arc::clone(&self.memory), script: Arc::new(Mutex::new(script)) }
    }

    /// Follows another script from now on.
    pub fn play(&self, script: Script) {
        *self.script.lock().unwrap_or_else(PoisonError::into_inner) = script;
    }

    /// The memory behind the script.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Waits as the script says, then carries out the call or fails it.
    async fn call<T>(
        &self,
        act: impl FnOnce(&Memory) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let step = self.script.lock().unwrap_or_else(PoisonError::into_inner).next();
        let error = |detail: &str| StoreError { transient: true, detail: detail.to_owned() };
        match step {
            Step::Answer { polls } => {
                Polls(polls.max(1)).await;
                act(&self.memory)
            }
            Step::Fail => {
                Polls(1).await;
                Err(error("the script says so"))
            }
            Step::Lose => {
                Polls(1).await;
                act(&self.memory)?;
                Err(error("the answer got lost"))
            }
        }
    }
}

impl Store for ScriptedStore {
    fn names_keys(&self) -> bool {
        true
    }

    async fn decide(&self, plan: &Plan) -> Result<Answer, StoreError> {
        self.call(|memory| memory.decide_now(plan)).await
    }

    async fn amend(
        &self,
        now: Now,
        amendments: &[Amendment],
    ) -> Result<AmendmentResults, StoreError> {
        self.call(|memory| memory.amend_now(now, amendments)).await
    }

    fn announce(&self, families: &[u64]) {
        self.memory.announce_now(families);
    }
}

/// Pending for N polls; asks to be polled again each time.
struct Polls(u32);

impl Future for Polls {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.0 == 0 {
            return Poll::Ready(());
        }
        self.0 -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use super::*;
    use crate::block_on;

    fn now() -> Now {
        Now { steady_us: 1, unix_us: 1 }
    }

    #[test]
    fn a_call_is_pending_for_as_many_polls_as_the_script_says() {
        let store = ScriptedStore::new(Script::new().ok(1).slow(3));
        for polls in [1, 3] {
            let mut call = pin!(store.amend(now(), &[]));
            let mut context = Context::from_waker(Waker::noop());
            for _ in 0..polls {
                assert!(call.as_mut().poll(&mut context).is_pending());
            }
            assert!(call.as_mut().poll(&mut context).is_ready());
        }
    }

    #[test]
    fn calls_go_by_the_script_and_then_all_is_well() {
        let store = ScriptedStore::new(Script::new().ok(1).fail(2).lose(1));
        let ask = || block_on(store.amend(now(), &[])).is_ok();
        assert_eq!(
            [ask(), ask(), ask(), ask(), ask(), ask()],
            [true, false, false, false, true, true]
        );
        store.play(Script::new().ok(1).down());
        assert_eq!([ask(), ask(), ask()], [true, false, false]);
    }
}
