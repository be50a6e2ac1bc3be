//! Answers that a penalty holds back. Their number is bounded: a crowd of misbehaving clients must not
//! take the memory and the upstream's connections of the others.

use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};

use crate::drain::Drain;

/// At most so many answers are held back. Those beyond go out at once.
const HELD_MAX: usize = 10_000;
/// At most so many of those that keep a connection to the upstream meanwhile.
const CONNECTED_MAX: usize = 256;
/// No answer is held back for longer.
const HELD_FOR_MAX: Duration = Duration::from_secs(60);

/// What holds answers back.
#[derive(Debug)]
pub(crate) struct Holding {
    places: Semaphore,
    connected: Semaphore,
}

impl Default for Holding {
    fn default() -> Self {
        Self { places: Semaphore::new(HELD_MAX), connected: Semaphore::new(CONNECTED_MAX) }
    }
}

impl Holding {
    /// Waits until then, unless too many do; whoever does not want to wait any more drops it. Nobody
    /// is held once the daemon drains.
    pub(crate) async fn hold(&self, until: Instant, drain: &Drain) {
        let Ok(_place) = self.places.try_acquire() else { return };
        tokio::select! {
            () = sleep_until(until.min(Instant::now() + HELD_FOR_MAX)) => {}
            () = drain.started() => {}
        }
    }

    /// The same with an answer that keeps a connection to the upstream.
    pub(crate) async fn hold_connected(&self, until: Instant, drain: &Drain) {
        if let Ok(_place) = self.connected.try_acquire() {
            self.hold(until, drain).await;
        }
    }

    /// How many answers are held back.
    pub(crate) fn held(&self) -> usize {
        HELD_MAX - self.places.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);

    #[tokio::test]
    async fn an_answer_is_held_until_its_time() {
        let (holding, drain) = (Holding::default(), Drain::new());
        let until = Instant::now() + Duration::from_millis(20);
        holding.hold(until, &drain).await;
        assert!(Instant::now() >= until);
    }

    #[tokio::test]
    async fn those_beyond_the_bound_and_those_at_the_end_go_out_at_once() {
        let (holding, drain, later) = (Holding::default(), Drain::new(), Instant::now() + LONG);
        let taken = holding.places.try_acquire_many(u32::try_from(HELD_MAX).unwrap()).unwrap();
        assert_eq!(holding.held(), HELD_MAX);
        holding.hold(later, &drain).await;
        drop(taken);
        let taken = holding.connected.try_acquire_many(u32::try_from(CONNECTED_MAX).unwrap());
        holding.hold_connected(later, &drain).await;
        drop(taken);
        drain.start();
        holding.hold(later, &drain).await;
        assert_eq!(holding.held(), 0);
    }

    #[tokio::test]
    async fn who_goes_away_gives_the_place_back() {
        let (holding, drain) = (Holding::default(), Drain::new());
        {
            let mut holds = std::pin::pin!(holding.hold(Instant::now() + LONG, &drain));
            let waits = std::future::poll_fn(|context| {
                std::task::Poll::Ready(holds.as_mut().poll(context).is_pending())
            });
            assert!(waits.await && holding.held() == 1);
        }
        assert_eq!(holding.held(), 0);
    }
}
