//! Finds keys: one by its name, those of a subject, or those of a limit page by page.

use std::sync::Arc;

use tidegate::clock::Now;
use tidegate::store::{KeyCursor, Memory, StoreError};
use tidegate::{ActivePolicies, Key, KeyedLimit, SubjectKey};
use tidegate_redis::{Cursor, StoredKey};

use super::Failure;
use super::entry::Entry;
use super::query::{Query, shown};
use crate::app::App;
use crate::engine::{DaemonStore, Engine};
use crate::shared::SharedStore;

/// How many keys of the memory are looked at while its table is held.
const HELD_FOR: usize = 256;
/// How many of them for one page.
const SEEN_MAX: usize = 20_000;

/// Behind all keys of a limit.
const BEHIND_ALL: KeyCursor = (u64::MAX, Key(u128::MAX));

/// Some keys.
#[derive(Default)]
pub(super) struct Page {
    pub(super) entries: Vec<Entry>,
    /// Where the next page begins; `None` behind the last.
    pub(super) cursor: Option<String>,
    /// How many keys were gone through.
    pub(super) seen: usize,
}

/// The page that is asked for.
pub(super) async fn page(app: &App, query: &Query<'_>) -> Result<Page, Failure> {
    let active_policies = app.engine.active_policies();
    let asked = Asked { query, active_policies: &active_policies, now: app.now() };
    asked.check()?;
    match app.engine.store() {
        DaemonStore::Memory(memory) => asked.in_memory(&app.engine, memory),
        DaemonStore::Shared(store) => asked.in_store(&app.engine, store).await,
    }
}

struct Asked<'a> {
    query: &'a Query<'a>,
    active_policies: &'a ActivePolicies,
    now: Now,
}

