//! Bounds what a server can make this node keep: redis-rs reads a reply of any size into memory.
//!
//! The bytes of replies are followed as they come, without being kept. A connection whose reply is too
//! large is broken, as by any other failure.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The largest reply. Ours are some 100 KiB at most; a server's list of a large cluster is less.
const REPLY_BYTES_MAX: u64 = 16 << 20;
/// The longest line: a number, a status or an error.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// Follows replies in RESP2 and RESP3.
#[derive(Debug)]
struct ReplyScanner {
    state: ScannerState,
    /// The bytes of the reply so far.
    bytes: u64,
    /// The number of values that the reply still needs.
    values: u64,
}

#[derive(Debug)]
enum ScannerState {
    Type,
    /// In a line of this type, with as much of its number as was read.
    Line {
        kind: u8,
        number: Option<u64>,
        length: usize,
    },
    /// In a text with this many bytes to come, its line end included.
    Text(u64),
}

impl Default for ReplyScanner {
    fn default() -> Self {
        Self { state: ScannerState::Type, bytes: 0, values: 1 }
    }
}

impl ReplyScanner {
    /// Takes the bytes that came next. Fails if a reply is too large.
    fn scan(&mut self, mut bytes: &[u8]) -> Result<(), &'static str> {
        while let [first, rest @ ..] = bytes {
            let taken = match &mut self.state {
                ScannerState::Text(left) => {
                    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left -= u64::try_from(taken).unwrap_or(*left);
                    bytes = bytes.get(taken..).unwrap_or_default();
                    if *left == 0 {
                        self.end_value(0);
                    }
                    taken
                }
                ScannerState::Type => {
                    self.state = ScannerState::Line { kind: *first, number: Some(0), length: 0 };
                    bytes = rest;
                    1
                }
                ScannerState::Line { kind, number, length } => {
                    let (kind, known) = (*kind, *number);
                    *length += 1;
                    if *length > LINE_BYTES_MAX {
                        return Err("a line of a reply is too long");
                    }
                    match first {
                        b'\n' => self.end_line(kind, known)?,
                        b'\r' => {}
                        digit => *number = known.and_then(|known| append_digit(known, *digit)),
                    }
                    bytes = rest;
                    1
                }
            };
            self.bytes += u64::try_from(taken).unwrap_or(u64::MAX);
            if self.bytes > REPLY_BYTES_MAX {
                return Err("a reply is too large");
            }
            if self.values == 0 {
                *self = Self::default();
            }
        }
        Ok(())
    }

    fn end_line(&mut self, kind: u8, number: Option<u64>) -> Result<(), &'static str> {
        // The length of a null is -1, and nothing follows it.
        let Some(number) = number.filter(|_| b"$=!*~>%|".contains(&kind)) else {
            self.end_value(0);
            return Ok(());
        };
        if number > REPLY_BYTES_MAX {
            return Err("a reply is too large");
        }
        self.state = ScannerState::Type;
        match kind {
            b'$' | b'=' | b'!' => self.state = ScannerState::Text(number + 2),
            b'%' => self.end_value(2 * number),
            // Attributes come before the value that they are of.
            b'|' => self.values = self.values.saturating_add(2 * number),
            _ => self.end_value(number),
        }
        Ok(())
    }

    /// A value has ended, or a list of further values has begun.
    fn end_value(&mut self, further: u64) {
        self.state = ScannerState::Type;
        self.values = self.values.saturating_sub(1).saturating_add(further);
    }
}

fn append_digit(number: u64, digit: u8) -> Option<u64> {
    let digit = char::from(digit).to_digit(10)?;
    number.checked_mul(10)?.checked_add(u64::from(digit))
}

/// A stream that breaks at a reply that is too large.
pub(super) struct BoundedReplies<T> {
    stream: T,
    scanner: ReplyScanner,
}

impl<T> BoundedReplies<T> {
    pub(super) fn new(stream: T) -> Self {
        Self { stream, scanner: ReplyScanner::default() }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for BoundedReplies<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let filled = buffer.filled().len();
        let result = Pin::new(&mut this.stream).poll_read(context, buffer);
        if let Poll::Ready(Ok(())) = &result {
            let bytes = buffer.filled().get(filled..).unwrap_or_default();
            this.scanner.scan(bytes).map_err(io::Error::other)?;
        }
        result
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for BoundedReplies<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replies of every kind, one after the other.
    const REPLIES: &[&str] = &[
        "+OK\r\n",
        "-ERR no\r\n",
        ":17\r\n",
        "$5\r\nhello\r\n",
        "$0\r\n\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "*0\r\n",
        "*2\r\n*2\r\n:1\r\n$2\r\n\r\n\r\n+x\r\n",
        "_\r\n",
        ",1.5\r\n",
        "#t\r\n",
        "%1\r\n+a\r\n*1\r\n:1\r\n",
        "|1\r\n+ttl\r\n:9\r\n*1\r\n:1\r\n",
        ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
        "=8\r\ntxt:hell\r\n",
    ];

    #[test]
    fn replies_are_told_from_each_other_however_they_arrive() {
        for size in 1..40 {
            let mut scanner = ReplyScanner::default();
            for reply in REPLIES {
                for piece in reply.as_bytes().chunks(size) {
                    scanner.scan(piece).unwrap();
                }
                assert_eq!((scanner.bytes, scanner.values), (0, 1), "{reply:?}");
                assert!(matches!(scanner.state, ScannerState::Type), "{reply:?}");
            }
        }
    }

    #[test]
    fn a_reply_without_an_end_is_refused_and_many_small_ones_are_not() {
        let endless = [
            ("$99999999999\r\n", "x"),
            ("*99999999999\r\n", ":1\r\n"),
            ("*16000000\r\n", "$3\r\nabc\r\n"),
            ("+", "x"),
            ("%99999999999999999999999\r\n+a\r\n", "+a\r\n"),
            ("*2\r\n|8000000\r\n", ":1\r\n"),
        ];
        for (start, rest) in endless {
            let mut scanner = ReplyScanner::default();
            let rest = rest.repeat(1_000);
            let scanned = scanner
                .scan(start.as_bytes())
                .and_then(|()| (0..20_000).try_for_each(|_| scanner.scan(rest.as_bytes())));
            // A count that is no number ends its reply, and redis-rs refuses it.
            assert_eq!(scanned.is_err(), !start.starts_with('%'), "{start:?}");
        }
        let mut scanner = ReplyScanner::default();
        let many = REPLIES.concat().repeat(1_000);
        assert!((0..200).all(|_| scanner.scan(many.as_bytes()).is_ok()));
    }
}
