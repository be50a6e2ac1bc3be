//! The calls that are under way.
//!
//! They are carried on by whoever waits for them, not by tasks of their own: from a reply to the next
//! call would else be four turns of the runtime instead of two, and each of them waits for all requests
//! that have their turn before.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// The calls that are under way; few, the newest first.
#[derive(Default)]
pub(super) struct Calls(VecDeque<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl Calls {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Begins one as soon as it is [waited for](Self::some_end).
    pub(super) fn push(&mut self, call: impl Future<Output = ()> + Send + 'static) {
        self.0.push_front(Box::pin(call));
    }

    /// Waits until some of them end, and sees to all that have; for ever while there is none. The
    /// newest is looked at first, so that it is sent before the end of another is seen to: those that
    /// are sent together are answered together, and then the server waits for the client and the
    /// client for the server. That all are looked at keeps none waiting behind newer ones.
    pub(super) async fn some_end(&mut self) {
        poll_fn(|context| {
            let under_way = self.0.len();
            self.0.retain_mut(|call| call.as_mut().poll(context).is_pending());
            if self.0.len() < under_way { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn none_waits_behind_newer_ones() {
        let mut calls = Calls::default();
        calls.push(std::future::ready(()));
        calls.push(std::future::pending());
        calls.push(std::future::ready(()));
        calls.some_end().await;
        assert_eq!(calls.len(), 1, "both that have ended are seen to at once");
    }
}
