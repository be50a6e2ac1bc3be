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

/// Keys that are looked for at once.
pub(in super::super) type Several<'t> = ArrayVec<Sought<'t>, AT_ONCE>;

/// A key that is looked for, and how far that is.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Sought<'t> {
    pub(in super::super) key: Key,
    hash: u64,
    /// Its segment, and the number that this had.
    pub(in super::super) segment: Option<(&'t Segment, u32)>,
    /// Where it stands if nobody else does.
    home: Option<Home<'t>>,
    cell: Option<Cell<'t>>,
}

impl<'t> Sought<'t> {
    #[inline(always)]
    fn new(key: Key) -> Self {
        Self { key, hash: hash_of(key), segment: None, home: None, cell: None }
    }

    /// Asks for where it most likely stands.
    #[inline(always)]
    fn ask(&mut self, table: &'t Table, extent: Extent) {
        let Some((_, segment)) = table.segment_within(extent, self.hash) else { return };
        self.segment = Some((segment, segment.version()));
        self.home = segment.home(&table.pages, self.hash);
        if let Some(home) = self.home {
            home.prefetch();
        }
    }

    /// Looks for it there, and else asks for what is behind.
    #[inline(always)]
    pub(in super::super) fn look(&mut self, table: &Table) {
        self.cell = self.home.and_then(|home| home.cell_of(self.key));
        if let (None, Some((segment, _))) = (self.cell, self.segment) {
            segment.prefetch_behind(&table.pages, self.hash);
        }
    }

    /// Its slot. If it is not behind either, it may be in another segment, which has been split off.
    #[inline(always)]
    pub(in super::super) fn cell(&self, table: &'t Table) -> Option<Cell<'t>> {
        let behind = || self.segment?.0.cell_behind(&table.pages, self.key, self.hash);
        self.cell.or_else(behind)
    }
}

impl Table {
    /// Asks for where some keys most likely stand, no more than [`AT_ONCE`].
    ///
    /// Each is asked for when the next is hashed: neither waits for the other, so that both are worked out
    /// at once, and the memory of the first is on its way long before it is needed.
    #[inline(always)]
    pub(in super::super) fn seek<'t>(
        &'t self,
        keys: impl Iterator<Item = Key>,
        sought: &mut Several<'t>,
    ) {
        let extent = self.extent();
        for key in keys {
            sought.push(Sought::new(key));
            if let [.., last, _] = &mut sought[..] {
                last.ask(self, extent);
            }
        }
        if let Some(last) = sought.last_mut() {
            last.ask(self, extent);
        }
    }
}
