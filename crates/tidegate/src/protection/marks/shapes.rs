//! Which kinds of bans there are at all, so that requests are looked at for those alone.

use std::net::IpAddr;
use std::sync::PoisonError;

use super::subject::{Shape, Subject};
use crate::sync::{AtomicU16, AtomicU64, Mutex, Ordering};

/// Of each shape there are bans in one policy, and in all.
const SCOPES: usize = 2;

/// How many bans there are of each shape.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    /// Those of which there is any, a bit each.
    used: AtomicU16,
    counts: Mutex<[usize; Shape::COUNT * SCOPES]>,
    /// Which lengths of prefixes bans of networks have had: a bit each, of IPv4 and of IPv6.
    v4_bits: AtomicU64,
    v6_bits: [AtomicU64; 3],
}

/// The shapes of which there are bans, and where these hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Used(u16);

impl Shapes {
    /// Counts a ban, in all policies or in one.
    pub(super) fn add(&self, subject: &Subject, everywhere: bool) {
        if let Some(net) = subject.as_network() {
            let (word, bit) = (usize::from(net.prefix_len() / 64), net.prefix_len() % 64);
            let bits = if net.addr().is_ipv4() { &self.v4_bits } else { &self.v6_bits[word] };
            bits.fetch_or(1 << bit, Ordering::AcqRel);
        }
        self.change(subject, everywhere, |count| *count += 1);
    }

    /// A ban is gone.
    pub(super) fn remove(&self, subject: &Subject, everywhere: bool) {
        self.change(subject, everywhere, |count| *count -= 1);
    }

    pub(super) fn used(&self) -> Used {
        Used(self.used.load(Ordering::Acquire))
    }

    /// The lengths of prefixes that bans of networks with such an address may have.
    pub(super) fn prefixes(&self, ip: IpAddr) -> impl Iterator<Item = u8> + use<> {
        let words = match ip {
            IpAddr::V4(_) => [self.v4_bits.load(Ordering::Acquire), 0, 0],
            IpAddr::V6(_) => [0, 1, 2].map(|word| self.v6_bits[word].load(Ordering::Acquire)),
        };
        [0, 64, 128].into_iter().zip(words).flat_map(|(first, word)| {
            // A word has 64 bits.
            bits(word).map(move |bit| first + u8::try_from(bit).unwrap_or(0))
        })
    }

    fn change(&self, subject: &Subject, everywhere: bool, change: impl FnOnce(&mut usize)) {
        let index = subject.shape() as usize * SCOPES + usize::from(everywhere);
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut counts[index]);
        // Under the lock, so that no other change comes between.
        match counts[index] {
            0 => self.used.fetch_and(!(1 << index), Ordering::AcqRel),
            _ => self.used.fetch_or(1 << index, Ordering::AcqRel),
        };
    }
}

impl Used {
    /// Whether there is no ban at all.
    pub(crate) const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether there is any ban of a shape.
    pub(crate) fn has(self, shape: Shape) -> bool {
        self.iter().any(|(used, _)| used == shape)
    }

    /// Each shape with where its bans hold: 0 in one policy, 1 in all.
    pub(crate) fn iter(self) -> impl Iterator<Item = (Shape, usize)> {
        bits(self.0.into()).map(|bit| (Shape::ALL[bit / SCOPES], bit % SCOPES))
    }
}

/// Which bits a word has.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = usize::try_from(word.trailing_zeros()).ok().filter(|_| word != 0)?;
        word &= word - 1;
        Some(bit)
    })
}
