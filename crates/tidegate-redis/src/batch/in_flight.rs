//! The calls that are under way.
//!
//! The dispatcher polls them itself. With a task for each call, it would take four turns of the runtime
//! instead of two from a reply to the next call, and each turn waits for all tasks that are ready.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// The calls that are under way, the oldest first. There are few.
#[derive(Default)]
pub(super) struct InFlight {
    calls: VecDeque<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// True if the newest call was never polled, so that it is not sent yet.
    is_newest_unsent: bool,
}

impl InFlight {
    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Adds a call, which [`one_ends`](Self::one_ends) begins.
    pub(super) fn push(&mut self, call: impl Future<Output = ()> + Send + 'static) {
        debug_assert!(!self.is_newest_unsent, "the call before was polled");
        self.calls.push_back(Box::pin(call));
        self.is_newest_unsent = true;
    }

    /// Waits until one call ends; for ever while there is none. A new call is sent before another is
    /// polled. Of several that have ended, only the oldest is finished: calls that are answered together
    /// would be sent together, and then server and client would wait for each other.
    pub(super) async fn one_ends(&mut self) {
        poll_fn(|context| {
            let sent = self.calls.len() - usize::from(self.is_newest_unsent);
            let newest =
                self.calls.back_mut().filter(|_| std::mem::take(&mut self.is_newest_unsent));
            if newest.is_some_and(|call| call.as_mut().poll(context).is_ready()) {
                self.calls.pop_back();
                return Poll::Ready(());
            }
            let mut oldest_first = self.calls.iter_mut().take(sent);
            match oldest_first.position(|call| call.as_mut().poll(context).is_ready()) {
                Some(at) => {
                    self.calls.remove(at);
                    Poll::Ready(())
                }
                None => Poll::Pending,
            }
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[tokio::test]
    async fn of_those_that_have_ended_the_oldest_goes_first() {
        let (mut calls, ended) = (InFlight::default(), Arc::new(Mutex::new(Vec::new())));
        let (end, mut ends) = tokio::sync::watch::channel(false);
        for number in 0..3 {
            let (ended, mut ends) = (Arc::clone(&ended), ends.clone());
            calls.push(async move {
                ends.changed().await.unwrap();
                ended.lock().unwrap().push(number);
            });
            tokio::select! {
                biased;
                () = calls.one_ends() => panic!("nothing has ended"),
                () = tokio::task::yield_now() => {}
            }
        }
        end.send(true).unwrap();
        ends.changed().await.unwrap();
        for left in [2, 1, 0] {
            calls.one_ends().await;
            assert_eq!(calls.len(), left, "one at a time");
        }
        assert_eq!(*ended.lock().unwrap(), [0, 1, 2]);
    }
}
