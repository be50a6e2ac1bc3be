//! Looking for keys in steps, so that something else is done while their memory is on its way.
//!
//! Where there are many, each step asks for what the next will need, and is done for several keys before
//! the next is: their segments, the lines in which they most likely stand, and where one does not stand
//! there, those behind.

use arrayvec::ArrayVec;

use super::{Extent, Glance, Table};
use crate::key::Key;
use crate::prefetch::prefetch;
use crate::store::memory::cell::Cell;
use crate::store::memory::segment::{Found, Home, Segment, hash_of};

/// How many keys are on their way from memory at once.
pub(in super::super) const AT_ONCE: usize = 64;

/// Keys that are looked for at once.
pub(in super::super) type Several<'t> = ArrayVec<Sought<'t>, AT_ONCE>;

/// How many keys are hashed while the segment of one before them is on its way.
const AHEAD: usize = 4;

/// A key that is looked for, and how far that is.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Sought<'t> {
    pub(in super::super) key: Key,
    pub(in super::super) segment: &'t Segment,
    /// The number that its segment had before it was looked for.
    pub(in super::super) version: u32,
    /// Where it most likely stands.
    home: Home<'t>,
    /// A slot there that names it, which may be empty by now.
    pub(in super::super) cell: Option<Cell<'t>>,
}

impl<'t> Sought<'t> {
    /// Asks for its segment.
    #[inline(always)]
    fn new(table: &'t Table, extent: Extent, key: Key) -> Self {
        let segment = match table.segment_within(extent, hash_of(key)) {
            Some((_, segment)) => segment,
            None => table.nobodys(),
        };
        prefetch(segment);
        Self { key, segment, version: 0, home: Home::nowhere(&table.nowhere), cell: None }
    }

    /// Asks for where it most likely stands.
    #[inline(always)]
    fn ask(&mut self, table: &'t Table) {
        let segment = self.segment;
        self.version = segment.version();
        if let Some(home) = segment.home(&table.pages, hash_of(self.key)) {
            home.prefetch();
            self.home = home;
        }
    }

    /// Looks for it there, and else asks for what is behind.
    #[inline(always)]
    pub(in super::super) fn look(&mut self, table: &Table) {
        self.cell = self.home.cell_of(self.key);
        if self.cell.is_none() {
            self.segment.prefetch_behind(&table.pages, hash_of(self.key));
        }
    }
}

/// Where a key most likely stands.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Whereabouts<'t> {
    segment: &'t Segment,
    /// The number that the segment had before it was looked at.
    version: u32,
    home: Home<'t>,
}

impl<'t> Whereabouts<'t> {
    /// What is seen of the key there; `None` where it is not, and may be elsewhere. The segment need not be
    /// its own any more: then the slots that name it there are empty, or the segment has another number.
    #[inline(always)]
    pub(in super::super) fn glance(self, key: Key) -> Option<Glance<'t>> {
        let Self { segment, version, home } = self;
        let cell = home.cell_of(key)?;
        let found = Found { cell, words: cell.words() };
        (!found.words.is_empty()).then_some(Glance { segment, version, found: Some(found) })
    }
}

impl Table {
    #[cold]
    fn nobodys(&self) -> &Segment {
        &self.nobodys
    }

    /// Asks for where a key most likely stands.
    #[inline(always)]
    pub(in super::super) fn ask_for(&self, key: Key) -> Option<Whereabouts<'_>> {
        let hash = hash_of(key);
        let (_, segment) = self.segment_of(hash)?;
        let (version, home) = (segment.version(), segment.home(&self.pages, hash)?);
        home.prefetch();
        Some(Whereabouts { segment, version, home })
    }

    /// Asks for where some keys most likely stand, no more than [`AT_ONCE`].
    ///
    /// Each is asked for a few keys later, when its segment has come: as fast as keys are hashed and no
    /// faster, since a processor does not have so much on its way at once.
    #[inline(always)]
    pub(in super::super) fn seek<'t>(
        &'t self,
        keys: impl Iterator<Item = Key>,
        sought: &mut Several<'t>,
    ) {
        let extent = self.extent();
        for key in keys {
            sought.push(Sought::new(self, extent, key));
            if let Some(due) = (sought.len() - 1).checked_sub(AHEAD) {
                sought[due].ask(self);
            }
        }
        let asked = sought.len().saturating_sub(AHEAD);
        sought[asked..].iter_mut().for_each(|due| due.ask(self));
    }
}
