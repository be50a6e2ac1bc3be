//! What all kinds of `SipHash` have in common. They differ in how often they go round, and in how they
//! take what they hash: keys of limits piece by piece (`key/sip.rs`), texts as a whole
//! (`keyed/hasher.rs`). Both are compared with the crate's by a test.

/// Where a hash stands.
pub(crate) type Lanes = [u64; 4];

/// Where it begins.
pub(crate) fn begin(secret: &[u8; 16]) -> Lanes {
    let (low, high) = halves(u128::from_le_bytes(*secret));
    [
        low ^ 0x736f_6d65_7073_6575,
        high ^ 0x646f_7261_6e64_6f6d,
        low ^ 0x6c79_6765_6e65_7261,
        high ^ 0x7465_6462_7974_6573,
    ]
}

/// Takes in a word, in so many rounds.
#[inline(always)]
pub(crate) fn absorb<const ROUNDS: usize>(lanes: &mut Lanes, word: u64) {
    lanes[3] ^= word;
    go_round::<ROUNDS>(lanes);
    lanes[0] ^= word;
}

#[inline(always)]
pub(crate) fn go_round<const TIMES: usize>(lanes: &mut Lanes) {
    for _ in 0..TIMES {
        let [mut a, mut b, mut c, mut d] = *lanes;
        a = a.wrapping_add(b);
        c = c.wrapping_add(d);
        b = b.rotate_left(13) ^ a;
        d = d.rotate_left(16) ^ c;
        a = a.rotate_left(32).wrapping_add(d);
        c = c.wrapping_add(b);
        b = b.rotate_left(17) ^ c;
        d = d.rotate_left(21) ^ a;
        *lanes = [a, b, c.rotate_left(32), d];
    }
}

/// What it comes to.
#[inline(always)]
pub(crate) fn folded([a, b, c, d]: &Lanes) -> u64 {
    a ^ b ^ c ^ d
}

/// The low and the high half.
#[allow(clippy::cast_possible_truncation, reason = "the halves of a number")]
pub(crate) const fn halves(whole: u128) -> (u64, u64) {
    (whole as u64, (whole >> 64) as u64)
}
