//! Heads whose framing is ambiguous: two servers could disagree on where such a request ends.
//!
//! hyper reads a head that has both a `Content-Length` and a `Transfer-Encoding` as chunked and drops the
//! length before the gateway sees it. hyper also takes a bare line feed for the end of a line. Both are
//! safe here, but they help an attacker to smuggle requests past a server that reads them otherwise. So
//! the bytes of each head are scanned as they come. Bodies are followed to their end, since the next head
//! may come in the same read.

use arrayvec::ArrayVec;
use memchr::memchr;

/// As much of a line as is looked at: the longest name and its colon, blanks and a number.
const LINE: usize = 64;
/// The first line of an HTTP/2 connection.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r";

/// Scans the bytes of a connection, one request after the other.
#[derive(Debug, Default)]
pub(super) struct Framing {
    /// The line whose end is still to come.
    line: LinePrefix,
    state: FramingState,
    head: HeadFraming,
    /// The number of heads that have ended, without the ambiguous one.
    heads: u64,
}

#[derive(Clone, Copy, Debug, Default)]
enum FramingState {
    /// Before the first line of a head.
    #[default]
    Idle,
    Head,
    /// Inside a body, with this many bytes to come.
    Body(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailers,
    /// The end of this request is unclear, so that every later one is ambiguous.
    Ambiguous,
    /// Another protocol.
    Http2,
}

/// What the lines of a head say about its body.
#[derive(Clone, Copy, Debug, Default)]
struct HeadFraming {
    length: Option<u64>,
    is_encoded: bool,
    is_ambiguous: bool,
}

impl Framing {
    /// Takes the bytes that came next.
    pub(super) fn scan(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = match self.state {
                FramingState::Body(left) => {
                    self.skip(rest, left, FramingState::Body, FramingState::Idle)
                }
                FramingState::Chunk(left) => {
                    self.skip(rest, left, FramingState::Chunk, FramingState::ChunkEnd)
                }
                FramingState::Ambiguous | FramingState::Http2 => return,
                _ => self.take_line(rest),
            };
        }
    }

    /// True if a head has begun and not ended.
    pub(super) fn is_inside_head(&self) -> bool {
        matches!(self.state, FramingState::Head)
            || matches!(self.state, FramingState::Idle) && !self.line.is_blank()
    }

    /// The first request that is ambiguous, counted from 0, if one is.
    pub(super) fn ambiguous_from(&self) -> Option<u64> {
        matches!(self.state, FramingState::Ambiguous).then_some(self.heads)
    }

    /// True if the peer speaks HTTP/2, which frames its requests itself.
    pub(super) fn is_http2(&self) -> bool {
        matches!(self.state, FramingState::Http2)
    }

    fn skip<'b>(
        &mut self,
        bytes: &'b [u8],
        left: u64,
        within: fn(u64) -> FramingState,
        behind: FramingState,
    ) -> &'b [u8] {
        let skipped = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let left = left.saturating_sub(u64::try_from(skipped).unwrap_or(u64::MAX));
        self.state = if left == 0 { behind } else { within(left) };
        bytes.get(skipped..).unwrap_or_default()
    }

    fn take_line<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let Some(end) = memchr(b'\n', bytes) else {
            self.line.extend(bytes);
            return &[];
        };
        let (piece, behind) = bytes.split_at(end);
        self.line.extend(piece);
        let line = std::mem::take(&mut self.line);
        self.state = self.after_line(&line);
        behind.get(1..).unwrap_or_default()
    }

    fn after_line(&mut self, line: &LinePrefix) -> FramingState {
        match self.state {
            FramingState::Idle if self.heads == 0 && *line.start == *HTTP2 => FramingState::Http2,
            // Empty lines before a head are no part of it.
            FramingState::Idle if line.is_empty() => {
                self.head.is_ambiguous |= !line.ends_well();
                FramingState::Idle
            }
            FramingState::Idle | FramingState::Head if !line.is_empty() => {
                self.head.read_line(line);
                FramingState::Head
            }
            FramingState::Head => {
                self.head.is_ambiguous |= !line.ends_well();
                self.after_head()
            }
            _ if !line.ends_well() => FramingState::Ambiguous,
            FramingState::ChunkSize => match line.chunk_size() {
                Some(0) => FramingState::Trailers,
                Some(size) => FramingState::Chunk(size),
                None => FramingState::Ambiguous,
            },
            FramingState::ChunkEnd if line.is_empty() => FramingState::ChunkSize,
            FramingState::Trailers if line.is_empty() => FramingState::Idle,
            FramingState::Trailers => FramingState::Trailers,
            _ => FramingState::Ambiguous,
        }
    }

    fn after_head(&mut self) -> FramingState {
        let HeadFraming { length, is_encoded, is_ambiguous } = std::mem::take(&mut self.head);
        if is_ambiguous || (length.is_some() && is_encoded) {
            return FramingState::Ambiguous;
        }
        self.heads = self.heads.saturating_add(1);
        match length {
            Some(left @ 1..) => FramingState::Body(left),
            _ if is_encoded => FramingState::ChunkSize,
            _ => FramingState::Idle,
        }
    }
}

