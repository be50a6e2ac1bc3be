//! Heads whose framing is ambiguous: two servers could disagree on where such a request ends.
//!
//! hyper reads a head that has both a `Content-Length` and a `Transfer-Encoding` as chunked and
//! drops the length before anybody sees it, and it takes a bare line feed for the end of a line.
//! Both are safe here and a gift to whoever smuggles requests past a server that reads them
//! otherwise, so the bytes of each head are watched as they come. Bodies are followed to their end,
//! since the next head may come in the same breath.

use memchr::memchr;

/// As much of a line as is looked at: the longest name and its colon, blanks and a number.
const LINE: usize = 64;
/// What a connection of HTTP/2 begins with.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r";

/// Watches the bytes of a connection, one request after the other.
#[derive(Debug)]
pub(crate) struct Framing {
    /// The beginning of a line whose end is still to come.
    begun: Begun,
    state: State,
    seen: Seen,
    /// How many heads have ended, without the one that is ambiguous.
    heads: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Before the first line of a head, behind it.
    Idle,
    Head,
    /// So many bytes of a body are to come.
    Body(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailers,
    /// From here on nobody can tell: whatever request comes next is ambiguous.
    Ambiguous,
    /// Another protocol.
    Http2,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    length: Option<u64>,
    encoding: bool,
    ambiguous: bool,
}

impl Framing {
    pub(crate) fn new() -> Self {
        Self { begun: Begun::default(), state: State::Idle, seen: Seen::default(), heads: 0 }
    }

    /// Takes the bytes that came next.
    pub(crate) fn scan(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = match self.state {
                State::Body(left) => self.skip(rest, left, State::Body, State::Idle),
                State::Chunk(left) => self.skip(rest, left, State::Chunk, State::ChunkEnd),
                State::Ambiguous | State::Http2 => return,
                _ => self.take_line(rest),
            };
        }
    }

    /// Whether a head has begun and not ended.
    pub(crate) fn is_inside_head(&self) -> bool {
        matches!(self.state, State::Head)
            || matches!(self.state, State::Idle) && !self.begun.line().is_blank()
    }

    /// The first request that is ambiguous, counted from 0, if one is.
    pub(crate) fn ambiguous_from(&self) -> Option<u64> {
        matches!(self.state, State::Ambiguous).then_some(self.heads)
    }

    /// Whether the peer speaks HTTP/2, which frames its requests itself.
    pub(crate) fn is_http2(&self) -> bool {
        matches!(self.state, State::Http2)
    }

    fn skip<'b>(
        &mut self,
        bytes: &'b [u8],
        left: u64,
        within: fn(u64) -> State,
        behind: State,
    ) -> &'b [u8] {
        let skipped = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let left = left.saturating_sub(u64::try_from(skipped).unwrap_or(u64::MAX));
        self.state = if left == 0 { behind } else { within(left) };
        bytes.get(skipped..).unwrap_or_default()
    }

    fn take_line<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let Some(end) = memchr(b'\n', bytes) else {
            self.begun.take(bytes);
            return &[];
        };
        let (piece, behind) = bytes.split_at(end);
        // Nearly all lines come in one piece.
        if self.begun.bytes == 0 {
            self.state = self.after(&Line::whole(piece));
        } else {
            let mut begun = std::mem::take(&mut self.begun);
            begun.take(piece);
            self.state = self.after(&begun.line());
        }
        behind.get(1..).unwrap_or_default()
    }

    fn after(&mut self, line: &Line<'_>) -> State {
        match self.state {
            State::Idle if self.heads == 0 && line.start == HTTP2 => State::Http2,
            // Empty lines before a head are no part of it.
            State::Idle if line.is_empty() => {
                self.seen.ambiguous |= !line.ends_well();
                State::Idle
            }
            State::Idle | State::Head if !line.is_empty() => {
                self.seen.note(line);
                State::Head
            }
            State::Head => {
                self.seen.ambiguous |= !line.ends_well();
                self.after_head()
            }
            _ if !line.ends_well() => State::Ambiguous,
            State::ChunkSize => match line.chunk_size() {
                Some(0) => State::Trailers,
                Some(size) => State::Chunk(size),
                None => State::Ambiguous,
            },
            State::ChunkEnd if line.is_empty() => State::ChunkSize,
            State::Trailers if line.is_empty() => State::Idle,
            State::Trailers => State::Trailers,
            _ => State::Ambiguous,
        }
    }

    fn after_head(&mut self) -> State {
        let Seen { length, encoding, ambiguous } = std::mem::take(&mut self.seen);
        if ambiguous || (length.is_some() && encoding) {
            return State::Ambiguous;
        }
        self.heads = self.heads.saturating_add(1);
        match length {
            Some(left @ 1..) => State::Body(left),
            _ if encoding => State::ChunkSize,
            _ => State::Idle,
        }
    }
}

