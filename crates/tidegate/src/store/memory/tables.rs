//! The tables of the limits of a policy: found when it comes into force, and not for every request.

use std::sync::Arc;

use super::Families;
use super::table::Table;
use crate::key::Key;
use crate::plan::Level;

/// Where a store keeps the keys of some limits, in the order of these.
#[derive(Clone, Debug, Default)]
pub struct Tables(Vec<Arc<Table>>);

impl Tables {
    /// Those of all these limits, or none.
    pub(super) fn of(families: &Families, limits: &[u64]) -> Self {
        let tables = limits.iter().map(|family| families.tables.get(family).cloned());
        Self(tables.collect::<Option<_>>().unwrap_or_default())
    }

    /// The table of a limit, unless the store has done away with it.
    #[inline]
    pub(super) fn get(&self, level: &Level) -> Option<&Table> {
        let table = self.0.get(usize::from(level.limit))?;
        (!table.is_retired()).then_some(&**table)
    }

    /// Asks for the memory of a key that the limit at this place will shortly be asked about.
    #[inline]
    pub(crate) fn foresee(&self, limit: usize, key: Key) {
        if let Some(table) = self.0.get(limit) {
            table.prefetch(key);
        }
    }
}
