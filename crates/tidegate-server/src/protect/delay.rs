//! Answers that a penalty delays. Their number is bounded: a crowd of misbehaving clients must not take
//! the memory and the upstream's connections of other clients.

use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};

use crate::drain::Drain;

/// The most answers that are delayed at once. Further ones go out at once.
const ANSWERS_MAX: usize = 10_000;
/// The most delayed answers that occupy a connection to the upstream meanwhile.
const CONNECTED_MAX: usize = 256;
/// The longest delay of an answer.
const DELAY_MAX: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct DelayedAnswers {
    permits: Semaphore,
    connected: Semaphore,
}

impl Default for DelayedAnswers {
    fn default() -> Self {
        Self { permits: Semaphore::new(ANSWERS_MAX), connected: Semaphore::new(CONNECTED_MAX) }
    }
}

impl DelayedAnswers {
    /// Delays an answer until then, unless too many are delayed. A drain ends the delay.
    pub(crate) async fn delay(&self, until: Instant, drain: &Drain) {
        let Ok(_permit) = self.permits.try_acquire() else { return };
        tokio::select! {
            () = sleep_until(until.min(Instant::now() + DELAY_MAX)) => {}
            () = drain.started() => {}
        }
    }

    /// Delays an answer that occupies a connection to the upstream.
    pub(crate) async fn delay_connected(&self, until: Instant, drain: &Drain) {
        if let Ok(_permit) = self.connected.try_acquire() {
            self.delay(until, drain).await;
        }
    }

    /// The number of answers that are delayed now.
    pub(crate) fn count(&self) -> usize {
        ANSWERS_MAX - self.permits.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);

    #[tokio::test]
    async fn an_answer_is_delayed_until_its_time() {
        let (delayed, drain) = (DelayedAnswers::default(), Drain::new());
        let until = Instant::now() + Duration::from_millis(20);
        delayed.delay(until, &drain).await;
        assert!(Instant::now() >= until);
    }

    #[tokio::test]
    async fn answers_beyond_the_bound_and_answers_during_a_drain_go_out_at_once() {
        let (delayed, drain, later) =
            (DelayedAnswers::default(), Drain::new(), Instant::now() + LONG);
        let taken = delayed.permits.try_acquire_many(u32::try_from(ANSWERS_MAX).unwrap()).unwrap();
        assert_eq!(delayed.count(), ANSWERS_MAX);
        delayed.delay(later, &drain).await;
        drop(taken);
        let taken = delayed.connected.try_acquire_many(u32::try_from(CONNECTED_MAX).unwrap());
        delayed.delay_connected(later, &drain).await;
        drop(taken);
        drain.start();
        delayed.delay(later, &drain).await;
        assert_eq!(delayed.count(), 0);
    }

    #[tokio::test]
    async fn a_client_that_leaves_gives_the_permit_back() {
        let (delayed, drain) = (DelayedAnswers::default(), Drain::new());
        {
            let mut delay = std::pin::pin!(delayed.delay(Instant::now() + LONG, &drain));
            let waits = std::future::poll_fn(|context| {
                std::task::Poll::Ready(delay.as_mut().poll(context).is_pending())
            });
            assert!(waits.await && delayed.count() == 1);
        }
        assert_eq!(delayed.count(), 0);
    }
}
