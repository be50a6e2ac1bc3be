//! The calls that are under way.
//!
//! They are carried on by whoever waits for them, not by tasks of their own: from a reply to the next
//! call would else be four turns of the runtime instead of two, and each of them waits for all requests
//! that have their turn before.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// The calls that are under way; few.
#[derive(Default)]
pub(super) struct Calls(Vec<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl Calls {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Begins one as soon as it is [waited for](Self::one_ends).
    pub(super) fn push(&mut self, call: impl Future<Output = ()> + Send + 'static) {
        self.0.push(Box::pin(call));
    }

    /// Waits until one of them ends; for ever while there is none. The newest is looked at first, so
    /// that it is sent before the end of another is seen to: those that are sent together are answered
    /// together, and then the server waits for the client and the client for the server.
    pub(super) async fn one_ends(&mut self) {
        poll_fn(|context| {
            let mut calls = self.0.iter_mut();
            match calls.rposition(|call| call.as_mut().poll(context).is_ready()) {
                Some(at) => {
                    drop(self.0.remove(at));
                    Poll::Ready(())
                }
                None => Poll::Pending,
            }
        })
        .await;
    }
}
