//! What the tables of a store share: the bound on their keys, and the memory of their slots.
//!
//! Each table has a share of the keys, and what the others do not use is lent: a table may grow beyond its share while
//! the store has room. When the store is full, the table that has borrowed most gives up a key for each new one. So a
//! table within its share loses no key to others, and gets its share back when it needs it.

use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;

use super::pages::Pages;
use super::table::Table;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// What all tables of a store share.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) pages: Pages,
    /// How many live keys were evicted.
    pub(super) evicted: AtomicU64,
    /// Set where a journal is kept.
    pub(super) is_journaling: AtomicBool,
    /// Set when more keys were reset than the journal could note.
    pub(super) lost_resets: AtomicBool,
    /// The keys of all tables, and how many there may be.
    all: Usage,
    members: ArcSwap<Vec<Member>>,
}

/// How many keys there are, and how many there may be. A cache line of its own, because every new key changes it.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Usage {
    keys: AtomicUsize,
    share: AtomicUsize,
}

impl Usage {
    pub(super) const fn new(share: usize) -> Self {
        Self { keys: AtomicUsize::new(0), share: AtomicUsize::new(share) }
    }

    pub(super) fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    pub(super) fn share(&self) -> usize {
        self.share.load(Ordering::Relaxed)
    }

    pub(super) fn set_share(&self, share: usize) {
        self.share.store(share, Ordering::Relaxed);
    }

    /// How many keys there are beyond the share.
    fn borrowed(&self) -> usize {
        self.keys().saturating_sub(self.share())
    }
}

/// A table, as long as it exists.
#[derive(Clone, Debug)]
struct Member {
    usage: Arc<Usage>,
    table: Weak<Table>,
}

impl Pool {
    pub(super) fn new(max_keys: usize) -> Self {
        Self {
            pages: Pages::default(),
            evicted: AtomicU64::new(0),
            is_journaling: AtomicBool::new(false),
            lost_resets: AtomicBool::new(false),
            all: Usage::new(max_keys),
            members: ArcSwap::default(),
        }
    }

    /// Lends to a table, and takes from it. Callers come one at a time.
    pub(super) fn enrol(&self, table: &Arc<Table>) {
        let mut members = Vec::clone(&self.members.load());
        members.retain(|member| member.table.strong_count() > 0);
        members.push(Member { usage: Arc::clone(&table.usage), table: Arc::downgrade(table) });
        self.members.store(Arc::new(members));
    }

    pub(super) fn max_keys(&self) -> usize {
        self.all.share()
    }

    pub(super) fn set_max_keys(&self, max_keys: usize) {
        self.all.set_share(max_keys);
    }

    /// Counts a key of a table; returns how many the table had before.
    pub(super) fn add(&self, usage: &Usage) -> usize {
        self.all.keys.fetch_add(1, Ordering::Relaxed);
        usage.keys.fetch_add(1, Ordering::Relaxed)
    }

    /// The opposite, for some keys.
    pub(super) fn subtract(&self, usage: &Usage, keys: usize) {
        usage.keys.fetch_sub(keys, Ordering::Relaxed);
        self.all.keys.fetch_sub(keys, Ordering::Relaxed);
    }

    pub(super) fn is_full(&self) -> bool {
        self.all.keys() >= self.max_keys()
    }

    /// True if there are more keys than there may be.
    pub(super) fn is_over(&self) -> bool {
        self.all.borrowed() > 0
    }

    /// True if an eighth is left, or less.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.all.keys() > self.max_keys() - self.max_keys() / 8
    }

    /// The table that has borrowed most, if that is more than the table of this usage has borrowed.
    pub(super) fn larger_borrower(&self, own: &Arc<Usage>) -> Option<Arc<Table>> {
        let members = self.members.load();
        let most = members.iter().max_by_key(|member| member.usage.borrowed())?;
        if most.usage.borrowed() > own.borrowed() { most.table.upgrade() } else { None }
    }
}
