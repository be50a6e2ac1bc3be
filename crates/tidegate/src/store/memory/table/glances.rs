//! Looking for many keys at once, so that their memory comes together.
//!
//! Each step is done for all keys before the next, and asks for what the next will need: the lines in
//! which they most likely stand, and where one does not stand there, those behind.

use arrayvec::ArrayVec;

use super::{Extent, Table};
use crate::key::Key;
use crate::store::memory::cell::Cell;
use crate::store::memory::segment::{Home, Segment, hash_of};

/// How many keys are on their way from memory at once.
pub(in super::super) const AT_ONCE: usize = 64;

/// Something for each of them.
pub(in super::super) type Several<T> = ArrayVec<T, AT_ONCE>;

/// A key, and what stands for it in a table.
pub(in super::super) type Hashed = (Key, u64);

/// Where a key stands if nobody else does, in which segment, and the number that this had.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Way<'t> {
    pub(in super::super) segment: &'t Segment,
    pub(in super::super) version: u32,
    home: Home<'t>,
}

impl Table {
    /// Asks for where some keys most likely stand, no more than [`AT_ONCE`].
    ///
    /// Each is asked for when the next is hashed: neither waits for the other, so that both are worked out
    /// at once, and the memory of the first is on its way long before it is needed.
    #[inline(always)]
    pub(in super::super) fn ways<'t>(
        &'t self,
        keys: impl Iterator<Item = Key>,
        hashed: &mut Several<Hashed>,
        ways: &mut Several<Option<Way<'t>>>,
    ) {
        let (extent, mut last) = (self.extent(), None);
        for key in keys {
            let hash = hash_of(key);
            hashed.push((key, hash));
            if let Some(last) = last.replace(hash) {
                ways.push(self.way(extent, last));
            }
        }
        ways.extend(last.map(|last| self.way(extent, last)));
    }

    #[inline(always)]
    fn way(&self, extent: Extent, hash: u64) -> Option<Way<'_>> {
        let (_, segment) = self.segment_within(extent, hash)?;
        let version = segment.version();
        let home = segment.home(&self.pages, hash)?;
        home.prefetch();
        Some(Way { segment, version, home })
    }

    /// The slot of a key, if it is at the end of its way. Else asks for what is behind.
    #[inline(always)]
    pub(in super::super) fn cell_at<'t>(
        &'t self,
        way: &Way<'t>,
        (key, hash): Hashed,
    ) -> Option<Cell<'t>> {
        let cell = way.home.cell_of(key);
        if cell.is_none() {
            way.segment.prefetch_behind(&self.pages, hash);
        }
        cell
    }

    /// The slot of a key that is not at the end of its way. If it is not behind, it may be in another
    /// segment, which has been split off.
    pub(in super::super) fn cell_behind<'t>(
        &'t self,
        way: &Way<'t>,
        (key, hash): Hashed,
    ) -> Option<Cell<'t>> {
        way.segment.cell_behind(&self.pages, key, hash)
    }
}
