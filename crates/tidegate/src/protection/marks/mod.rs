//! Marks: what must be known of a subject at once, without asking anybody. Bans, flags, and factors
//! that behaviour has earned.
//!
//! They are few and live long, so that every node has all of them in its memory. While there is none
//! a request pays one atomic load, and one that no mark is of a cheap hash and a few further ones, however
//! many marks there are of others. Their time is the steady clock of this process, so that a wall
//! clock that steps ends nothing; where they travel it is written as Unix time.

mod changes;
mod filter;
mod look;
mod mark;
mod prints;
mod shapes;
mod subject;
mod table;
#[cfg(test)]
mod tests;
mod trace;

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError};

use arc_swap::ArcSwap;
use siphasher::sip128::SipHasher24;

use crate::clock::Now;
use crate::key::{HashKey, Key};
use crate::policy::protection::PPM;
use crate::sync::Mutex;
use filter::Filter;
pub use mark::{Mark, MarkChange, MarkKind, MarkSink};
use shapes::Shapes;
pub(crate) use shapes::Used;
pub(crate) use subject::Shape;
pub use subject::Subject;
pub use table::Set;
use table::{Entry, Onto, Table};
pub(crate) use trace::Sought;
use trace::Tracer;

/// How many bans there may be at once unless told otherwise.
pub const BANS_MAX_DEFAULT: usize = 1_000_000;
/// How many flags, and how many factors.
const OTHERS_MAX: usize = 250_000;
/// How long a factor holds that does not move: 90 days.
const FACTOR_LASTS_US: u64 = 90 * 86_400 * 1_000_000;
/// How many names are kept once for all marks that have them.
const NAMES_MAX: usize = 4_096;

/// All marks that this process knows of.
pub struct Marks {
    tables: [Table; 3],
    /// What is certainly not in the tables that requests look into. Flags are looked at by those alone
    /// who have come to a step.
    filters: [Filter; 3],
    tracer: Tracer,
    shapes: Shapes,
    secret: ArcSwap<HashKey>,
    names: Mutex<HashSet<Arc<str>>>,
    sink: OnceLock<Arc<dyn MarkSink>>,
    noted: changes::Noted,
}

impl Marks {
    /// Room for so many bans.
    #[must_use]
    pub(crate) fn new(secret: HashKey, bans_max: usize) -> Self {
        let tables = [bans_max, OTHERS_MAX, OTHERS_MAX].map(Table::new);
        Self {
            tables,
            filters: std::array::from_fn(|_| Filter::new()),
            tracer: Tracer::random(),
            shapes: Shapes::default(),
            secret: ArcSwap::from_pointee(secret),
            names: Mutex::default(),
            sink: OnceLock::new(),
            noted: changes::Noted::default(),
        }
    }

    /// Has somebody hear of the changes that are made here. Only the first one does.
    pub fn set_sink(&self, sink: Arc<dyn MarkSink>) {
        _ = self.sink.set(sink);
    }

    /// How many marks of a kind there are, those that have just ended included.
    #[must_use]
    pub fn count(&self, kind: MarkKind) -> usize {
        self.table(kind).len()
    }

    /// How many marks of a kind there was no room for.
    #[must_use]
    pub fn refused(&self, kind: MarkKind) -> u64 {
        self.table(kind).refused()
    }

    /// A mark, by its id.
    #[must_use]
    pub fn get(&self, kind: MarkKind, id: Key, now: Now) -> Option<Mark> {
        self.table(kind).get(id, now.steady_us, |entry| to_mark(kind, id, entry, now))
    }

    /// The marks of a kind behind an id, in the order of their ids, at most so many.
    #[must_use]
    pub fn list(&self, kind: MarkKind, after: Option<Key>, limit: usize, now: Now) -> Vec<Mark> {
        let read = |id, entry: &Entry| to_mark(kind, id, entry, now);
        self.table(kind).page(after, limit, now.steady_us, read)
    }

    /// The mark's id, of what else it says.
    #[must_use]
    pub fn id_of(
        &self,
        kind: MarkKind,
        policy: Option<&str>,
        name: Option<&str>,
        subject: &Subject,
    ) -> Key {
        subject.key(prefix(&self.secret.load(), kind, policy, name))
    }

