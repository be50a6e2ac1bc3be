//! Heads whose framing is ambiguous: two servers could disagree on where such a request ends.
//!
//! hyper reads a head that has both a `Content-Length` and a `Transfer-Encoding` as chunked and
//! drops the length before anybody sees it, and it takes a bare line feed for the end of a line.
//! Both are safe here and a gift to whoever smuggles requests past a server that reads them
//! otherwise, so the bytes of each head are watched as they come.

/// The longest name that is looked for, and its colon.
const PREFIX: usize = b"transfer-encoding:".len();

/// Watches the lines of one head after the other.
#[derive(Debug, Default)]
pub(crate) struct HeadScanner {
    /// The beginning of the current line.
    line: [u8; PREFIX],
    line_bytes: usize,
    last: u8,
    begun: bool,
    seen: Seen,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    length: bool,
    encoding: bool,
    bare_line_feed: bool,
}

impl HeadScanner {
    /// Takes bytes up to the end of a head. At its end, says whether it is ambiguous; what follows
    /// is not looked at.
    pub(crate) fn scan(&mut self, bytes: &[u8]) -> Option<bool> {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, behind) = rest.split_at(end);
            self.take(line);
            rest = behind.get(1..).unwrap_or_default();
            if self.end_line() {
                let Seen { length, encoding, bare_line_feed } = self.seen;
                *self = Self::default();
                return Some((length && encoding) || bare_line_feed);
            }
        }
        self.take(rest);
        None
    }

    fn take(&mut self, piece: &[u8]) {
        let kept = self.line_bytes.min(PREFIX);
        let free = self.line.get_mut(kept..).unwrap_or_default();
        for (to, from) in free.iter_mut().zip(piece) {
            *to = from.to_ascii_lowercase();
        }
        self.line_bytes = self.line_bytes.saturating_add(piece.len());
        self.last = piece.last().copied().unwrap_or(self.last);
    }

    /// Whether the line that is over was the last of a head. Empty lines before a head are none.
    fn end_line(&mut self) -> bool {
        let ends_well = self.line_bytes > 0 && self.last == b'\r';
        let is_empty = self.line_bytes == usize::from(ends_well);
        self.seen.bare_line_feed |= !ends_well;
        self.seen.length |= self.line.starts_with(b"content-length:");
        self.seen.encoding |= self.line.starts_with(b"transfer-encoding:");
        (self.line, self.line_bytes, self.last) = ([0; PREFIX], 0, 0);
        let is_last = self.begun && is_empty;
        self.begun |= !is_empty;
        is_last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOTH: &str =
        "\r\nPOST / HTTP/1.1\r\nHost: a\r\nContent-length: 4\r\nTRANSFER-Encoding: chunked\r\n\r\n";
    const ONE: &str = "POST / HTTP/1.1\r\nHost: a\r\nX-Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\nContent-Length: 4\r\n\r\n";
    const BARE: &str = "GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n";

    #[test]
    fn a_head_with_both_lengths_or_a_bare_line_feed_is_ambiguous() {
        assert_eq!(HeadScanner::default().scan(BOTH.as_bytes()), Some(true));
        assert_eq!(HeadScanner::default().scan(ONE.as_bytes()), Some(false));
        assert_eq!(HeadScanner::default().scan(BARE.as_bytes()), Some(true));
        assert_eq!(HeadScanner::default().scan(b"GET / HTTP/1.1\r\n"), None);
    }

    #[test]
    fn each_head_is_judged_by_itself() {
        let mut scanner = HeadScanner::default();
        assert_eq!(scanner.scan(BOTH.as_bytes()), Some(true));
        assert_eq!(scanner.scan(ONE.as_bytes()), Some(false));
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_the_bytes_arrive(
            head in prop::sample::select(vec![BOTH, ONE, BARE]),
            sizes in prop::collection::vec(1usize..20, 1..200),
        ) {
            let mut scanner = HeadScanner::default();
            let (mut rest, mut verdict) = (head.as_bytes(), None);
            for size in sizes.into_iter().cycle() {
                let (piece, behind) = rest.split_at(size.min(rest.len()));
                verdict = scanner.scan(piece);
                rest = behind;
                if verdict.is_some() || rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(verdict, HeadScanner::default().scan(head.as_bytes()));
        }
    }
}
