//! Marks: bans, flags and personal factors that are in force on subjects.
//!
//! Marks are few and last long, so every node has all of them in memory. While nobody is banned, a
//! request reads one atomic counter. Otherwise a request looks up its few keys in a sharded map: those
//! of the subjects that somebody is banned by. Inside the process the steady clock times marks, so that
//! a wall clock that steps ends no ban; outside the process their times are Unix times.

mod keys;
mod mark;
mod subject;
mod table;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock, PoisonError};

use arc_swap::ArcSwap;

use crate::clock::Now;
use crate::context::Context;
use crate::fold::Folded;
use crate::key::{HashKey, Key};
use crate::policy::protection::PPM;
use crate::sync::Mutex;
pub(crate) use keys::MarkKeys;
pub use mark::{Mark, MarkChange, MarkKind, MarkSink};
pub use subject::Subject;
pub(crate) use subject::SubjectKind;
pub(crate) use table::SetOutcome;
use table::{Entry, Replace, Table};

/// How many bans there may be at once, unless the configuration says otherwise.
pub const BANS_MAX_DEFAULT: usize = 1_000_000;
/// How many flags there may be at once, and how many factors.
const OTHERS_MAX: usize = 250_000;
/// A factor that does not change ends after 90 days.
const FACTOR_LASTS_US: u64 = 90 * 86_400 * 1_000_000;
/// How many names are interned.
const NAMES_MAX: usize = 4_096;

type ChangedIds = HashSet<(MarkKind, Key), Folded>;

/// All marks that this process knows of.
pub struct Marks {
    tables: [Table; 3],
    secret: ArcSwap<HashKey>,
    /// Names that many marks share.
    names: Mutex<HashSet<Arc<str>>>,
    sink: OnceLock<Arc<dyn MarkSink>>,
    /// What has changed since [`changes`](Marks::changes) was last called, if somebody tracks changes.
    changed: OnceLock<Mutex<ChangedIds>>,
}

/// Where a change was made. The sink hears of local changes only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Local,
    Remote,
}

impl Marks {
    #[must_use]
    pub(crate) fn new(secret: HashKey, bans_max: usize) -> Self {
        Self {
            tables: [bans_max, OTHERS_MAX, OTHERS_MAX].map(Table::new),
            secret: ArcSwap::from_pointee(secret),
            names: Mutex::default(),
            sink: OnceLock::new(),
            changed: OnceLock::new(),
        }
    }

    /// Sets who hears of the changes that are made here. Only the first call has an effect.
    pub fn set_sink(&self, sink: Arc<dyn MarkSink>) {
        _ = self.sink.set(sink);
    }

    /// How many marks of a kind there are. Some may have ended just now.
    #[must_use]
    #[inline]
    pub fn count(&self, kind: MarkKind) -> usize {
        self.table(kind).count()
    }

    /// How many marks of a kind found no room.
    #[must_use]
    pub fn refused(&self, kind: MarkKind) -> u64 {
        self.table(kind).refused()
    }

    /// The mark with an id.
    #[must_use]
    pub fn get(&self, kind: MarkKind, id: Key, now: Now) -> Option<Mark> {
        self.table(kind).get(id, now.steady_us, |entry| to_mark(kind, id, entry, now))
    }

    /// At most `limit` marks of a kind behind an id, in the order of their ids.
    #[must_use]
    pub fn list(&self, kind: MarkKind, after: Option<Key>, limit: usize, now: Now) -> Vec<Mark> {
        let read = |id, entry: &Entry| to_mark(kind, id, entry, now);
        self.table(kind).page(after, limit, now.steady_us, read)
    }

    /// The id of a mark.
    #[must_use]
    pub fn id_of(
        &self,
        kind: MarkKind,
        policy: Option<&str>,
        name: Option<&str>,
        subject: &Subject,
    ) -> Key {
        subject.id(keys::prefix(&self.secret.load(), kind, policy, name))
    }

    /// Applies a change that another process made; returns whether it changed anything here. The Unix
    /// time of `now` must be from the clock of the mark's times, such as the store's.
    pub fn apply(&self, change: &MarkChange, now: Now) -> bool {
        match change {
            MarkChange::Set(mark) => self.set_remote(mark, now),
            MarkChange::Removed { id, kind } => self.remove_from(Origin::Remote, *kind, *id),
        }
    }

    /// All marks, for saving them over a restart.
    #[must_use]
    pub fn export(&self, now: Now) -> Vec<Mark> {
        let kinds = [MarkKind::Ban, MarkKind::Flag, MarkKind::Factor];
        kinds.iter().flat_map(|kind| self.list(*kind, None, usize::MAX, now)).collect()
    }

