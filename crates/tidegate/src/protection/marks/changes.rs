//! Which marks have changed, for whoever writes them down while they change.

use std::collections::HashSet;
use std::sync::{OnceLock, PoisonError};

use super::{MarkChange, MarkKind, Marks};
use crate::clock::Now;
use crate::fold::Folded;
use crate::key::Key;
use crate::sync::Mutex;

impl Marks {
    /// Notes the marks that change from now on, for [`changes`](Self::changes).
    pub fn track_changes(&self) {
        self.noted.0.get_or_init(Mutex::default);
    }

    /// Every mark that was set or taken away since it was last given here, by this process or by
    /// another, once, as it is at its turn. One that only came to its end is not among them. Whoever
    /// stops before the end must take everything from [`export`](Self::export).
    pub fn changes(&self, now: Now) -> impl Iterator<Item = MarkChange> + '_ {
        self.noted.take().into_iter().map(move |(kind, id)| {
            let removed = MarkChange::Removed { id, kind };
            self.get(kind, id, now).map_or(removed, MarkChange::Set)
        })
    }
}

/// The marks that have changed, where somebody tracks them.
#[derive(Debug, Default)]
pub(super) struct Noted(OnceLock<Mutex<Ids>>);

type Ids = HashSet<(MarkKind, Key), Folded>;

impl Noted {
    /// To be called after the change: whoever reads it earlier would read what was before.
    pub(super) fn note(&self, kind: MarkKind, id: Key) {
        if let Some(ids) = self.0.get() {
            ids.lock().unwrap_or_else(PoisonError::into_inner).insert((kind, id));
        }
    }

    fn take(&self) -> Ids {
        let take = |ids: &Mutex<Ids>| {
            std::mem::take(&mut *ids.lock().unwrap_or_else(PoisonError::into_inner))
        };
        self.0.get().map(take).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::HashKey;
    use crate::protection::marks::{Mark, Subject};

    const NOW: Now = Now { steady_us: 5_000_000, unix_us: 9_000_000 };

    fn ban(marks: &Marks, user: &str, until_unix_us: u64) -> Mark {
        let (kind, subject) = (MarkKind::Ban, Subject::user(user));
        Mark {
            id: marks.id_of(kind, None, None, &subject),
            kind,
            policy: None,
            subject,
            source: "operator".to_owned(),
            reason: String::new(),
            flag: None,
            since_unix_us: NOW.unix_us,
            until_unix_us: Some(until_unix_us),
            factor_ppm: None,
        }
    }

    #[test]
    fn marks_that_are_set_lifted_or_heard_of_are_told_once_as_they_are() {
        let marks = Marks::new(HashKey::new([1; 16]), 10);
        let bans = ["u1", "u2", "u3"].map(|user| ban(&marks, user, 60_000_000));
        marks.put(&bans[0], NOW);
        assert_eq!(marks.changes(NOW).count(), 0, "nobody tracked");
        marks.track_changes();
        assert_eq!(marks.changes(NOW).count(), 0, "what was before is in the export");
        marks.put(&bans[1], NOW);
        marks.apply(&MarkChange::Set(bans[2].clone()), NOW);
        marks.take(MarkKind::Ban, bans[0].id);
        let told: Vec<MarkChange> = marks.changes(NOW).collect();
        let set = told.iter().filter(|change| matches!(change, MarkChange::Set(_))).count();
        let lifted = MarkChange::Removed { id: bans[0].id, kind: MarkKind::Ban };
        assert_eq!((told.len(), set, told.contains(&lifted)), (3, 2, true), "{told:?}");
        assert!(told.contains(&MarkChange::Set(bans[1].clone())));
        assert_eq!(marks.changes(NOW).count(), 0);
        let longer = ban(&marks, "u2", 90_000_000);
        marks.put(&longer, NOW);
        marks.put(&bans[1], NOW);
        assert_eq!(marks.changes(NOW).collect::<Vec<_>>(), [MarkChange::Set(longer)]);
    }

    #[test]
    fn marks_that_end_or_were_not_there_are_not_told() {
        let marks = Marks::new(HashKey::new([1; 16]), 10);
        marks.track_changes();
        let short = ban(&marks, "u1", 10_000_000);
        marks.put(&short, NOW);
        assert_eq!(marks.changes(NOW).count(), 1);
        let later = Now { steady_us: 7_000_000, unix_us: 11_000_000 };
        marks.sweep_bans(later);
        marks.take(MarkKind::Ban, short.id);
        assert_eq!((marks.count(MarkKind::Ban), marks.changes(later).count()), (0, 0));
    }
}
