//! The socket of a connection to the upstream, which bounds what the upstream can make the gateway keep.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most bytes up to the end of an answer's head: interim answers (1xx), of which hyper would skip any
/// number, the head, and a first piece of the body.
const HEAD_BYTES_MAX: i64 = 512 * 1024;
/// The most bytes of one read. hyper reads ahead once before a client asks, and would read more and more
/// at once.
const READ_BYTES_MAX: usize = 16 * 1024;

/// The bytes that may still be read. It is shared with the connection, which knows when an answer begins.
#[derive(Clone, Debug)]
pub(super) struct ReadAllowance(Arc<AtomicI64>);

impl ReadAllowance {
    /// Up to the head of the next answer.
    pub(super) fn new() -> Self {
        Self(Arc::new(AtomicI64::new(HEAD_BYTES_MAX)))
    }

    /// A request is sent, and its answer is still to begin.
    pub(super) fn expect_head(&self) {
        self.0.store(HEAD_BYTES_MAX, Ordering::Relaxed);
    }

    /// The answer has begun: its client bounds the rest by reading.
    pub(super) fn lift(&self) {
        self.0.store(i64::MAX, Ordering::Relaxed);
    }

    fn spend(&self, bytes: usize) -> io::Result<()> {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        match self.0.fetch_sub(bytes, Ordering::Relaxed) < bytes {
            true => Err(io::Error::other("the upstream sends no head of an answer")),
            false => Ok(()),
        }
    }
}

pub(super) struct UpstreamSocket<T> {
    socket: T,
    allowance: ReadAllowance,
}

impl<T> UpstreamSocket<T> {
    pub(super) fn new(socket: T, allowance: ReadAllowance) -> Self {
        Self { socket, allowance }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for UpstreamSocket<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let length = buffer.remaining().min(READ_BYTES_MAX);
        let mut piece = ReadBuf::new(buffer.initialize_unfilled_to(length));
        let result = Pin::new(&mut self.socket).poll_read(context, &mut piece);
        let read = piece.filled().len();
        buffer.advance(read);
        self.allowance.spend(read)?;
        result
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for UpstreamSocket<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, buffers)
    }
}
