//! Looking for many keys at once, so that their memory comes together.
//!
//! Each step is done for all keys before the next, and asks for what the next will need: the segments of
//! all keys, then the lines in which they most likely stand, and where one does not stand there, those
//! behind.

use arrayvec::ArrayVec;

use super::{Extent, Table};
use crate::key::Key;
use crate::prefetch::prefetch;
use crate::store::memory::cell::Cell;
use crate::store::memory::segment::{Found, Home, Segment, hash_of};

/// How many keys are on their way from memory at once.
pub(in super::super) const AT_ONCE: usize = 64;

/// Something for each of them.
pub(in super::super) type Several<T> = ArrayVec<T, AT_ONCE>;

/// A key and its segment.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Start<'t> {
    pub(in super::super) key: Key,
    segment: Option<&'t Segment>,
}

/// A segment, the number it had, and where a key of it stands if nobody else does.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Way<'t> {
    pub(in super::super) segment: &'t Segment,
    pub(in super::super) version: u32,
    home: Home<'t>,
}

impl Table {
    /// Asks for the segment of a key.
    #[inline(always)]
    pub(in super::super) fn start(&self, extent: Extent, key: Key) -> Start<'_> {
        let segment = self.segment_within(extent, hash_of(key)).map(|(_, segment)| segment);
        segment.map(prefetch);
        Start { key, segment }
    }

    /// The ways to some keys, at whose ends memory is on its way. All are found before the first is asked
    /// for: then the pages of memory that they are in are looked up side by side.
    #[inline(always)]
    pub(in super::super) fn ways<'t>(
        &'t self,
        starts: &[Start<'t>],
        ways: &mut Several<Option<Way<'t>>>,
    ) {
        ways.extend(starts.iter().map(|start| self.way(start)));
        ways.iter().flatten().for_each(|way| way.home.prefetch());
    }

    #[inline(always)]
    fn way<'t>(&'t self, start: &Start<'t>) -> Option<Way<'t>> {
        let segment = start.segment?;
        let version = segment.version();
        Some(Way { segment, version, home: segment.home(&self.pages, hash_of(start.key))? })
    }

    /// The slot of a key, if it is at the end of its way. Else asks for what is behind.
    #[inline(always)]
    pub(in super::super) fn cell_at<'t>(&'t self, way: &Way<'t>, key: Key) -> Option<Cell<'t>> {
        let cell = way.home.cell_of(key);
        if cell.is_none() {
            way.segment.prefetch_behind(&self.pages, hash_of(key));
        }
        cell
    }

    /// Looks for a key that is not at the end of its way. If it is not behind, it may be in another
    /// segment, which has been split off.
    pub(in super::super) fn find_behind<'t>(
        &'t self,
        way: &Way<'t>,
        key: Key,
    ) -> Option<Found<'t>> {
        way.segment.find_behind(&self.pages, key, hash_of(key))
    }
}
