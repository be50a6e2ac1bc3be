//! Finds keys: one by its name, those of a subject, or those of a limit or penalty page by page.

use std::sync::Arc;

use tidegate::clock::Now;
use tidegate::engine::plan::Level;
use tidegate::engine::store::{KeyCursor, KeyUsage, Memory};
use tidegate::engine::{ActivePolicies, Key, KeyOwner, SubjectKey};
use tidegate_redis::{Cursor, StoredKey};

use super::key_query::KeyQuery;
use crate::app::App;
use crate::engine::{DaemonStore, Engine};
use crate::shared::SharedStore;
use crate::wire::endpoint::ErrorResponse;
use crate::wire::fields::FieldError;
use crate::wire::query::shorten;

/// How many keys of the memory store are read under one lock.
const LOCKED_KEYS_MAX: usize = 256;
/// How many keys of the memory store are read for one page.
const SEEN_MAX: usize = 20_000;

/// The position after all keys of a limit.
const AFTER_ALL: KeyCursor = (u64::MAX, Key(u128::MAX));

/// A page of keys.
#[derive(Default)]
pub(super) struct KeyPage {
    pub(super) entries: Vec<KeyEntry>,
    /// Where the next page begins; `None` on the last page.
    pub(super) cursor: Option<String>,
    /// How many keys the store went through.
    pub(super) seen: usize,
}

/// A key of the store.
pub(super) struct KeyEntry {
    pub(super) name: Arc<str>,
    /// `None` if nothing in force has the key, or several policies have it.
    pub(super) policy: Option<String>,
    pub(super) limit: Option<String>,
    pub(super) penalty: Option<String>,
    /// The usage, or why the store's value is unreadable.
    pub(super) usage: Result<KeyUsage, String>,
    family: u64,
    key: Key,
    /// True if the shared store has the key, by its name.
    is_shared: bool,
}

impl KeyEntry {
    /// The arguments of [`Engine::forget`]; `None` if the value is unreadable.
    pub(super) fn to_forget(&self) -> Option<(Level, Option<Arc<str>>)> {
        let spec = self.usage.as_ref().ok()?.paces.first()?.spec;
        let level = Level::of_key(self.family, self.key, spec);
        Some((level, self.is_shared.then(|| Arc::clone(&self.name))))
    }

    fn of_subject(key: &SubjectKey, usage: Result<KeyUsage, String>, is_shared: bool) -> Self {
        Self {
            name: Arc::clone(&key.name),
            policy: Some(key.policy.clone()),
            limit: key.limit.clone(),
            penalty: key.penalty.clone(),
            usage,
            family: key.level.family,
            key: key.level.key,
            is_shared,
        }
    }

    fn of_memory(owner: &KeyOwner<'_>, key: Key, usage: KeyUsage) -> Self {
        Self {
            name: owner.name_of(key).into(),
            policy: Some(owner.policy().to_owned()),
            limit: owner.limit().map(str::to_owned),
            penalty: owner.penalty().map(str::to_owned),
            usage: Ok(usage),
            family: owner.family(),
            key,
            is_shared: false,
        }
    }

    /// A key of the shared store, by its name alone: this node does not know its subject.
    fn of_store(stored: StoredKey, owners: &[KeyOwner<'_>]) -> Self {
        let policy = match owners {
            [owner] => Some(owner.policy().to_owned()),
            _ => None,
        };
        let first = owners.first();
        Self {
            policy,
            limit: first.and_then(KeyOwner::limit).map(str::to_owned),
            penalty: first.and_then(KeyOwner::penalty).map(str::to_owned),
            name: stored.name.into(),
            usage: stored.usage,
            family: 0,
            key: Key(0),
            is_shared: true,
        }
    }
}

/// Finds the page that a query selects.
pub(super) async fn find_page(app: &App, query: &KeyQuery<'_>) -> Result<KeyPage, ErrorResponse> {
    let policies = app.engine.active_policies();
    let lookup = Lookup { query, policies: &policies, now: app.now() };
    lookup.check_names()?;
    let is_scan = query.key.is_none() && !query.has_subject();
    let engine = &app.engine;
    let entries = match engine.store() {
        DaemonStore::Memory(memory) if is_scan => return Ok(lookup.scan_memory(memory)?),
        DaemonStore::Shared(store) if is_scan => return lookup.scan_store(store).await,
        DaemonStore::Memory(memory) => lookup.find_in_memory(engine, memory)?,
        DaemonStore::Shared(store) => lookup.find_in_store(engine, store).await?,
    };
    Ok(KeyPage { seen: entries.len(), entries, cursor: None })
}

struct Lookup<'a> {
    query: &'a KeyQuery<'a>,
    policies: &'a ActivePolicies,
    now: Now,
}

