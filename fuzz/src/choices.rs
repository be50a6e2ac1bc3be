//! Bytes as a series of choices, so that any engine that makes bytes can make inputs.

/// Choices from a byte string. At its end every choice is the first one.
#[derive(Clone, Debug)]
pub struct Choices<'b> {
    bytes: &'b [u8],
}

impl<'b> Choices<'b> {
    /// The choices of these bytes.
    #[must_use]
    pub const fn new(bytes: &'b [u8]) -> Self {
        Self { bytes }
    }

    /// Whether all bytes are used up.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        *first
    }

    /// A number below `end`; 0 if there is none.
    pub fn below(&mut self, end: usize) -> usize {
        let number = if end <= 256 {
            usize::from(self.byte())
        } else {
            usize::from(u16::from_le_bytes([self.byte(), self.byte()]))
        };
        number.checked_rem(end).unwrap_or(0)
    }

    /// A number of any size, small ones and the edges more often than others.
    pub fn number(&mut self) -> u64 {
        match self.byte() % 8 {
            0..=4 => u64::from(self.byte()),
            5 => u64::from(u16::from_le_bytes([self.byte(), self.byte()])),
            6 => 1_u64.checked_shl(u32::from(self.byte())).unwrap_or(u64::MAX).wrapping_sub(1),
            _ => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    /// Yes or no.
    pub fn flag(&mut self) -> bool {
        self.byte() % 2 == 1
    }

    /// One of some things; `None` if there are none.
    pub fn pick<'t, T>(&mut self, things: &'t [T]) -> Option<&'t T> {
        things.get(self.below(things.len()))
    }

    /// One of some words; empty if there are none.
    pub fn word<'w>(&mut self, words: &[&'w str]) -> &'w str {
        self.pick(words).copied().unwrap_or_default()
    }

    /// A text of words put side by side, with a letter of any kind now and then.
    pub fn text(&mut self, words: &[&str], pieces_max: usize) -> String {
        let pieces = self.below(pieces_max + 1);
        let mut text = String::new();
        for _ in 0..pieces {
            match self.byte() {
                0..=15 => text.push(self.letter()),
                _ => text.push_str(self.word(words)),
            }
        }
        text
    }

    /// Any letter, most often an ASCII one.
    pub fn letter(&mut self) -> char {
        let odd = ['\u{feff}', '\u{85}', '\u{2028}', '\u{a0}', 'é', 'ß', '٣', '😀', '\u{10ffff}'];
        match self.byte() {
            byte @ 0..=127 => char::from(byte),
            _ => self.pick(&odd).copied().unwrap_or_default(),
        }
    }

    /// All bytes that are left, as text.
    #[must_use]
    pub fn rest(self) -> String {
        String::from_utf8_lossy(self.bytes).into_owned()
    }
}
