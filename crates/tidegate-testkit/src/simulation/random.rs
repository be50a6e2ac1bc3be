//! Random numbers that a seed repeats.

/// A stream of numbers that is the same for the same seed (`splitmix64`).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below this one, or zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }

    /// An index into something of this length.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or(0)
    }

    /// A number from `-bound` to `bound`.
    pub fn around_zero(&mut self, bound: u32) -> i64 {
        let drawn = self.below(2 * u64::from(bound) + 1);
        i64::try_from(drawn).unwrap_or(0) - i64::from(bound)
    }

    /// True `times` in a thousand times.
    pub fn per_mille(&mut self, chance: u64) -> bool {
        self.below(1_000) < chance
    }
}