impl HeadFraming {
    fn read_line(&mut self, line: &LinePrefix) {
        self.is_ambiguous |= !line.ends_well();
        if let Some(value) = line.value_of(b"content-length:") {
            let length = line.is_whole().then(|| parse_number(value.trim_ascii(), 10)).flatten();
            self.is_ambiguous |= length.is_none() || self.length.is_some();
            self.length = length.or(self.length);
        }
        if let Some(value) = line.value_of(b"transfer-encoding:") {
            let is_chunked = line.is_whole() && value.trim_ascii().eq_ignore_ascii_case(b"chunked");
            self.is_ambiguous |= !is_chunked || self.is_encoded;
            self.is_encoded = true;
        }
    }
}

/// A line without its line feed, as far as it is looked at.
#[derive(Debug, Default)]
struct LinePrefix {
    start: ArrayVec<u8, LINE>,
    bytes: usize,
    last: u8,
}

impl LinePrefix {
    fn extend(&mut self, piece: &[u8]) {
        let free = self.start.remaining_capacity();
        self.start.extend(piece.iter().copied().take(free));
        self.bytes = self.bytes.saturating_add(piece.len());
        self.last = piece.last().copied().unwrap_or(self.last);
    }

    /// The value of the header with this name and colon, whatever their case.
    fn value_of(&self, name: &[u8]) -> Option<&[u8]> {
        let (found, value) = self.start.split_at_checked(name.len())?;
        found.eq_ignore_ascii_case(name).then_some(value)
    }

    /// True for nothing, or the beginning of an empty line, which may stand before a head.
    fn is_blank(&self) -> bool {
        self.bytes == 0 || self.bytes == 1 && self.last == b'\r'
    }

    fn is_whole(&self) -> bool {
        self.bytes <= LINE
    }

    fn ends_well(&self) -> bool {
        self.bytes > 0 && self.last == b'\r'
    }

    fn is_empty(&self) -> bool {
        self.bytes == usize::from(self.ends_well())
    }

    /// The size that a chunk begins with; an extension may follow.
    fn chunk_size(&self) -> Option<u64> {
        let text = &*self.start;
        let digits = text.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(text.len());
        let (size, behind) = text.split_at(digits);
        let is_size = matches!(behind.first(), Some(b'\r' | b';' | b' ' | b'\t'));
        is_size.then(|| parse_number(size, 16)).flatten()
    }
}

