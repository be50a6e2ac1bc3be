//! The lock of a segment: a version number that is odd while a writer holds the segment.
//!
//! Readers take no lock. They note the version, read, and compare the version again.

use crate::sync::{AtomicU32, Ordering, fence, wait};

/// A version that changes whenever its segment does.
#[derive(Debug, Default)]
pub(super) struct SeqLock(AtomicU32);

impl SeqLock {
    /// The version to validate against after reading. Waits while a writer holds the lock.
    #[inline]
    pub(super) fn read(&self) -> u32 {
        let mut spins = 0;
        loop {
            let version = self.0.load(Ordering::Acquire);
            if version.is_multiple_of(2) {
                return version;
            }
            wait(&mut spins);
        }
    }

    /// True if nothing has changed since `version` was read, so that every read in between is valid.
    #[inline]
    pub(super) fn is_unchanged(&self, version: u32) -> bool {
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == version
    }

    /// True if the version is unchanged. SeqCst: a later writer observes the slot lock that the caller has just
    /// taken.
    #[inline]
    pub(super) fn is_unchanged_after_slot_lock(&self, version: u32) -> bool {
        self.0.load(Ordering::SeqCst) == version
    }

    /// Takes the lock if nothing has changed since `version` was read.
    #[inline]
    pub(super) fn try_lock_from(&self, version: u32) -> bool {
        let locked = version.wrapping_add(1);
        let is_locked =
            self.0.compare_exchange(version, locked, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        // No write of the new holder becomes visible before the odd version does.
        fence(Ordering::Release);
        is_locked
    }

    /// Takes the lock if nobody holds it; returns the version from before.
    #[inline]
    pub(super) fn try_lock(&self) -> Option<u32> {
        let version = self.0.load(Ordering::Acquire);
        (version.is_multiple_of(2) && self.try_lock_from(version)).then_some(version)
    }

    /// Gives back the lock that was taken from this version.
    #[inline]
    pub(super) fn unlock(&self, version: u32) {
        self.0.store(version.wrapping_add(2), Ordering::Release);
    }
}
