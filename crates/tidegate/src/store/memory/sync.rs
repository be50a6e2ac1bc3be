//! What the lock-free parts are made of. The test of their interleavings puts other atomics in its place.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// How often whoever waits looks again before it lets others run.
const SPINS: u32 = 128;

/// Waits for somebody who will soon be done.
#[cold]
pub(super) fn wait(spins: &mut u32) {
    *spins = spins.saturating_add(1);
    if *spins < SPINS {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}
