//! A short list with one entry for each level of a request.

use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;

/// How many entries need no heap. A plan is moved about, so that it has no room for the rare request that
/// meets more limits.
const INLINE: usize = 6;

/// One entry for each level of a request, at most [`LEVELS_MAX`](super::LEVELS_MAX) of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerLevel<T>(SmallVec<[T; INLINE]>);

impl<T> PerLevel<T> {
    /// An empty list.
    #[must_use]
    #[inline(always)]
    pub fn new() -> Self {
        Self(SmallVec::new())
    }

    /// An empty list with room for this many entries.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self(SmallVec::with_capacity(capacity))
    }

    /// Appends an entry.
    pub fn push(&mut self, entry: T) {
        self.0.push(entry);
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl<T> Default for PerLevel<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Deref for PerLevel<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for PerLevel<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T> FromIterator<T> for PerLevel<T> {
    #[inline(always)]
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Self {
        Self(entries.into_iter().collect())
    }
}

impl<T> Extend<T> for PerLevel<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, entries: I) {
        self.0.extend(entries);
    }
}

impl<'a, T> IntoIterator for &'a PerLevel<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T> IntoIterator for &'a mut PerLevel<T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<T> IntoIterator for PerLevel<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;

    fn into_iter(self) -> IntoIter<T> {
        IntoIter(self.0.into_iter())
    }
}

/// The entries of a list, one after the other.
#[derive(Debug)]
pub struct IntoIter<T>(smallvec::IntoIter<[T; INLINE]>);

impl<T> Iterator for IntoIter<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<T> ExactSizeIterator for IntoIter<T> {}
