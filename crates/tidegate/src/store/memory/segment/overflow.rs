//! The overflow of a segment: records that do not fit their slots.

use super::super::record::Record;

/// Records by index. Nearly every segment has none, and then allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Overflow(Option<Box<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    records: Vec<Option<Box<Record>>>,
    free: Vec<usize>,
}

impl Overflow {
    /// Adds a record; returns its index.
    pub(super) fn add(&mut self, record: Record) -> usize {
        let entries = self.0.get_or_insert_default();
        let index = entries.free.pop().unwrap_or_else(|| {
            entries.records.push(None);
            entries.records.len() - 1
        });
        if let Some(entry) = entries.records.get_mut(index) {
            *entry = Some(Box::new(record));
        }
        index
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Record> {
        self.0.as_mut()?.records.get_mut(index)?.as_deref_mut()
    }

    /// Takes a record out.
    pub(super) fn take(&mut self, index: usize) -> Option<Record> {
        let entries = self.0.as_mut()?;
        let record = entries.records.get_mut(index)?.take()?;
        entries.free.push(index);
        if entries.free.len() == entries.records.len() {
            self.0 = None;
        }
        Some(*record)
    }
}
