//! The atomics and locks of the lock-free parts. Tests of interleavings replace them: loom's for single files, shuttle's
//! for the whole library.
//!
//! `OnceLock` and `ArcSwap` are not replaced: each of their operations is one step to shuttle. So an initialiser must
//! use nothing of this file, or two threads that run it wait for each other for ever under shuttle.

#[cfg(not(shuttle))]
mod own {
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, fence,
    };
    pub(crate) use std::sync::{Mutex, MutexGuard};

    /// Zeroed words. The operating system zeroes them on first use, so that the allocation takes no time.
    pub(crate) fn zeroed<const WORDS: usize>() -> Box<[AtomicU64; WORDS]> {
        bytemuck::zeroed_box()
    }

    /// How often a waiting thread spins before it yields.
    const SPINS: u32 = 128;

    /// Waits a moment for another thread that will soon be done.
    #[cold]
    pub(crate) fn wait(spins: &mut u32) {
        *spins = spins.saturating_add(1);
        if *spins < SPINS {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

#[cfg(shuttle)]
mod own {
    pub(crate) use shuttle::sync::atomic::{
        AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, fence,
    };
    pub(crate) use shuttle::sync::{Mutex, MutexGuard};

    /// Zeroed words.
    pub(crate) fn zeroed<const WORDS: usize>() -> Box<[AtomicU64; WORDS]> {
        let words: Box<[_]> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        words.try_into().unwrap_or_else(|_| unreachable!("there are as many"))
    }

    /// Lets other threads run.
    pub(crate) fn wait(_: &mut u32) {
        shuttle::thread::yield_now();
    }
}

pub(crate) use std::sync::atomic::Ordering;

pub(crate) use own::*;
