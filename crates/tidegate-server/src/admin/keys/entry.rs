//! A key that was found, and how the engine is told of it.

use std::sync::Arc;

use tidegate::plan::Level;
use tidegate::store::KeyUsage;
use tidegate::{Key, KeyedLimit, SubjectKey};
use tidegate_redis::StoredKey;

/// A key.
pub(super) struct Entry {
    pub(super) name: Arc<str>,
    pub(super) policy: Option<String>,
    pub(super) limit: Option<String>,
    /// What it holds, or why that cannot be read.
    pub(super) counted: Result<KeyUsage, String>,
    /// Where the store has it.
    family: u64,
    key: Key,
    is_named: bool,
}

impl Entry {
    /// How the engine is told to forget it; `None` for what cannot be read.
    pub(super) fn to_forget(&self) -> Option<(Level, Option<Arc<str>>)> {
        let spec = self.counted.as_ref().ok()?.paces.first()?.spec;
        let level = Level::of_key(self.family, self.key, spec);
        Some((level, self.is_named.then(|| Arc::clone(&self.name))))
    }

    /// Its name, if it cannot be read.
    pub(super) fn to_delete(&self) -> Option<Arc<str>> {
        self.counted.is_err().then(|| Arc::clone(&self.name))
    }

    pub(super) fn of_subject(
        key: &SubjectKey,
        counted: Result<KeyUsage, String>,
        is_named: bool,
    ) -> Self {
        Self {
            name: Arc::clone(&key.name),
            policy: Some(key.policy.clone()),
            limit: Some(key.limit.clone()),
            counted,
            family: key.level.family,
            key: key.level.key,
            is_named,
        }
    }

    /// What the memory has of a limit.
    pub(super) fn of_memory(owner: &KeyedLimit<'_>, key: Key, counted: KeyUsage) -> Self {
        Self {
            name: owner.name_of(key).into(),
            policy: Some(owner.policy().to_owned()),
            limit: Some(owner.limit().name().to_owned()),
            counted: Ok(counted),
            family: owner.family(),
            key,
            is_named: false,
        }
    }

    /// What the shared store has, by its name alone: this node does not know whose it is.
    pub(super) fn of_found(found: StoredKey, keyed_limits: &[KeyedLimit<'_>]) -> Self {
        let policy = match keyed_limits {
            [owner] => Some(owner.policy().to_owned()),
            _ => None,
        };
        Self {
            policy,
            limit: keyed_limits.first().map(|owner| owner.limit().name().to_owned()),
            name: found.name.into(),
            counted: found.usage,
            family: 0,
            key: Key(0),
            is_named: true,
        }
    }
}
