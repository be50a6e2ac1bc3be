//! Floods of HTTP/2 frames that carry no request: SETTINGS, PING, PRIORITY, WINDOW_UPDATE, empty DATA and
//! frames of unknown kinds. Each costs the client nothing, and the server work or an answer.
//!
//! The headers of frames are read as they come. Such frames spend a budget, which time, requests and
//! answers fill: a client that reads a large answer sends many a WINDOW_UPDATE.

use tokio::time::Instant;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADER_BYTES: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;

/// What a client may send at once.
const BURST: u32 = 1_000;
/// What further frames a second may be.
const PER_SECOND: u32 = 100;
/// What a request may be surrounded by: priorities, windows, an end.
const PER_REQUEST: u32 = 8;
/// What a piece of an answer may be followed by, beside one frame for every KiB.
const PER_PIECE: u32 = 4;
/// The most that is kept for later.
const KEPT_MAX: u32 = 10_000;

/// Follows the frames that a client sends.
#[derive(Debug)]
pub(super) struct FrameScanner {
    state: ScannerState,
    /// The start of a frame's header.
    header: [u8; HEADER_BYTES],
}

#[derive(Clone, Copy, Debug)]
enum ScannerState {
    /// The number of bytes of the preface that have come.
    Preface(usize),
    /// The number of bytes of a frame's header that have come.
    Header(usize),
    /// The number of bytes of a frame that are still to come.
    Payload(usize),
    NotHttp2,
}

/// The frames that came with some bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FrameCounts {
    requests: u32,
    idle: u32,
}

impl Default for FrameScanner {
    fn default() -> Self {
        Self { state: ScannerState::Preface(0), header: [0; HEADER_BYTES] }
    }
}

impl FrameScanner {
    /// Takes the bytes that came next.
    pub(super) fn scan(&mut self, mut bytes: &[u8]) -> FrameCounts {
        let mut counts = FrameCounts::default();
        while !bytes.is_empty() {
            let taken = match self.state {
                ScannerState::NotHttp2 => return counts,
                ScannerState::Preface(matched) => self.scan_preface(matched, bytes),
                ScannerState::Header(filled) => self.scan_header(filled, bytes, &mut counts),
                ScannerState::Payload(left) => {
                    let taken = left.min(bytes.len());
                    self.expect_payload(left - taken);
                    taken
                }
            };
            bytes = bytes.get(taken..).unwrap_or_default();
        }
        counts
    }

    fn scan_preface(&mut self, matched: usize, bytes: &[u8]) -> usize {
        let expected = PREFACE.get(matched..).unwrap_or_default();
        let taken = expected.len().min(bytes.len());
        self.state = match expected.get(..taken) == bytes.get(..taken) {
            false => ScannerState::NotHttp2,
            true if taken == expected.len() => ScannerState::Header(0),
            true => ScannerState::Preface(matched + taken),
        };
        taken
    }

    fn scan_header(&mut self, filled: usize, bytes: &[u8], counts: &mut FrameCounts) -> usize {
        let free = self.header.get_mut(filled..).unwrap_or_default();
        let taken = free.len().min(bytes.len());
        for (to, from) in free.iter_mut().zip(bytes) {
            *to = *from;
        }
        self.state = ScannerState::Header(filled + taken);
        if filled + taken == HEADER_BYTES {
            let [a, b, c, kind, flags, ..] = self.header;
            let length = u32::from_be_bytes([0, a, b, c]);
            counts.count(kind, flags, length);
            self.expect_payload(usize::try_from(length).unwrap_or(usize::MAX));
        }
        taken
    }

    fn expect_payload(&mut self, left: usize) {
        self.state = if left == 0 { ScannerState::Header(0) } else { ScannerState::Payload(left) };
    }
}

impl FrameCounts {
    fn count(&mut self, kind: u8, flags: u8, length: u32) {
        match kind {
            HEADERS => self.requests += 1,
            // The protocol's implementation bounds these two itself.
            RST_STREAM | CONTINUATION => {}
            DATA if length > 0 || flags & END_STREAM != 0 => {}
            _ => self.idle += 1,
        }
    }
}

/// The frames without a request that a client may still send.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameBudget {
    left: u32,
    since: Instant,
}

