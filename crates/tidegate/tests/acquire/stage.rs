//! Tasks on a simulated clock: one is polled only when its waker was called, so that a wake that
//! gets lost shows.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tidegate::clock::{Clock as _, FakeClock};
use tidegate::{Acquisition, Limiter, Policy, Request, Timer};

/// Sleeps on the simulated clock.
#[derive(Clone)]
pub(crate) struct FakeTimer {
    clock: FakeClock,
    sleepers: Arc<Mutex<Vec<(u64, Waker)>>>,
}

impl Timer for FakeTimer {
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send {
        let us = u64::try_from(duration.as_micros()).unwrap();
        let until_us = self.clock.now().steady_us + us;
        std::future::poll_fn(move |context| {
            if self.clock.now().steady_us >= until_us {
                return Poll::Ready(());
            }
            self.sleepers.lock().unwrap().push((until_us, context.waker().clone()));
            Poll::Pending
        })
    }
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What became of a task: when it was answered, from the start, and how.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) name: String,
    pub(crate) at_ms: u64,
    pub(crate) acquired: Acquisition,
}

impl Answer {
    pub(crate) fn passed(&self) -> bool {
        self.acquired.decision.is_allowed()
    }
}

struct Task {
    name: String,
    future: Pin<Box<dyn Future<Output = Acquisition> + Send>>,
    flag: Arc<Flag>,
}

/// A limiter, its clock, and who waits.
pub(crate) struct Stage {
    pub(crate) limiter: Limiter,
    clock: FakeClock,
    timer: FakeTimer,
    start_us: u64,
    tasks: Vec<Task>,
    pub(crate) answers: Vec<Answer>,
}

impl Stage {
    pub(crate) fn new(limits: &str) -> Self {
        Self::with_max_waiters(limits, 10_000)
    }

    pub(crate) fn with_max_waiters(limits: &str, max_waiters: usize) -> Self {
        let clock = FakeClock::at_unix_seconds(1_767_603_600);
        let builder = Limiter::builder().policy(policy(limits)).clock(clock.clone());
        let limiter = builder.max_waiters(max_waiters).build().unwrap();
        let timer = FakeTimer { clock: clock.clone(), sleepers: Arc::default() };
        let start_us = clock.now().steady_us;
        Self { limiter, clock, timer, start_us, tasks: Vec::new(), answers: Vec::new() }
    }

    /// Asks for a turn, waiting at most so many milliseconds; left out, as the policy says.
    pub(crate) fn acquire(
        &mut self,
        name: &str,
        request: Request<'static>,
        max_wait_ms: impl Into<Option<u64>>,
    ) {
        let (limiter, timer) = (self.limiter.clone(), self.timer.clone());
        let max_wait = max_wait_ms.into().map(Duration::from_millis);
        let future = async move { limiter.acquire(&request, max_wait, &timer).await.unwrap() };
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        self.tasks.push(Task { name: name.to_owned(), future: Box::pin(future), flag });
        self.run();
    }

    /// The caller goes away.
    pub(crate) fn abandon(&mut self, name: &str) {
        self.tasks.retain(|task| task.name != name);
        self.run();
    }

    /// Polls whoever was woken, until nobody is.
    pub(crate) fn run(&mut self) {
        let woken = |task: &Task| task.flag.0.swap(false, Ordering::SeqCst);
        while let Some(index) = self.tasks.iter().position(woken) {
            let task = &mut self.tasks[index];
            let waker = Waker::from(Arc::clone(&task.flag));
            if let Poll::Ready(acquired) =
                task.future.as_mut().poll(&mut Context::from_waker(&waker))
            {
                let name = self.tasks.remove(index).name;
                self.answers.push(Answer { name, at_ms: self.at_ms(), acquired });
            }
        }
    }

    /// Lets time pass up to an instant from the start.
    pub(crate) fn pass_to_ms(&mut self, at_ms: u64) {
        let target_us = self.start_us + at_ms * 1_000;
        loop {
            self.run();
            let now_us = self.clock.now().steady_us;
            let mut sleepers = self.timer.sleepers.lock().unwrap();
            let next_us = sleepers.iter().map(|(until_us, _)| *until_us).min();
            let next_us = next_us.filter(|us| *us <= target_us).unwrap_or(target_us);
            self.clock.advance(Duration::from_micros(next_us.saturating_sub(now_us)));
            let due = |(until_us, _): &mut (u64, Waker)| *until_us <= next_us;
            let woken: Vec<Waker> = sleepers.extract_if(.., due).map(|(_, waker)| waker).collect();
            drop(sleepers);
            if woken.is_empty() && next_us == target_us {
                return;
            }
            woken.iter().for_each(Waker::wake_by_ref);
        }
    }

    pub(crate) fn at_ms(&self) -> u64 {
        (self.clock.now().steady_us - self.start_us) / 1_000
    }

    /// Who passed, and when, in the order of their answers.
    pub(crate) fn passed(&self) -> Vec<(&str, u64)> {
        let passed = self.answers.iter().filter(|answer| answer.passed());
        passed.map(|answer| (answer.name.as_str(), answer.at_ms)).collect()
    }

    /// Who was refused, and when.
    pub(crate) fn refused(&self) -> Vec<(&str, u64)> {
        let refused = self.answers.iter().filter(|answer| !answer.passed());
        refused.map(|answer| (answer.name.as_str(), answer.at_ms)).collect()
    }
}

pub(crate) fn policy(limits: &str) -> Policy {
    let text = format!("tidegate: 1\nname: stage\nlimits:\n{limits}");
    Policy::parse("stage.yaml", &text).unwrap_or_else(|found| panic!("{found}"))
}

pub(crate) fn user(name: &'static str) -> Request<'static> {
    Request::new("GET", "/things").user(name)
}
