//! Bytes from one side of a tunnel to the other, and back.
//!
//! An idle tunnel holds no buffer: bytes are read onto the stack, and only what the other side does
//! not take at once goes to the heap until it does.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// As much as is read at once.
const PIECE_BYTES: usize = 8 * 1024;

/// Carries bytes both ways until both sides have closed, or one fails.
pub(super) async fn carry_both<A, B>(one: &mut A, other: &mut B) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (mut there, mut back) = (OneWay::default(), OneWay::default());
    poll_fn(|context| {
        let there = there.poll(context, one, other)?;
        let back = back.poll(context, other, one)?;
        if there.is_ready() && back.is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}

/// One direction.
#[derive(Default)]
struct OneWay {
    /// What was read and is not yet written.
    left: Bytes,
    unflushed: bool,
    /// Nothing more comes.
    ended: bool,
    /// And the other side knows.
    closed: bool,
}

impl OneWay {
    fn poll<R, W>(
        &mut self,
        context: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        while !self.closed {
            ready!(self.poll_left(context, to))?;
            if self.ended {
                ready!(Pin::new(&mut *to).poll_shutdown(context))?;
                self.closed = true;
            } else if self.poll_piece(context, from, to)?.is_pending() {
                if self.unflushed {
                    ready!(Pin::new(&mut *to).poll_flush(context))?;
                    self.unflushed = false;
                }
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Writes what is left.
    fn poll_left<W: AsyncWrite + Unpin>(
        &mut self,
        context: &mut Context<'_>,
        to: &mut W,
    ) -> Poll<io::Result<()>> {
        while self.left.has_remaining() {
            let written = ready!(Pin::new(&mut *to).poll_write(context, &self.left))?;
            self.wrote(written)?;
            self.left.advance(written);
            if self.left.is_empty() {
                self.left = Bytes::new();
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads a piece, and writes as much of it as is taken at once.
    fn poll_piece<R, W>(
        &mut self,
        context: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let mut room = [MaybeUninit::uninit(); PIECE_BYTES];
        let mut buffer = ReadBuf::uninit(&mut room);
        ready!(Pin::new(from).poll_read(context, &mut buffer))?;
        let piece = buffer.filled();
        if piece.is_empty() {
            self.ended = true;
            return Poll::Ready(Ok(()));
        }
        let written = match Pin::new(to).poll_write(context, piece)? {
            Poll::Ready(written) => {
                self.wrote(written)?;
                written
            }
            Poll::Pending => 0,
        };
        self.left = Bytes::copy_from_slice(piece.get(written..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }

    fn wrote(&mut self, bytes: usize) -> io::Result<()> {
        self.unflushed = true;
        if bytes == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    /// More than any buffer on the way holds.
    const MANY: usize = 300_000;

    fn pattern(seed: u8) -> Vec<u8> {
        (0u8..251).cycle().map(|byte| byte ^ seed).take(MANY).collect()
    }

    #[tokio::test]
    async fn all_bytes_arrive_in_order_both_ways_however_slowly_they_are_taken() {
        // One side takes less than a piece at once, the other a little more.
        let ((client, mut one), (mut other, server)) = (duplex(1_000), duplex(9_000));
        let carried = tokio::spawn(async move { carry_both(&mut one, &mut other).await });
        let talk = |side: tokio::io::DuplexStream, says: Vec<u8>| async move {
            let (mut hears, mut mouth) = tokio::io::split(side);
            let saying = async {
                mouth.write_all(&says).await.unwrap();
                mouth.shutdown().await.unwrap();
            };
            let mut heard = Vec::new();
            let (_, read) = tokio::join!(saying, hears.read_to_end(&mut heard));
            read.unwrap();
            heard
        };
        let (back, there) = tokio::join!(talk(client, pattern(0)), talk(server, pattern(255)));
        assert!(there == pattern(0) && back == pattern(255));
        carried.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_side_that_has_closed_still_hears_the_other() {
        let ((mut client, mut one), (mut other, mut server)) = (duplex(64), duplex(64));
        let carried = tokio::spawn(async move { carry_both(&mut one, &mut other).await });
        client.shutdown().await.unwrap();
        assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0);
        server.write_all(b"later").await.unwrap();
        let mut heard = [0; 5];
        client.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"later");
        drop(server);
        carried.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_side_that_fails_ends_it() {
        let ((mut client, mut one), (mut other, server)) = (duplex(64), duplex(64));
        let carried = tokio::spawn(async move { carry_both(&mut one, &mut other).await });
        drop(server);
        client.write_all(b"hello").await.unwrap();
        assert!(carried.await.unwrap().is_err());
    }
}
