//! Answers on HTTP/2, where a client that takes nothing leaves no trace on the socket: it grants no
//! window, and nobody asks for the next piece. So a task asks, and waits only for so long until it
//! is taken.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

use crate::body::{self, BodyError, NextFrame};

/// An answer that is dropped, with all that it holds, once the client takes too long.
pub(super) struct Relay {
    pieces: Receiver<Piece>,
    hint: SizeHint,
    over: bool,
}

enum Piece {
    Frame(Result<Frame<Bytes>, BodyError>),
    End,
}

impl Relay {
    /// The client is expected to take it from now on.
    pub(super) fn new(answer: body::Body, bound: Duration) -> Self {
        let (sender, pieces) = channel(1);
        let hint = answer.size_hint();
        tokio::spawn(async move {
            tokio::select! {
                () = pass_on(answer, &sender, bound) => {}
                () = sender.closed() => {}
            }
        });
        Self { pieces, hint, over: false }
    }
}

async fn pass_on(mut answer: body::Body, sender: &Sender<Piece>, bound: Duration) {
    loop {
        let piece = answer.frame().await.map_or(Piece::End, Piece::Frame);
        let is_end = matches!(piece, Piece::End | Piece::Frame(Err(_)));
        let is_taken = timeout(bound, sender.send(piece)).await;
        if is_end || !matches!(is_taken, Ok(Ok(()))) {
            return;
        }
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> NextFrame {
        if self.over {
            return Poll::Ready(None);
        }
        let piece = ready!(self.pieces.poll_recv(context));
        self.over = !matches!(piece, Some(Piece::Frame(Ok(_))));
        Poll::Ready(match piece {
            Some(Piece::Frame(frame)) => Some(frame),
            Some(Piece::End) => None,
            None => Some(Err("the client took too long".into())),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.over
    }

    fn size_hint(&self) -> SizeHint {
        self.hint
    }
}
