//! Reads numbers from a reply, whatever it holds, and never beyond its end.

/// What is left of a reply.
pub(crate) struct Reader<'r> {
    left: &'r [u8],
}

impl<'r> Reader<'r> {
    pub(crate) const fn new(reply: &'r [u8]) -> Self {
        Self { left: reply }
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (byte, left) = self.left.split_first()?;
        self.left = left;
        Some(*byte)
    }

    pub(crate) fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        u64::try_from(self.signed()?).ok()
    }

    /// A number of `bytes` bytes, at most eight.
    pub(crate) fn short(&mut self, bytes: usize) -> Option<u64> {
        let mut whole = [0; 8];
        whole.get_mut(..bytes)?.copy_from_slice(self.bytes(bytes)?);
        Some(u64::from_le_bytes(whole))
    }

    /// The next bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'r [u8]> {
        let (bytes, left) = self.left.split_at_checked(count)?;
        self.left = left;
        Some(bytes)
    }

    /// A number, or −1 for none.
    pub(crate) fn optional(&mut self) -> Option<Option<u64>> {
        match self.signed()? {
            -1 => Some(None),
            number => Some(Some(u64::try_from(number).ok()?)),
        }
    }

    /// The rest as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(self.left).into_owned()
    }

    pub(crate) const fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    fn signed(&mut self) -> Option<i64> {
        let (number, left) = self.left.split_first_chunk()?;
        self.left = left;
        Some(i64::from_le_bytes(*number))
    }
}
