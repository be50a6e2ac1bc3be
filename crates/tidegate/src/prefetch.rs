//! Asking for memory before it is needed: the one place with `unsafe`.
//!
//! A load that nobody waits for keeps its place in the processor until its memory has come, and behind
//! some hundred instructions nothing goes on. This is forgotten as soon as it is asked for, so that a batch
//! asks for the memory of all its keys at once, and a single check for that of its key before it reads the
//! clock. With a million keys, each as likely as any other, checks in batches take 36 to 41 ns each instead
//! of 78 to 94 with loads, and single ones 130 to 131 instead of 185 to 207; by Zipf's law 27 to 34 instead
//! of 59 to 65, and 84 to 96 instead of 103 to 112.
//!
//! Nothing depends on whether it is done, so that doing nothing is its safe twin: on other processors,
//! whose instruction has no stable name in Rust, under Miri, and in the tests that compare both.

/// Asks for the line of a cache that something begins in: into the first cache, so that it is there when
/// it is needed.
#[inline(always)]
pub(crate) fn prefetch<T>(place: &T) {
    #[cfg(test)]
    if twin::is_taken() {
        return;
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction needs SSE, which every processor of this architecture has. It reads
        // nothing that a program could see, and whatever the address is, it raises nothing.
        #[expect(unsafe_code, reason = "it has no other name")]
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast());
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = place;
}

/// The safe twin, for whoever tests that nothing depends on it.
#[cfg(test)]
pub(crate) mod twin {
    use std::cell::Cell;

    thread_local! {
        static TAKEN: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn is_taken() -> bool {
        TAKEN.get()
    }

    /// Asks for nothing on this thread meanwhile.
    pub(crate) fn instead<T>(act: impl FnOnce() -> T) -> T {
        TAKEN.set(true);
        let done = act();
        TAKEN.set(false);
        done
    }
}