    /// Takes over a change that another process made; returns whether it changed anything here. The
    /// Unix time of `now` is that of the clock which the mark's times are by, such as the store's.
    pub fn apply(&self, change: &MarkChange, now: Now) -> bool {
        match change {
            MarkChange::Set(mark) => matches!(self.set(mark, now), Set::New | Set::Changed),
            MarkChange::Removed { id, kind } => self.remove(*kind, *id).is_some(),
        }
    }

    /// All marks, to be kept over a restart.
    #[must_use]
    pub fn export(&self, now: Now) -> Vec<Mark> {
        let kinds = [MarkKind::Ban, MarkKind::Flag, MarkKind::Factor];
        kinds.iter().flat_map(|kind| self.list(*kind, None, usize::MAX, now)).collect()
    }

    /// Takes back what was kept; returns how many of them still hold. Their ids are made anew, so that
    /// they hold under another secret too.
    pub fn import(&self, marks: impl IntoIterator<Item = Mark>, now: Now) -> usize {
        let mut imported = 0;
        for mut mark in marks {
            mark.id = self.id_of(mark.kind, mark.policy.as_deref(), mark.name(), &mark.subject);
            imported += usize::from(matches!(self.set(&mark, now), Set::New | Set::Changed));
        }
        imported
    }

    /// Sets a mark here, and tells others.
    pub(crate) fn put(&self, mark: &Mark, now: Now) -> Set {
        // As good as none.
        if mark.factor_ppm == Some(PPM) {
            return if self.take(mark.kind, mark.id) { Set::Changed } else { Set::Kept };
        }
        let mark = &*with_end(mark);
        self.set_and(mark, now, || {
            let subject = self.kept(mark).into_owned();
            self.tell(&MarkChange::Set(Mark { subject, ..mark.clone() }));
        })
    }

    /// Takes a mark away here, and tells others; returns whether there was one.
    pub(crate) fn take(&self, kind: MarkKind, id: Key) -> bool {
        // Others may still have one that has ended here, or has not come here yet.
        self.remove_and(kind, id, || self.tell(&MarkChange::Removed { id, kind })).is_some()
    }

    /// Makes all ids anew, for another secret. The earlier ones stay until they are
    /// [dropped](Self::drop_old_ids), for those who still look for them.
    pub(crate) fn rekey(&self, secret: HashKey, now: Now) {
        let marks = self.export(now);
        self.secret.store(Arc::new(secret));
        self.import(marks, now);
    }

    /// Nobody looks for ids of another secret any more. What was set under one meanwhile, or found no
    /// room beside the earlier ones, gets its own. A long subject is kept as a digest by the other
    /// secret, and is not known again.
    pub(crate) fn drop_old_ids(&self, now: Now) {
        for mut mark in self.export(now) {
            let id = self.id_of(mark.kind, mark.policy.as_deref(), mark.name(), &mark.subject);
            if id != mark.id {
                self.remove(mark.kind, mark.id);
                mark.id = id;
                self.set(&mark, now);
            }
        }
    }

    /// Forgets bans that have ended, so that none costs nothing again.
    pub(crate) fn sweep_bans(&self, now: Now) {
        self.table(MarkKind::Ban)
            .sweep(now.steady_us, |entry| self.count_out(MarkKind::Ban, entry));
    }

    fn set(&self, mark: &Mark, now: Now) -> Set {
        self.set_and(mark, now, || ())
    }

    fn set_and(&self, mark: &Mark, now: Now, told: impl FnOnce()) -> Set {
        let (entry, onto) = (self.to_entry(mark, now), onto(mark.kind));
        // Before it can be found missing.
        self.count_in(mark.kind, &entry);
        let gone = |entry: &Entry| self.count_out(mark.kind, entry);
        let counted = entry.clone();
        let set = self.table(mark.kind).set(mark.id, entry, onto, now.steady_us, gone, told);
        if matches!(set, Set::Kept | Set::Full) {
            gone(&counted);
        } else {
            self.noted.note(mark.kind, mark.id);
        }
        set
    }

    fn remove(&self, kind: MarkKind, id: Key) -> Option<Entry> {
        self.remove_and(kind, id, || ())
    }

    fn remove_and(&self, kind: MarkKind, id: Key, told: impl FnOnce()) -> Option<Entry> {
        let removed = self.table(kind).remove(id, told)?;
        self.noted.note(kind, id);
        self.count_out(kind, &removed);
        Some(removed)
    }

