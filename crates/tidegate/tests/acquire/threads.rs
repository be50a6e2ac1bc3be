//! Many threads, and a clock that stands still: only wakes bring anybody on, so that one that is
//! lost leaves a thread waiting for good.

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tidegate::clock::FakeClock;
use tidegate::{Limiter, Timer};

use crate::stage::{policy, user};

const THREADS: usize = 8;
const TURNS: usize = 300;

struct Never;

impl Timer for Never {
    fn sleep(&self, _: Duration) -> impl Future<Output = ()> + Send {
        pending()
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        thread::park();
    }
}

#[test]
fn no_wake_is_lost_between_threads() {
    let limits = "  shared: { by: global, concurrency: 2 }\n  own: { by: user, concurrency: 1 }";
    let clock = FakeClock::at_unix_seconds(1_767_603_600);
    let limiter = Limiter::builder().policy(policy(limits)).clock(clock).build().unwrap();
    let inside = AtomicUsize::new(0);
    let work = &|thread: usize| {
        let name = ["u", "v", "w"][thread % 3];
        for _ in 0..TURNS {
            let wait = Some(Duration::from_secs(3_600));
            let acquired = block_on(limiter.acquire(&user(name), wait, &Never)).unwrap();
            let mut lease = acquired.decision.reservation.unwrap();
            assert!(inside.fetch_add(1, Ordering::SeqCst) < 2);
            thread::yield_now();
            inside.fetch_sub(1, Ordering::SeqCst);
            limiter.release(&mut lease).unwrap();
        }
    };
    thread::scope(|scope| {
        (0..THREADS).for_each(|thread| drop(scope.spawn(move || work(thread))));
    });
    assert_eq!(limiter.waiters(), 0);
}
