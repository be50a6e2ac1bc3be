//! What the lock-free parts are made of, and the locks that their writers hold. The tests of their
//! interleavings put others in their place: loom's, for single files, and shuttle's, for all of it. What is made
//! once (`OnceLock`) or replaced as a whole (`ArcSwap`) stays as it is, and is one step to shuttle: whatever makes it
//! must touch nothing of this file, or two who ask for it wait for ever there.

#[cfg(not(shuttle))]
mod own {
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, fence,
    };
    pub(crate) use std::sync::{Mutex, MutexGuard};

    /// Words of zero, which the machine makes as they are first used: that takes no time.
    pub(crate) fn zeroed<const WORDS: usize>() -> Box<[AtomicU64; WORDS]> {
        bytemuck::zeroed_box()
    }

    /// How often whoever waits looks again before it lets others run.
    const SPINS: u32 = 128;

    /// Waits for somebody who will soon be done.
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

    /// Words of zero.
    pub(crate) fn zeroed<const WORDS: usize>() -> Box<[AtomicU64; WORDS]> {
        let words: Box<[_]> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        words.try_into().unwrap_or_else(|_| unreachable!("there are as many"))
    }

    /// Lets others run.
    pub(crate) fn wait(_: &mut u32) {
        shuttle::thread::yield_now();
    }
}

pub(crate) use std::sync::atomic::Ordering;

pub(crate) use own::*;
