//! The order of keys, the same for all sides.

use std::fmt::Write as _;

/// How many keys there are.
pub const KEYS: usize = 1_000_000;
/// The length of an order, after which it begins again.
const TURNS: usize = 1 << 20;

/// Keys, and copies of them in the order of the checks: the text of the next key is in the cache.
pub struct Population {
    keys: Vec<String>,
    turns: Vec<String>,
}

impl Population {
    /// Each key as likely as any other.
    #[must_use]
    pub fn uniform() -> Self {
        let mut chance = Chance(1);
        Self::with(|| chance.below(KEYS as u64))
    }

    /// The second key half as likely as the first, the third a third.
    #[must_use]
    pub fn zipf() -> Self {
        let mut sum = 0.0;
        let sums: Vec<f64> = (1..=KEYS)
            .map(|rank| {
                sum += 1.0 / rank as f64;
                sum
            })
            .collect();
        let mut chance = Chance(2);
        Self::with(|| {
            let drawn = chance.below(1 << 52) as f64 / (1_u64 << 52) as f64 * sum;
            // Frequent keys are not neighbours in memory.
            let rank = sums.partition_point(|upto| *upto < drawn).min(KEYS - 1) as u64;
            rank * 7_919 % KEYS as u64
        })
    }

    /// One key alone.
    #[must_use]
    pub fn one() -> Self {
        Self::with(|| 0)
    }

    fn with(mut draw: impl FnMut() -> u64) -> Self {
        let keys = (0..KEYS as u64).map(key).collect();
        Self { keys, turns: (0..TURNS).map(|_| key(draw())).collect() }
    }

    /// The key whose turn it is.
    #[inline]
    #[must_use]
    pub fn key(&self, turn: usize) -> &String {
        &self.turns[turn % TURNS]
    }

    /// All keys once, whatever their order.
    #[must_use]
    pub fn each(&self) -> &[String] {
        &self.keys
    }
}

/// A key of 25 bytes.
#[must_use]
pub fn key(number: u64) -> String {
    let mut text = String::new();
    write_key(number, &mut text);
    text
}

/// Writes a key over another.
pub fn write_key(number: u64, text: &mut String) {
    text.clear();
    write!(text, "user-{number:020}").unwrap();
}

/// Pseudo-random numbers (xorshift), the same in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}
