//! For operators: lists the states of a server, inspects them and deletes them.
//!
//! States are listed with SCAN, never with KEYS, so that the server goes on answering. A script of its
//! own reads them, so that only scripts know the format of values.

mod inspect_reply;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tidegate::engine::store::{KeyUsage, StoreError};
use tokio::time::Instant;

use crate::connection::{Failure, ScriptCall};
use crate::keys;
use crate::script;
use crate::store::{RedisStore, Shard, ShardHandle};

/// Operators wait longer than requests do.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the search for one page may take.
const PAGE: Duration = Duration::from_millis(500);
/// The COUNT of one SCAN.
const STEP: std::ops::RangeInclusive<usize> = 10..=1_000;
/// How many states are inspected in one call.
const INSPECT_MAX: usize = 100;

/// A position between two pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The index of the server.
    shard: usize,
    /// The server's own cursor.
    at: u64,
}

/// Some of the states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// The states; one that changes meanwhile may be listed twice.
    pub keys: Vec<StoredKey>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<Cursor>,
    /// About how many keys the servers went through.
    pub seen: usize,
}

/// A state in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredKey {
    /// Its name, without the deployment's prefix.
    pub name: String,
    /// What it holds, or why that cannot be read.
    pub usage: Result<KeyUsage, String>,
}

impl RedisStore {
    /// The states whose names match a pattern. A page ends when it has `count` of them, which the last
    /// step may exceed, or after half a second. The deployment's own keys are not among them.
    ///
    /// # Errors
    /// A server does not answer.
    pub async fn scan(
        &self,
        pattern: &str,
        from: Cursor,
        count: usize,
    ) -> Result<Page, StoreError> {
        let (until, step) = (Instant::now() + PAGE, count.clamp(*STEP.start(), *STEP.end()));
        let shards = self.sorted_shards();
        let (mut page, mut cursor) = (Page::default(), from);
        while let Some(shard) = shards.get(cursor.shard).map(|handle| &handle.shard) {
            let (at, names) = shard.scan_step(pattern, cursor.at, step).await?;
            page.seen += step;
            page.keys.extend(shard.inspect(&names).await?.into_iter().flatten());
            cursor = match at {
                0 => Cursor { shard: cursor.shard + 1, at: 0 },
                at => Cursor { at, ..cursor },
            };
            if page.keys.len() >= count || Instant::now() >= until {
                break;
            }
        }
        page.next = (cursor.shard < shards.len()).then_some(cursor);
        Ok(page)
    }

    /// What states hold, by their names; `None` for each that does not exist.
    ///
    /// # Errors
    /// A server does not answer.
    pub async fn inspect(&self, names: &[Arc<str>]) -> Result<Vec<Option<StoredKey>>, StoreError> {
        let shard_of = |name: &Arc<str>| self.topology().shard_of_name(name);
        let share_shard = |one: &Arc<str>, other: &Arc<str>| {
            let same = shard_of(one).ok().zip(shard_of(other).ok());
            same.is_some_and(|(one, other)| Arc::ptr_eq(&one, &other))
        };
        let mut found = Vec::with_capacity(names.len());
        for group in names.chunk_by(share_shard) {
            let handle = shard_of(&group[0])?;
            let group: Vec<String> = group.iter().map(|name| String::from(&**name)).collect();
            found.extend(handle.shard.inspect(&group).await?);
        }
        Ok(found)
    }

    /// Deletes states that cannot be read, by their names; returns how many there were. States that can
    /// be read should be [reset](tidegate::engine::store::Change::Reset), so that all nodes are told.
    ///
    /// # Errors
    /// A server does not answer; some states may be gone.
    pub async fn delete(&self, names: &[Arc<str>]) -> Result<u64, StoreError> {
        let mut deleted = 0;
        for name in names {
            let handle = self.topology().shard_of_name(name)?;
            let mut delete = redis::cmd("DEL");
            delete.arg(keys::named(&handle.shard.deployment.key_prefix, name));
            let reply = handle.shard.connection.send(&delete, Instant::now() + PATIENCE).await;
            deleted += u64::from(matches!(reply?, Value::Int(1)));
        }
        Ok(deleted)
    }

    /// All servers, in the same order each time.
    fn sorted_shards(&self) -> Vec<Arc<ShardHandle>> {
        let mut shards = self.topology().shards();
        shards.sort_by(|one, other| one.shard.address.cmp(&other.shard.address));
        shards
    }
}

impl Shard {
    /// The server's next cursor, and the names of the states between the two.
    async fn scan_step(
        &self,
        pattern: &str,
        at: u64,
        count: usize,
    ) -> Result<(u64, Vec<String>), Failure> {
        let prefix = &self.deployment.key_prefix;
        let mut scan = redis::cmd("SCAN");
        scan.arg(at).arg("MATCH").arg(keys::named(prefix, pattern)).arg("COUNT").arg(count);
        let reply = self.connection.send(&scan, Instant::now() + PATIENCE).await?;
        let unreadable = |_| Failure::unreadable("the reply to a SCAN has another shape");
        let (next, found): (u64, Vec<Vec<u8>>) =
            redis::from_redis_value(reply).map_err(unreadable)?;
        let names = found.iter().filter_map(|key| keys::name_in(prefix, key));
        Ok((next, names.map(str::to_owned).collect()))
    }

    async fn inspect(&self, names: &[String]) -> Result<Vec<Option<StoredKey>>, Failure> {
        // In a cluster, each name may lie in a slot of its own.
        let names_per_call = if self.deployment.is_sharded { 1 } else { INSPECT_MAX };
        let mut inspected = Vec::with_capacity(names.len());
        for page in names.chunks(INSPECT_MAX) {
            let call = |names: &[String]| {
                let prefix = &self.deployment.key_prefix;
                let keys = names.iter().map(|name| keys::named(prefix, name)).collect();
                ScriptCall { keys, arguments: vec![Vec::new()], asking: false }
            };
            let calls: Vec<ScriptCall> = page.chunks(names_per_call).map(call).collect();
            let deadline = Instant::now() + PATIENCE;
            let replies = self.connection.eval_all(&script::INSPECT, &calls, deadline).await?;
            for (names, reply) in page.chunks(names_per_call).zip(replies) {
                inspected.extend(inspect_reply::read(names, reply?)?);
            }
        }
        Ok(inspected)
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.shard, self.at)
    }
}

impl FromStr for Cursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, CursorError> {
        let (shard, at) = text.split_once('-').ok_or(CursorError)?;
        let shard = shard.parse().map_err(|_| CursorError)?;
        Ok(Self { shard, at: at.parse().map_err(|_| CursorError)? })
    }
}

/// A text that is no cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CursorError;

impl fmt::Display for CursorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected the cursor of the page before")
    }
}

impl std::error::Error for CursorError {}

#[cfg(test)]
mod tests;