impl FrameBudget {
    pub(super) fn new(now: Instant) -> Self {
        Self { left: BURST, since: now }
    }

    /// A piece of an answer is on its way to the client, who may grant room for more.
    pub(super) fn add_piece(&mut self, bytes: usize) {
        let frames = u32::try_from(bytes / 1024).unwrap_or(u32::MAX);
        self.add(frames.saturating_add(PER_PIECE));
    }

    /// False if the client has sent too many.
    pub(super) fn spend(&mut self, counts: FrameCounts, now: impl FnOnce() -> Instant) -> bool {
        self.add(counts.requests.saturating_mul(PER_REQUEST));
        if counts.idle > self.left {
            self.refill(now());
        }
        let is_within = counts.idle <= self.left;
        self.left = self.left.saturating_sub(counts.idle);
        is_within
    }

    fn refill(&mut self, now: Instant) {
        let passed_ms = now.duration_since(self.since).as_millis();
        let earned = passed_ms.saturating_mul(u128::from(PER_SECOND)) / 1_000;
        self.since = now;
        // What is left of the burst is not more than the burst.
        let earned = u32::try_from(earned).unwrap_or(u32::MAX).min(BURST);
        self.add(earned);
    }

    fn add(&mut self, frames: u32) {
        self.left = self.left.saturating_add(frames).min(KEPT_MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use proptest::prelude::*;

    const SETTINGS: u8 = 4;
    const PING: u8 = 6;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let [_, a, b, c] = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[a, b, c, kind, flags, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn frames_without_a_request_are_counted_and_those_of_requests_are_not() {
        let idle = [frame(2, 0, &[0; 5]), frame(SETTINGS, 0, &[]), frame(PING, 0, &[0; 8])];
        let idle = idle.into_iter().chain([
            frame(8, 0, &[0; 4]),
            frame(16, 0, b"u=1"),
            frame(DATA, 0, &[]),
        ]);
        let busy = [frame(HEADERS, 5, &[0; 30]), frame(DATA, 0, &[9; 300]), frame(DATA, 1, &[])];
        let bytes = idle.chain(busy).fold(PREFACE.to_vec(), |all, one| [all, one].concat());
        let counts = FrameScanner::default().scan(&bytes);
        assert_eq!(counts, FrameCounts { requests: 1, idle: 6 });
    }

    #[test]
    fn http_1_has_no_frames() {
        let mut scanner = FrameScanner::default();
        for bytes in [&b"P"[..], b"OST / HTTP/1.1\r\n\r\n", &[0; 900]] {
            assert_eq!(scanner.scan(bytes), FrameCounts::default());
        }
    }

    #[test]
    fn a_flood_is_over_the_budget_and_a_client_that_reads_is_not() {
        let now = Instant::now();
        let idle = |idle| FrameCounts { idle, requests: 0 };
        let mut flood = FrameBudget::new(now);
        assert!(flood.spend(idle(BURST), || now));
        assert!(!flood.spend(idle(1), || now));
        assert!(flood.spend(idle(PER_SECOND), || now + Duration::from_secs(1)));

        let mut reader = FrameBudget::new(now);
        for _ in 0..10_000 {
            reader.add_piece(16 * 1024);
            assert!(reader.spend(idle(16), || now));
        }
        let mut caller = FrameBudget::new(now);
        let call = FrameCounts { idle: 4, requests: 1 };
        assert!((0..10_000).all(|_| caller.spend(call, || now)));
        let mut quiet = FrameBudget::new(now);
        assert!(
            (0..10_000).all(|second| quiet.spend(idle(50), || now + Duration::from_secs(second)))
        );
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_the_bytes_arrive(
            kinds in prop::collection::vec((0u8..20, 0usize..40), 1..20),
            size in 1usize..30,
        ) {
            let frames = kinds.iter().flat_map(|(kind, length)| frame(*kind, 0, &vec![4; *length]));
            let bytes: Vec<u8> = PREFACE.iter().copied().chain(frames).collect();
            let (mut scanner, mut sum) = (FrameScanner::default(), FrameCounts::default());
            for piece in bytes.chunks(size) {
                let FrameCounts { requests, idle } = scanner.scan(piece);
                sum.requests += requests;
                sum.idle += idle;
            }
            prop_assert_eq!(sum, FrameScanner::default().scan(&bytes));
        }
    }
}
