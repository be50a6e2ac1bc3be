//! Looking for many keys at once, so that their memory comes together.
//!
//! A processor goes on to the next key while one is on its way, as long as nothing depends on it: no
//! branch, and no charge, behind which everything waits. So each step is done for all keys before the
//! next, and what depends on a line comes after all lines have been asked for.

use std::hint::black_box;

use arrayvec::ArrayVec;

use super::{Glance, Table};
use crate::key::Key;
use crate::store::memory::segment::{Home, Segment, hash_of};

/// How many keys are on their way from memory at once.
pub(crate) const AT_ONCE: usize = 16;

/// Something for each of them.
pub(in super::super) type Several<T> = ArrayVec<T, AT_ONCE>;

/// A segment, the number it had, and where a key of it stands if nobody else does.
#[derive(Debug)]
pub(in super::super) struct Way<'t> {
    segment: &'t Segment,
    version: u32,
    home: Home<'t>,
}

impl Table {
    /// The ways to some keys, at whose ends memory is on its way.
    #[inline(always)]
    pub(in super::super) fn ways(&self, keys: &[Key]) -> Several<Option<Way<'_>>> {
        let (keys, extent) = (keys.get(..AT_ONCE).unwrap_or(keys), self.extent());
        let mut ways = Several::new();
        ways.extend(keys.iter().map(|key| self.way(extent, hash_of(*key))));
        let touch = |way: &Option<Way<'_>>| way.as_ref().map_or(0, |way| way.home.touch());
        black_box(ways.iter().fold(0, |read, way| read ^ touch(way)));
        ways
    }

    #[inline(always)]
    fn way(&self, extent: (usize, usize), hash: u64) -> Option<Way<'_>> {
        let (_, segment) = self.segment_within(extent, hash)?;
        let version = segment.version();
        Some(Way { segment, version, home: segment.home(&self.pages, hash)? })
    }

    /// Looks for a key at the end of its way without holding anything. If it is not there, it may be in
    /// another segment, which has been split off.
    #[inline(always)]
    pub(in super::super) fn glance_at<'t>(&'t self, way: &Way<'t>, key: Key) -> Glance<'t> {
        let Way { segment, version, home } = *way;
        Glance { segment, version, found: segment.find_touched(home, &self.pages, key) }
    }
}