    /// Restores saved marks; returns how many of them are still in force. Computes their ids anew, in
    /// case the secret is another one.
    pub fn import(&self, marks: impl IntoIterator<Item = Mark>, now: Now) -> usize {
        let mut imported = 0;
        for mut mark in marks {
            mark.id = self.current_id(&mark);
            imported += usize::from(self.set_remote(&mark, now));
        }
        imported
    }

    /// Tracks the marks that change from now on, for [`changes`](Self::changes).
    pub fn track_changes(&self) {
        self.changed.get_or_init(Mutex::default);
    }

    /// Every mark that this process or another has set or removed since the last call, once, as it is
    /// when its turn comes. A mark that only ended is not among them. A caller that does not take all
    /// changes must continue with an [`export`](Self::export).
    pub fn changes(&self, now: Now) -> impl Iterator<Item = MarkChange> + '_ {
        let take = |ids: &Mutex<ChangedIds>| {
            std::mem::take(&mut *ids.lock().unwrap_or_else(PoisonError::into_inner))
        };
        let changed = self.changed.get().map(take).unwrap_or_default();
        changed.into_iter().map(move |(kind, id)| {
            let removed = MarkChange::Removed { id, kind };
            self.get(kind, id, now).map_or(removed, MarkChange::Set)
        })
    }

    /// A mark that starts now, without a reason, an end or a value.
    pub(crate) fn new_mark(
        &self,
        kind: MarkKind,
        policy: Option<&str>,
        name: Option<&str>,
        subject: Subject,
        source: &str,
        now: Now,
    ) -> Mark {
        Mark {
            id: self.id_of(kind, policy, name, &subject),
            kind,
            policy: policy.map(str::to_owned),
            subject,
            source: source.to_owned(),
            reason: String::new(),
            flag: name.filter(|_| kind == MarkKind::Flag).map(str::to_owned),
            since_unix_us: now.unix_us,
            until_unix_us: None,
            factor_ppm: None,
        }
    }

    /// Sets a mark, and tells the sink.
    pub(crate) fn set(&self, mark: &Mark, now: Now) -> SetOutcome {
        // A factor of one changes nothing.
        if mark.factor_ppm == Some(PPM) {
            return match self.remove(mark.kind, mark.id) {
                true => SetOutcome::Changed,
                false => SetOutcome::Unchanged,
            };
        }
        self.set_from(Origin::Local, &with_end(mark), now)
    }

    /// Removes a mark, and tells the sink; returns whether there was one.
    pub(crate) fn remove(&self, kind: MarkKind, id: Key) -> bool {
        self.remove_from(Origin::Local, kind, id)
    }

    /// Whether there are bans on subjects of a kind: in one policy, or in all of them.
    pub(crate) fn has_bans(&self, kind: SubjectKind, everywhere: bool) -> bool {
        self.table(MarkKind::Ban).subjects().has(kind, everywhere)
    }

    /// The prefix lengths of banned networks that may contain an address.
    pub(crate) fn banned_prefix_lengths(&self, ip: IpAddr) -> impl Iterator<Item = u8> + use<> {
        self.table(MarkKind::Ban).subjects().prefix_lengths(ip)
    }

    /// The personal factor of a request's subject in millionths, and its start in steady time.
    pub(crate) fn factor(
        &self,
        keys: &MarkKeys,
        context: &Context<'_>,
        now: Now,
    ) -> Option<(u64, u64)> {
        let table = self.table(MarkKind::Factor);
        if table.count() == 0 {
            return None;
        }
        let read = |entry: &Entry| entry.factor_ppm.map(|ppm| (ppm, entry.since_us));
        table.get(keys.id(context)?, now.steady_us, read).flatten()
    }

    /// Drops expired bans, so that the no-ban fast path applies again.
    pub(crate) fn drop_expired_bans(&self, now: Now) {
        self.table(MarkKind::Ban).drop_expired(now.steady_us);
    }

    /// Adds ids by another secret. The old ids stay until [`drop_old_ids`](Self::drop_old_ids), for
    /// requests that are still decided under the old secret.
    pub(crate) fn rekey(&self, secret: HashKey, now: Now) {
        let marks = self.export(now);
        self.secret.store(Arc::new(secret));
        self.import(marks, now);
    }

    /// Removes the ids by an old secret. A mark that was set under an old id meanwhile, or found no room
    /// beside the old ids, gets its new id. The digest of a long subject is by the old secret: such a
    /// mark is lost.
    pub(crate) fn drop_old_ids(&self, now: Now) {
        for mut mark in self.export(now) {
            let id = self.current_id(&mark);
            if id != mark.id {
                self.remove_from(Origin::Remote, mark.kind, mark.id);
                mark.id = id;
                self.set_from(Origin::Remote, &mark, now);
            }
        }
    }

    fn set_remote(&self, mark: &Mark, now: Now) -> bool {
        self.set_from(Origin::Remote, mark, now).is_set()
    }

    fn set_from(&self, origin: Origin, mark: &Mark, now: Now) -> SetOutcome {
        let entry = self.to_entry(mark, now);
        let replace = match mark.kind {
            MarkKind::Ban | MarkKind::Flag => Replace::IfLonger,
            MarkKind::Factor => Replace::Always,
        };
        let on_set = |entry: &Entry| {
            let subject = || entry.subject.clone();
            self.tell_sink(origin, || MarkChange::Set(Mark { subject: subject(), ..mark.clone() }));
        };
        let outcome = self.table(mark.kind).set(mark.id, entry, replace, now.steady_us, on_set);
        if outcome.is_set() {
            self.note_change(mark.kind, mark.id);
        }
        outcome
    }

    fn remove_from(&self, origin: Origin, kind: MarkKind, id: Key) -> bool {
        // The sink hears of a mark that is not here too: other nodes may still have it.
        let is_removed = self.table(kind).remove(id, || {
            self.tell_sink(origin, || MarkChange::Removed { id, kind });
        });
        if is_removed {
            self.note_change(kind, id);
        }
        is_removed
    }

    fn tell_sink(&self, origin: Origin, change: impl FnOnce() -> MarkChange) {
        if let Some(sink) = self.sink.get().filter(|_| origin == Origin::Local) {
            sink.changed(&change());
        }
    }

    /// Must follow the change: a reader in between would see the mark as it was.
    fn note_change(&self, kind: MarkKind, id: Key) {
        if let Some(ids) = self.changed.get() {
            ids.lock().unwrap_or_else(PoisonError::into_inner).insert((kind, id));
        }
    }

    fn table(&self, kind: MarkKind) -> &Table {
        &self.tables[kind as usize]
    }

    /// The id of a mark by the present secret.
    fn current_id(&self, mark: &Mark) -> Key {
        self.id_of(mark.kind, mark.policy.as_deref(), mark.name(), &mark.subject)
    }

    fn to_entry(&self, mark: &Mark, now: Now) -> Entry {
        let steady_us = |unix_us| convert_time(unix_us, now.unix_us, now.steady_us);
        let policy = mark.policy.as_deref();
        let prefix = || keys::prefix(&self.secret.load(), mark.kind, policy, mark.name());
        Entry {
            policy: policy.map(|name| self.intern(name)),
            subject: mark.subject.shortened(prefix).into_owned(),
            source: self.intern(&mark.source),
            reason: self.intern(&mark.reason),
            flag: mark.flag.as_deref().map(|name| self.intern(name)),
            since_us: steady_us(mark.since_unix_us),
            until_us: mark.until_unix_us.map_or(u64::MAX, steady_us),
            factor_ppm: mark.factor_ppm,
        }
    }

    fn intern(&self, name: &str) -> Arc<str> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(interned) = names.get(name) {
            return Arc::clone(interned);
        }
        let name: Arc<str> = name.into();
        if names.len() < NAMES_MAX {
            names.insert(Arc::clone(&name));
        }
        name
    }
}