impl Seen {
    fn note(&mut self, line: &Line<'_>) {
        self.ambiguous |= !line.ends_well();
        if let Some(value) = line.value_of(b"content-length:") {
            let length = line.is_whole().then(|| number(value.trim_ascii(), 10)).flatten();
            self.ambiguous |= length.is_none() || self.length.is_some_and(|l| Some(l) != length);
            self.length = length.or(self.length);
        }
        self.encoding |= line.value_of(b"transfer-encoding:").is_some();
    }
}

/// What came of a line.
#[derive(Debug)]
struct Begun {
    start: [u8; LINE],
    bytes: usize,
    last: u8,
}

impl Default for Begun {
    fn default() -> Self {
        Self { start: [0; LINE], bytes: 0, last: 0 }
    }
}

impl Begun {
    fn take(&mut self, piece: &[u8]) {
        let free = self.start.get_mut(self.bytes.min(LINE)..).unwrap_or_default();
        for (to, from) in free.iter_mut().zip(piece) {
            *to = *from;
        }
        self.bytes = self.bytes.saturating_add(piece.len());
        self.last = piece.last().copied().unwrap_or(self.last);
    }

    fn line(&self) -> Line<'_> {
        let start = self.start.get(..self.bytes.min(LINE)).unwrap_or_default();
        Line { start, bytes: self.bytes, last: self.last }
    }
}

/// A line without its line feed, as far as it is looked at.
struct Line<'b> {
    start: &'b [u8],
    bytes: usize,
    last: u8,
}

impl<'b> Line<'b> {
    fn whole(line: &'b [u8]) -> Self {
        let start = line.get(..LINE).unwrap_or(line);
        Self { start, bytes: line.len(), last: line.last().copied().unwrap_or_default() }
    }

    /// What stands behind this name of a header and its colon, whatever their case.
    fn value_of(&self, name: &[u8]) -> Option<&'b [u8]> {
        let (found, value) = self.start.split_at_checked(name.len())?;
        found.eq_ignore_ascii_case(name).then_some(value)
    }

    /// Nothing, or the beginning of an empty line, which may stand before a head.
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

    /// The size that a chunk begins with; what follows it is an extension.
    fn chunk_size(&self) -> Option<u64> {
        let text = self.start;
        let digits = text.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(text.len());
        let (size, behind) = text.split_at(digits);
        let is_size = matches!(behind.first(), Some(b'\r' | b';' | b' ' | b'\t'));
        is_size.then(|| number(size, 16)).flatten()
    }
}

/// A number of nothing but digits.
fn number(digits: &[u8], radix: u32) -> Option<u64> {
    let text = std::str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'))?;
    u64::from_str_radix(text, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\ncontent-LENGTH:  4 \r\n\r\n\n\nab";
    const CHUNKED: &str = "POST / HTTP/1.1\r\nHost: a\r\nX-Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n\
        4;x=y\r\n\r\n\r\n\r\n00A\r\nGET / HTTP\r\n0\r\nContent-Length: 4\r\n\r\n";
    const BOTH: &str =
        "\r\nPOST / HTTP/1.1\r\nHost: a\r\nContent-length: 4\r\nTRANSFER-Encoding: chunked\r\n\r\n";
    const TWO: &str = "POST / HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n";
    const SIGNED: &str = "POST / HTTP/1.1\r\nContent-Length: +4\r\n\r\n";
    const BARE: &str = "GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n";
    const BARE_END: &str = "GET / HTTP/1.1\r\nHost: a\r\n\n";

    fn scanned(text: &str) -> Framing {
        let mut framing = Framing::new();
        framing.scan(text.as_bytes());
        framing
    }

    #[test]
    fn a_head_that_says_two_things_of_its_end_is_ambiguous() {
        for head in [BOTH, TWO, SIGNED, BARE, BARE_END] {
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
            let (mut framing, mut rest) = (Framing::new(), text.as_bytes());
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