/// A number of nothing but digits.
fn parse_number(digits: &[u8], radix: u32) -> Option<u64> {
    let text = std::str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'))?;
    u64::from_str_radix(text, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\ncontent-LENGTH:  4 \r\n\r\n\n\nab";
    const CHUNKED: &str = "POST / HTTP/1.1\r\nHost: a\r\nX-Content-Length: 4\r\nTransfer-Encoding:  Chunked \r\n\r\n\
        4;x=y\r\n\r\n\r\n\r\n00A\r\nGET / HTTP\r\n0\r\nContent-Length: 4\r\n\r\n";
    const BOTH: &str =
        "\r\nPOST / HTTP/1.1\r\nHost: a\r\nContent-length: 4\r\nTRANSFER-Encoding: chunked\r\n\r\n";
    const TWO: &str = "POST / HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n";
    const SAME: &str = "POST / HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nabcd";
    const TWICE: &str =
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n";
    const LISTED: &str = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked, chunked\r\n\r\n";
    const ZIPPED: &str = "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n";
    const SIGNED: &str = "POST / HTTP/1.1\r\nContent-Length: +4\r\n\r\n";
    const BARE: &str = "GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n";
    const BARE_END: &str = "GET / HTTP/1.1\r\nHost: a\r\n\n";

    fn scanned(text: &str) -> Framing {
        let mut framing = Framing::default();
        framing.scan(text.as_bytes());
        framing
    }

    #[test]
    fn a_head_that_says_two_things_of_its_end_is_ambiguous() {
        for head in [BOTH, TWO, SAME, TWICE, LISTED, ZIPPED, SIGNED, BARE, BARE_END] {
            assert_eq!(scanned(head).ambiguous_from(), Some(0), "{head}");
        }
        for request in [GET, POST, CHUNKED] {
            assert_eq!(scanned(request).ambiguous_from(), None, "{request}");
        }
    }

    #[test]
    fn every_request_of_a_pipeline_is_judged() {
        let text = format!("{GET}{POST}{CHUNKED}{GET}{CHUNKED}{POST}{BOTH}{GET}");
        assert_eq!(scanned(&text).ambiguous_from(), Some(6));
    }

    #[test]
    fn what_follows_a_broken_chunk_is_ambiguous() {
        let head = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        for chunks in ["4\nabcd", "\r\n", "x\r\n", "-1\r\n", "4\r\nabcdX\r\n", "0\r\nA: b\n\r\n"] {
            assert_eq!(scanned(&format!("{head}{chunks}")).ambiguous_from(), Some(1), "{chunks:?}");
        }
    }

    #[test]
    fn a_head_is_told_from_what_is_between_heads() {
        assert!(!scanned(GET).is_inside_head());
        assert!(scanned(&format!("{GET}G")).is_inside_head());
        assert!(scanned("GET / HTTP/1.1\r\nHost").is_inside_head());
        assert!(!scanned(POST.trim_end_matches('b')).is_inside_head());
    }

    #[test]
    fn what_may_stand_before_a_head_is_none() {
        assert!(!scanned(&format!("{GET}\r")).is_inside_head());
        assert!(!scanned("\r\n\r").is_inside_head());
        assert!(scanned("\r\nG").is_inside_head());
    }

    #[test]
    fn http_2_is_known_by_its_preface() {
        assert!(scanned("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").is_http2());
        assert!(!scanned(&format!("{GET}PRI * HTTP/2.0\r\n\r\n")).is_http2());
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_the_bytes_arrive(
            requests in prop::collection::vec(
                prop::sample::select(vec![GET, POST, CHUNKED, BOTH, BARE, TWO]), 1..5),
            sizes in prop::collection::vec(1usize..20, 1..50),
        ) {
            let text = requests.concat();
            let (mut framing, mut rest) = (Framing::default(), text.as_bytes());
            for size in sizes.into_iter().cycle() {
                let (piece, behind) = rest.split_at(size.min(rest.len()));
                framing.scan(piece);
                rest = behind;
                if rest.is_empty() {
                    break;
                }
            }
            let first = requests.iter().position(|one| [BOTH, BARE, TWO].contains(one));
            prop_assert_eq!(framing.ambiguous_from(), first.map(|at| at as u64));
        }
    }
}