/// Gives every factor an end: subjects that never return must not fill the table for good.
fn with_end(mark: &Mark) -> Cow<'_, Mark> {
    if mark.kind != MarkKind::Factor || mark.until_unix_us.is_some() {
        return Cow::Borrowed(mark);
    }
    let until_unix_us = Some(mark.since_unix_us.saturating_add(FACTOR_LASTS_US));
    Cow::Owned(Mark { until_unix_us, ..mark.clone() })
}

fn to_mark(kind: MarkKind, id: Key, entry: &Entry, now: Now) -> Mark {
    let unix_us = |steady_us| convert_time(steady_us, now.steady_us, now.unix_us);
    Mark {
        id,
        kind,
        policy: entry.policy.as_deref().map(str::to_owned),
        subject: entry.subject.clone(),
        source: (*entry.source).to_owned(),
        reason: (*entry.reason).to_owned(),
        flag: entry.flag.as_deref().map(str::to_owned),
        since_unix_us: unix_us(entry.since_us),
        until_unix_us: (entry.until_us != u64::MAX).then(|| unix_us(entry.until_us)),
        factor_ppm: entry.factor_ppm,
    }
}

/// Converts an instant of one clock into another clock's, given the present by both.
fn convert_time(instant_us: u64, from_now_us: u64, to_now_us: u64) -> u64 {
    match instant_us.checked_sub(from_now_us) {
        Some(ahead_us) => to_now_us.saturating_add(ahead_us),
        None => to_now_us.saturating_sub(from_now_us - instant_us),
    }
}

impl fmt::Debug for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.tables.each_ref().map(Table::count);
        f.debug_struct("Marks").field("counts", &counts).finish_non_exhaustive()
    }
}
