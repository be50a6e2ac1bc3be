//! The calls that are under way.
//!
//! They are carried on by whoever waits for them, not by tasks of their own: from a reply to the next
//! call would else be four turns of the runtime instead of two, and each of them waits for all requests
//! that have their turn before.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// The calls that are under way; few, the oldest first.
#[derive(Default)]
pub(super) struct Calls {
    under_way: VecDeque<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Whether the newest is still to be sent.
    unsent: bool,
}

impl Calls {
    pub(super) fn len(&self) -> usize {
        self.under_way.len()
    }

    /// Begins one as soon as it is [waited for](Self::one_ends).
    pub(super) fn push(&mut self, call: impl Future<Output = ()> + Send + 'static) {
        debug_assert!(!self.unsent, "the one before was waited for");
        self.under_way.push_back(Box::pin(call));
        self.unsent = true;
    }

    /// Waits until one of them ends; for ever while there is none. A new one is sent before the end
    /// of another is seen to, and of those that have ended the oldest goes first, alone: what is
    /// answered together is sent together, and then the server waits for the client and the client
    /// for the server.
    pub(super) async fn one_ends(&mut self) {
        poll_fn(|context| {
            let sent = self.under_way.len() - usize::from(self.unsent);
            let newest = self.under_way.back_mut().filter(|_| std::mem::take(&mut self.unsent));
            if newest.is_some_and(|call| call.as_mut().poll(context).is_ready()) {
                self.under_way.pop_back();
                return Poll::Ready(());
            }
            let mut oldest_first = self.under_way.iter_mut().take(sent);
            match oldest_first.position(|call| call.as_mut().poll(context).is_ready()) {
                Some(at) => {
                    self.under_way.remove(at);
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
        let (mut calls, ended) = (Calls::default(), Arc::new(Mutex::new(Vec::new())));
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
