//! How messages fared.

use std::sync::atomic::{AtomicU64, Ordering};

use super::delivery::End;

/// Counts of messages by how they ended.
#[derive(Debug, Default)]
pub(super) struct Counts {
    delivered: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    dropped: AtomicU64,
    retries: AtomicU64,
}

/// The same at one moment, with how many are on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NoticeCounts {
    pub(crate) delivered: u64,
    pub(crate) failed: u64,
    pub(crate) refused: u64,
    pub(crate) dropped: u64,
    pub(crate) retries: u64,
    pub(crate) waiting: usize,
}

impl Counts {
    pub(super) fn ended(&self, end: End) {
        let counter = match end {
            End::Delivered => &self.delivered,
            End::Failed => &self.failed,
            End::Refused => &self.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn now(&self, waiting: usize) -> NoticeCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NoticeCounts {
            delivered: read(&self.delivered),
            failed: read(&self.failed),
            refused: read(&self.refused),
            dropped: read(&self.dropped),
            retries: read(&self.retries),
            waiting,
        }
    }
}