    /// What is in a table is counted, and known to the filter, from before it is there until after.
    fn count_in(&self, kind: MarkKind, entry: &Entry) {
        if kind != MarkKind::Flag {
            self.filter(kind).note(entry.trace);
        }
        if kind == MarkKind::Ban {
            self.shapes.add(&entry.subject, entry.policy.is_none());
        }
    }

    fn count_out(&self, kind: MarkKind, entry: &Entry) {
        if kind != MarkKind::Flag {
            self.filter(kind).forget(entry.trace);
        }
        if kind == MarkKind::Ban {
            self.shapes.remove(&entry.subject, entry.policy.is_none());
        }
    }

    fn tell(&self, change: &MarkChange) {
        if let Some(sink) = self.sink.get() {
            sink.changed(change);
        }
    }

    fn table(&self, kind: MarkKind) -> &Table {
        &self.tables[kind as usize]
    }

    fn filter(&self, kind: MarkKind) -> &Filter {
        &self.filters[kind as usize]
    }

    fn to_entry(&self, mark: &Mark, now: Now) -> Entry {
        let subject = self.kept(mark).into_owned();
        Entry {
            policy: mark.policy.as_deref().map(|name| self.name(name)),
            trace: self.tracer.of_mark(mark, &subject),
            subject,
            source: self.name(&mark.source),
            reason: self.name(&mark.reason),
            flag: mark.flag.as_deref().map(|name| self.name(name)),
            since_us: moved(mark.since_unix_us, now.unix_us, now.steady_us),
            until_us: mark
                .until_unix_us
                .map_or(u64::MAX, |us| moved(us, now.unix_us, now.steady_us)),
            factor_ppm: mark.factor_ppm,
        }
    }

    /// A mark's subject as it is kept, and told to others.
    fn kept<'m>(&self, mark: &'m Mark) -> Cow<'m, Subject> {
        mark.subject.shortened(|| {
            prefix(&self.secret.load(), mark.kind, mark.policy.as_deref(), mark.name())
        })
    }

    /// A name that many marks have, once.
    fn name(&self, name: &str) -> Arc<str> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = names.get(name) {
            return Arc::clone(known);
        }
        let name: Arc<str> = name.into();
        if names.len() < NAMES_MAX {
            names.insert(Arc::clone(&name));
        }
        name
    }
}

/// What the keys of all marks of a kind in a policy begin with.
fn prefix(
    secret: &HashKey,
    kind: MarkKind,
    policy: Option<&str>,
    name: Option<&str>,
) -> SipHasher24 {
    let kind = ["ban", "flag", "factor"][kind as usize];
    let scope = if policy.is_some() { "in" } else { "everywhere" };
    let texts =
        ["tidegate: a mark", kind, scope, policy.unwrap_or_default(), name.unwrap_or_default()];
    secret.hasher_of(&texts)
}

/// Subjects that are not heard of any more must not fill the table of factors for good.
fn with_end(mark: &Mark) -> Cow<'_, Mark> {
    if mark.kind != MarkKind::Factor || mark.until_unix_us.is_some() {
        return Cow::Borrowed(mark);
    }
    let until_unix_us = Some(mark.since_unix_us.saturating_add(FACTOR_LASTS_US));
    Cow::Owned(Mark { until_unix_us, ..mark.clone() })
}

const fn onto(kind: MarkKind) -> Onto {
    match kind {
        MarkKind::Ban | MarkKind::Flag => Onto::Later,
        MarkKind::Factor => Onto::Replace,
    }
}

fn to_mark(kind: MarkKind, id: Key, entry: &Entry, now: Now) -> Mark {
    let unix_us = |steady_us| moved(steady_us, now.steady_us, now.unix_us);
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

/// An instant of one clock as that of another, of which both tell the present.
fn moved(instant_us: u64, from_us: u64, to_us: u64) -> u64 {
    match instant_us.checked_sub(from_us) {
        Some(ahead_us) => to_us.saturating_add(ahead_us),
        None => to_us.saturating_sub(from_us - instant_us),
    }
}

impl fmt::Debug for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.tables.each_ref().map(Table::len);
        f.debug_struct("Marks").field("counts", &counts).finish_non_exhaustive()
    }
}
