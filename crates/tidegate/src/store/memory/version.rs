//! The number of a segment, which is its lock: odd while somebody holds it.

use crate::sync::{AtomicU32, Ordering, fence, wait};

/// Changes whenever the segment does.
#[derive(Debug, Default)]
pub(super) struct Version(AtomicU32);

impl Version {
    /// The number to compare with when all is read. Waits while somebody writes.
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

    /// The number, whatever it is.
    #[inline]
    pub(super) fn peek(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Whether everything that was read since is true.
    #[inline]
    pub(super) fn is_still(&self, version: u32) -> bool {
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == version
    }

    /// Whether whoever holds the segment from now on will see what was written before.
    #[inline]
    pub(super) fn is_yet(&self, version: u32) -> bool {
        self.0.load(Ordering::SeqCst) == version
    }

    /// Takes the lock if nothing has changed since.
    #[inline]
    pub(super) fn hold_from(&self, version: u32) -> bool {
        let held = version.wrapping_add(1);
        let exchanged =
            self.0.compare_exchange(version, held, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        // What is written from here on is not seen before the number is odd.
        fence(Ordering::Release);
        exchanged
    }

    /// Gives the lock back that was taken from this number.
    #[inline]
    pub(super) fn let_go(&self, version: u32) {
        self.0.store(version.wrapping_add(2), Ordering::Release);
    }
}