impl Asked<'_> {
    /// Policy and limit must be there: a misspelt one is not one without keys.
    fn check(&self) -> Result<(), Failure> {
        let (policy, limit) = (self.query.request.policy.as_deref(), self.query.limit.as_deref());
        let is_known = |name: &&str| self.active_policies.names().any(|known| known == *name);
        if let Some(name) = policy.filter(|name| !is_known(name)) {
            let detail = format!("found `{}`, expected the name of a policy in force", shown(name));
            return Err(Failure::of_field("policy", detail));
        }
        match limit.filter(|_| self.keyed_limits().next().is_none()) {
            None => Ok(()),
            Some(name) => {
                let expected = "expected a limit of the policy, and one that keeps counts";
                Err(Failure::of_field("limit", format!("found `{}`, {expected}", shown(name))))
            }
        }
    }

    /// In a shared store the keys of limits that are called the same in several policies cannot be told
    /// apart by their names, unless they have a template. They are shown together, not deleted.
    fn check_apart(&self) -> Result<(), Failure> {
        let twins = |limit: &KeyedLimit<'_>| {
            let twin = |owner: &KeyedLimit<'_>| owner.pattern() == limit.pattern();
            self.active_policies.keyed_limits().filter(twin).count() > 1
        };
        if self.query.deletes && self.keyed_limits().any(|limit| twins(&limit)) {
            let detail = "is in several policies, and the names of their keys do not tell which: \
                          say a subject, or a key";
            return Err(Failure::of_field("limit", detail));
        }
        Ok(())
    }

    /// The limits whose keys are asked for. One that is named is of the first policy, unless another
    /// is said.
    fn keyed_limits(&self) -> impl Iterator<Item = KeyedLimit<'_>> {
        let limit = self.query.limit.as_deref();
        let first = self.active_policies.names().next().filter(|_| limit.is_some());
        let policy = self.query.request.policy.as_deref().or(first);
        self.active_policies.keyed_limits().filter(move |owner| {
            policy.is_none_or(|name| owner.policy() == name)
                && limit.is_none_or(|name| owner.limit().name() == name)
        })
    }

    fn in_memory(&self, engine: &Engine, memory: &Memory) -> Result<Page, Failure> {
        let query = self.query;
        let entries = if let Some(name) = &query.key {
            self.one_of_memory(memory, name)
        } else if query.has_subject() {
            let keys = engine.keys_of(&query.request, query.limit.as_deref())?;
            let entry = |key: &SubjectKey| {
                let counted = memory.key_usage(key.level.family, key.level.key, self.now)?;
                Some(Entry::of_subject(key, Ok(counted), false))
            };
            keys.iter().filter_map(entry).collect()
        } else {
            return self.page_of_memory(memory);
        };
        Ok(Page { seen: entries.len(), entries, cursor: None })
    }

    fn one_of_memory(&self, memory: &Memory, name: &str) -> Vec<Entry> {
        let found = self.active_policies.keyed_limits().find_map(|owner| {
            let key = memory.find_key(owner.family(), owner.keys_called(name)?)?;
            let counted = memory.key_usage(owner.family(), key, self.now)?;
            Some(Entry::of_memory(&owner, key, counted))
        });
        found.into_iter().collect()
    }

    /// Limit by limit, in the order of their numbers, which a reload does not change.
    fn page_of_memory(&self, memory: &Memory) -> Result<Page, Failure> {
        let from = self.query.cursor.as_deref().map(MemoryCursor::parse).transpose()?;
        let mut keyed_limits: Vec<KeyedLimit<'_>> = self.keyed_limits().collect();
        keyed_limits.sort_by_key(KeyedLimit::family);
        let (mut page, mut last) = (Page::default(), None);
        for owner in keyed_limits {
            let family = owner.family();
            if from.is_some_and(|from| family < from.family) {
                continue;
            }
            let mut after = from.filter(|from| from.family == family).map(|from| from.place);
            loop {
                let room = self.query.count - page.entries.len();
                if room == 0 || page.seen >= SEEN_MAX {
                    page.cursor = last.map(|cursor: MemoryCursor| cursor.written());
                    return Ok(page);
                }
                let some = memory.key_page(family, after, room.min(HELD_FOR), self.now);
                page.seen += some.scanned;
                let found = some.keys.into_iter();
                page.entries.extend(found.map(|(key, held)| Entry::of_memory(&owner, key, held)));
                last = Some(MemoryCursor { family, place: some.next.unwrap_or(BEHIND_ALL) });
                after = some.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(page)
    }

    async fn in_store(&self, engine: &Engine, store: &SharedStore) -> Result<Page, Failure> {
        let query = self.query;
        let entries = if let Some(name) = &query.key {
            let found = store.inspect(&[(&**name).into()]).await?;
            let keyed_limits: Vec<KeyedLimit<'_>> =
                self.active_policies.limits_of_key(name).collect();
            found.into_iter().flatten().map(|found| Entry::of_found(found, &keyed_limits)).collect()
        } else if query.has_subject() {
            let keys = engine.keys_of(&query.request, query.limit.as_deref())?;
            self.of_subject(store, &keys).await?
        } else {
            return self.page_of_store(store).await;
        };
        Ok(Page { seen: entries.len(), entries, cursor: None })
    }

    async fn of_subject(
        &self,
        store: &SharedStore,
        keys: &[SubjectKey],
    ) -> Result<Vec<Entry>, StoreError> {
        let names: Vec<Arc<str>> = keys.iter().map(|key| Arc::clone(&key.name)).collect();
        let found = store.inspect(&names).await?;
        let entry = |(key, found): (&SubjectKey, Option<StoredKey>)| {
            Some(Entry::of_subject(key, found?.usage, true))
        };
        Ok(keys.iter().zip(found).filter_map(entry).collect())
    }

    async fn page_of_store(&self, store: &SharedStore) -> Result<Page, Failure> {
        let query = self.query;
        self.check_apart()?;
        let from = query.cursor.as_deref().map(str::parse::<Cursor>).transpose();
        let from = from.map_err(|error| Failure::of_field("cursor", error.to_string()))?;
        let limit = query.limit.as_ref().and_then(|_| self.keyed_limits().next());
        let pattern = limit.as_ref().map_or_else(|| "*".to_owned(), KeyedLimit::pattern);
        let page = store.redis().scan(&pattern, from.unwrap_or_default(), query.count).await?;
        let entry = |found: StoredKey| {
            let keyed_limits: Vec<KeyedLimit<'_>> =
                self.active_policies.limits_of_key(&found.name).collect();
            self.are_asked_for(&keyed_limits).then(|| Entry::of_found(found, &keyed_limits))
        };
        Ok(Page {
            entries: page.keys.into_iter().filter_map(entry).collect(),
            cursor: page.next.map(|cursor| cursor.to_string()),
            seen: page.seen,
        })
    }

    /// Whether a key of these limits is asked for.
    fn are_asked_for(&self, keyed_limits: &[KeyedLimit<'_>]) -> bool {
        let everything = self.query.limit.is_none() && self.query.request.policy.is_none();
        let is = |owner: &KeyedLimit<'_>, other: &KeyedLimit<'_>| owner.family() == other.family();
        everything
            || self.keyed_limits().any(|asked| keyed_limits.iter().any(|owner| is(owner, &asked)))
    }
}

/// A place between two pages of the memory.
#[derive(Clone, Copy)]
struct MemoryCursor {
    family: u64,
    place: KeyCursor,
}

impl MemoryCursor {
    fn written(&self) -> String {
        let (order, Key(key)) = self.place;
        format!("{:x}-{order:x}-{key:x}", self.family)
    }

    fn parse(text: &str) -> Result<Self, Failure> {
        let mut numbers = text.split('-').map(|digits| u128::from_str_radix(digits, 16).ok());
        let read = (numbers.next(), numbers.next(), numbers.next(), numbers.next());
        let cursor = match read {
            (Some(Some(family)), Some(Some(order)), Some(Some(key)), None) => {
                let narrow = |number: u128| u64::try_from(number).ok();
                narrow(family)
                    .zip(narrow(order))
                    .map(|(family, order)| Self { family, place: (order, Key(key)) })
            }
            _ => None,
        };
        let detail = "expected the cursor of the page before";
        cursor.ok_or_else(|| Failure::of_field("cursor", detail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_of_the_memory_is_read_as_it_was_written() {
        let place = (u64::MAX, Key(u128::MAX));
        let cursor = MemoryCursor { family: 7, place };
        let read = MemoryCursor::parse(&cursor.written()).unwrap_or_else(|_| panic!());
        assert_eq!((read.family, read.place), (7, place));
        for text in ["", "1", "1-2", "1-2-3-4", "x-1-1", "1-ffffffffffffffffff-1"] {
            assert!(MemoryCursor::parse(text).is_err(), "{text}");
        }
    }
}
