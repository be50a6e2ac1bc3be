//! Records that do not fit their slots.

use super::super::record::Record;

/// Records by their place. Empty, and so without memory of its own, in nearly every segment.
#[derive(Debug, Default)]
pub(super) struct Side {
    kept: Option<Box<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    records: Vec<Option<Box<Record>>>,
    free: Vec<usize>,
}

impl Side {
    pub(super) fn put(&mut self, record: Record) -> usize {
        let kept = self.kept.get_or_insert_default();
        let place = kept.free.pop().unwrap_or_else(|| {
            kept.records.push(None);
            kept.records.len() - 1
        });
        if let Some(room) = kept.records.get_mut(place) {
            *room = Some(Box::new(record));
        }
        place
    }

    pub(super) fn get(&mut self, place: usize) -> Option<&mut Record> {
        self.kept.as_mut()?.records.get_mut(place)?.as_deref_mut()
    }

    pub(super) fn take(&mut self, place: usize) -> Option<Record> {
        let kept = self.kept.as_mut()?;
        let record = kept.records.get_mut(place)?.take()?;
        kept.free.push(place);
        if kept.free.len() == kept.records.len() {
            self.kept = None;
        }
        Some(*record)
    }
}
