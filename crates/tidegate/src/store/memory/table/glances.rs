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
pub(crate) const AT_ONCE: usize = 32;

/// Something for each of them.
pub(in super::super) type Several<T> = ArrayVec<T, AT_ONCE>;

/// A segment, the number it had, and where a key of it stands if nobody else does.
type Place<'t> = (&'t Segment, u32, Home<'t>);

impl Table {
    /// Looks for some keys without holding anything, as [`glance`](Self::glance) does for one.
    #[inline(always)]
    pub(in super::super) fn glance_all<'t>(
        &'t self,
        keys: &[Key],
        glances: &mut Several<Glance<'t>>,
    ) {
        let keys = keys.get(..AT_ONCE).unwrap_or(keys);
        let mut segments = Several::new();
        segments.extend(keys.iter().map(|key| self.segment_of(hash_of(*key))));
        let touch = |of: &Option<(usize, &Segment)>| of.map_or(0, |(_, segment)| segment.touch());
        black_box(segments.iter().fold(0, |read, of| read ^ touch(of)));

        let mut places = Several::new();
        places.extend(keys.iter().zip(&segments).map(|(key, of)| self.place(*key, *of)));
        let touch = |of: &Option<Place<'_>>, line| of.map_or(0, |(.., home)| home.touch(line));
        black_box(places.iter().fold(0, |read, of| read ^ touch(of, 0)));

        glances.extend(keys.iter().zip(&places).map(|(key, of)| match *of {
            Some((segment, version, home)) => Glance { segment, version, found: home.find(*key) },
            None => self.glance(*key),
        }));

        let lacks = |glance: &Glance<'_>| glance.found.is_none();
        let lacking = places.iter().zip(&*glances).filter(|(_, glance)| lacks(glance));
        black_box(lacking.fold(0, |read, (of, _)| read ^ touch(of, 2)));
        for (key, (of, glance)) in keys.iter().zip(places.iter().zip(glances)) {
            if let Some((segment, _, home)) = *of
                && lacks(glance)
            {
                glance.found = segment.find_behind(home, &self.pages, *key);
            }
        }
    }

    #[inline(always)]
    fn place<'t>(&'t self, key: Key, of: Option<(usize, &'t Segment)>) -> Option<Place<'t>> {
        let ((number, segment), hash) = (of?, hash_of(key));
        let version = segment.version();
        let home = segment.home(&self.pages, hash)?;
        segment.owns(number, hash).then_some((segment, version, home))
    }
}