impl Lookup<'_> {
    /// Refuses a policy, limit or penalty that is not in force: a misspelt name is not one without keys.
    fn check_names(&self) -> Result<(), FieldError> {
        let policy = self.query.request.policy.as_deref();
        let is_known = |name: &&str| self.policies.names().any(|known| known == *name);
        if let Some(name) = policy.filter(|name| !is_known(name)) {
            let found = shorten(name);
            let detail = format!("found `{found}`, expected the name of a policy in force");
            return Err(FieldError::new("policy", detail));
        }
        let KeyQuery { limit, penalty, .. } = self.query;
        let (field, name, expected) = match (limit, penalty) {
            (Some(name), _) => {
                ("limit", name, "expected a limit of the policy, and one that keeps counts")
            }
            (None, Some(name)) => ("penalty", name, "expected a penalty of the policy"),
            (None, None) => return Ok(()),
        };
        if self.owners().next().is_some() {
            return Ok(());
        }
        Err(FieldError::new(field, format!("found `{}`, {expected}", shorten(name))))
    }

    /// Refuses to delete keys by a limit whose name several policies share: without a template the
    /// names of their keys in a shared store do not tell the policy.
    fn check_unambiguous(&self) -> Result<(), FieldError> {
        let is_shared = |owner: &KeyOwner<'_>| {
            let same = |other: &KeyOwner<'_>| other.pattern() == owner.pattern();
            self.policies.key_owners().filter(same).count() > 1
        };
        if self.query.is_delete && self.owners().any(|owner| is_shared(&owner)) {
            let detail = "is in several policies, and the names of their keys do not tell which: \
                          say a subject, or a key";
            let field = if self.query.penalty.is_some() { "penalty" } else { "limit" };
            return Err(FieldError::new(field, detail));
        }
        Ok(())
    }

    /// The limits and penalties that the query selects. A named one is that of the first policy, unless
    /// the query names another policy.
    fn owners(&self) -> impl Iterator<Item = KeyOwner<'_>> {
        let (limit, penalty) = (self.query.limit.as_deref(), self.query.penalty.as_deref());
        let first = self.policies.names().next().filter(|_| self.query.names_owner());
        let policy = self.query.request.policy.as_deref().or(first);
        self.policies.key_owners().filter(move |owner| {
            policy.is_none_or(|name| owner.policy() == name)
                && (limit.is_none() || owner.limit() == limit)
                && (penalty.is_none() || owner.penalty() == penalty)
        })
    }

    /// The keys of the query's subject: on a limit or penalty that the query names, or on all.
    fn subject_keys(&self, engine: &Engine) -> Result<Vec<SubjectKey>, ErrorResponse> {
        let (request, limit) = (&self.query.request, self.query.limit.as_deref());
        if let Some(penalty) = self.query.penalty.as_deref() {
            return Ok(engine.penalty_keys_of(request, Some(penalty))?);
        }
        let mut keys = engine.keys_of(request, limit)?;
        if limit.is_none() {
            keys.extend(engine.penalty_keys_of(request, None)?);
        }
        Ok(keys)
    }

    fn find_in_memory(
        &self,
        engine: &Engine,
        memory: &Memory,
    ) -> Result<Vec<KeyEntry>, ErrorResponse> {
        if let Some(name) = &self.query.key {
            let found = self.policies.key_owners().find_map(|owner| {
                let key = memory.find_key(owner.family(), owner.keys_called(name)?)?;
                let usage = memory.key_usage(owner.family(), key, self.now)?;
                Some(KeyEntry::of_memory(&owner, key, usage))
            });
            return Ok(found.into_iter().collect());
        }
        let entry = |key: &SubjectKey| {
            let usage = memory.key_usage(key.level.family, key.level.key, self.now)?;
            Some(KeyEntry::of_subject(key, Ok(usage), false))
        };
        Ok(self.subject_keys(engine)?.iter().filter_map(entry).collect())
    }

    async fn find_in_store(
        &self,
        engine: &Engine,
        store: &SharedStore,
    ) -> Result<Vec<KeyEntry>, ErrorResponse> {
        if let Some(name) = &self.query.key {
            let found = store.inspect(&[(&**name).into()]).await?.into_iter().flatten();
            let owners: Vec<KeyOwner<'_>> = self.policies.owners_of_key(name).collect();
            return Ok(found.map(|found| KeyEntry::of_store(found, &owners)).collect());
        }
        let keys = self.subject_keys(engine)?;
        let names: Vec<Arc<str>> = keys.iter().map(|key| Arc::clone(&key.name)).collect();
        let found = store.inspect(&names).await?;
        let entry = |(key, stored): (&SubjectKey, Option<StoredKey>)| {
            Some(KeyEntry::of_subject(key, stored?.usage, true))
        };
        Ok(keys.iter().zip(found).filter_map(entry).collect())
    }

    /// Scans one limit or penalty after the other, in the order of their families, which a reload does
    /// not change.
    fn scan_memory(&self, memory: &Memory) -> Result<KeyPage, FieldError> {
        let from = self.query.cursor.as_deref().map(MemoryCursor::parse).transpose()?;
        let mut owners: Vec<KeyOwner<'_>> = self.owners().collect();
        owners.sort_by_key(KeyOwner::family);
        let (mut page, mut last) = (KeyPage::default(), None);
        for owner in owners {
            let family = owner.family();
            if from.is_some_and(|from| family < from.family) {
                continue;
            }
            let mut after = from.filter(|from| from.family == family).map(|from| from.place);
            loop {
                let room = self.query.count - page.entries.len();
                if room == 0 || page.seen >= SEEN_MAX {
                    page.cursor = last.map(|cursor: MemoryCursor| cursor.format());
                    return Ok(page);
                }
                let part = memory.key_page(family, after, room.min(LOCKED_KEYS_MAX), self.now);
                page.seen += part.scanned;
                let keys = part.keys.into_iter();
                page.entries
                    .extend(keys.map(|(key, usage)| KeyEntry::of_memory(&owner, key, usage)));
                last = Some(MemoryCursor { family, place: part.next.unwrap_or(AFTER_ALL) });
                after = part.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(page)
    }

    async fn scan_store(&self, store: &SharedStore) -> Result<KeyPage, ErrorResponse> {
        self.check_unambiguous()?;
        let from = self.query.cursor.as_deref().map(str::parse::<Cursor>).transpose();
        let from = from.map_err(|error| FieldError::new("cursor", error.to_string()))?;
        let owner = self.owners().next().filter(|_| self.query.names_owner());
        let pattern = owner.as_ref().map_or_else(|| "*".to_owned(), KeyOwner::pattern);
        let page = store.redis().scan(&pattern, from.unwrap_or_default(), self.query.count).await?;
        let entry = |stored: StoredKey| {
            let owners: Vec<KeyOwner<'_>> = self.policies.owners_of_key(&stored.name).collect();
            self.selects_any(&owners).then(|| KeyEntry::of_store(stored, &owners))
        };
        Ok(KeyPage {
            entries: page.keys.into_iter().filter_map(entry).collect(),
            cursor: page.next.map(|cursor| cursor.to_string()),
            seen: page.seen,
        })
    }

    /// True if the query selects keys of one of these limits and penalties.
    fn selects_any(&self, owners: &[KeyOwner<'_>]) -> bool {
        let everything = !self.query.names_owner() && self.query.request.policy.is_none();
        let is_found =
            |selected: KeyOwner<'_>| owners.iter().any(|one| one.family() == selected.family());
        everything || self.owners().any(is_found)
    }
}

/// The last key of a page of the memory store.
#[derive(Clone, Copy)]
struct MemoryCursor {
    family: u64,
    place: KeyCursor,
}

impl MemoryCursor {
    fn format(&self) -> String {
        let (order, Key(key)) = self.place;
        format!("{:x}-{order:x}-{key:x}", self.family)
    }

    fn parse(text: &str) -> Result<Self, FieldError> {
        let numbers = text.split('-').map(|digits| u128::from_str_radix(digits, 16).ok());
        let numbers: Option<Vec<u128>> = numbers.collect();
        let cursor = match numbers.as_deref() {
            Some(&[family, order, key]) => u64::try_from(family)
                .and_then(|family| Ok(Self { family, place: (u64::try_from(order)?, Key(key)) }))
                .ok(),
            _ => None,
        };
        let detail = "expected the cursor of the page before";
        cursor.ok_or_else(|| FieldError::new("cursor", detail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_of_the_memory_is_read_as_it_was_written() {
        let place = (u64::MAX, Key(u128::MAX));
        let cursor = MemoryCursor { family: 7, place };
        let read = MemoryCursor::parse(&cursor.format()).unwrap_or_else(|_| panic!());
        assert_eq!((read.family, read.place), (7, place));
        for text in ["", "1", "1-2", "1-2-3-4", "x-1-1", "1-ffffffffffffffffff-1"] {
            assert!(MemoryCursor::parse(text).is_err(), "{text}");
        }
    }
}
