//! Looking into the server, as operators do: which keys there are, what they hold, and away with them.
//!
//! Keys are found with SCAN, never with KEYS: a server that is looked into goes on answering. What it
//! finds is read by a script of its own, so that values stay the script's.

mod looked;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tidegate::store::{KeyUsage, StoreError};
use tokio::time::Instant;

use crate::connection::{Failure, Run};
use crate::keys;
use crate::script;
use crate::store::{Member, RedisStore, Shard};

/// Operators wait longer than requests do.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long one page may take to be found: nobody else waits for it.
const PAGE: Duration = Duration::from_millis(500);
/// How many keys the server is told to go through in one call.
const STEP: std::ops::RangeInclusive<usize> = 10..=1_000;
/// How many keys are read in one call.
const LOOKED_AT_ONCE: usize = 100;

/// A place between two pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Which server.
    shard: usize,
    /// The server's own cursor.
    at: u64,
}

/// Some of the keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// Those that were found; one that changes meanwhile may be found twice.
    pub keys: Vec<Found>,
    /// Where the next page begins; `None` behind the last.
    pub next: Option<Cursor>,
    /// How many keys the servers went through for it, about.
    pub seen: usize,
}

/// A key that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// Its name, without the deployment's prefix.
    pub name: String,
    /// What it holds, or why that cannot be read.
    pub counted: Result<KeyUsage, String>,
}

impl RedisStore {
    /// The states whose names match a pattern, from a place on: a page ends when it has `count` of
    /// them, which the last step may go over, or after half a second. The deployment's own keys are not
    /// among them.
    ///
    /// # Errors
    /// A server cannot be asked.
    pub async fn scan(
        &self,
        pattern: &str,
        from: Cursor,
        count: usize,
    ) -> Result<Page, StoreError> {
        let (until, step) = (Instant::now() + PAGE, count.clamp(*STEP.start(), *STEP.end()));
        let members = self.members();
        let (mut page, mut cursor) = (Page::default(), from);
        while let Some(shard) = members.get(cursor.shard).map(|member| &member.shard) {
            let (at, names) = shard.step(pattern, cursor.at, step).await.map_err(error)?;
            page.seen += step;
            page.keys.extend(shard.look(&names).await.map_err(error)?.into_iter().flatten());
            cursor = match at {
                0 => Cursor { shard: cursor.shard + 1, at: 0 },
                at => Cursor { at, ..cursor },
            };
            if page.keys.len() >= count || Instant::now() >= until {
                break;
            }
        }
        page.next = (cursor.shard < members.len()).then_some(cursor);
        Ok(page)
    }

    /// What states hold, by their names; `None` for each that is not there.
    ///
    /// # Errors
    /// A server cannot be asked.
    pub async fn look(&self, names: &[Arc<str>]) -> Result<Vec<Option<Found>>, StoreError> {
        let (mut found, mut left) = (Vec::with_capacity(names.len()), names);
        while let Some(first) = left.first() {
            let member = self.topology().member_of(first).map_err(error)?;
            let same = |name: &&Arc<str>| {
                let other = self.topology().member_of(name);
                other.is_ok_and(|other| Arc::ptr_eq(&other, &member))
            };
            let (here, further) = left.split_at(left.iter().take_while(same).count().max(1));
            let here: Vec<String> = here.iter().map(|name| String::from(&**name)).collect();
            found.extend(member.shard.look(&here).await.map_err(error)?);
            left = further;
        }
        Ok(found)
    }

    /// Deletes states that cannot be read, by their names; returns how many there were. Whatever can be
    /// read is rather [reset](tidegate::store::Change::Reset), so that all nodes hear of it.
    ///
    /// # Errors
    /// A server cannot be asked; some may be gone.
    pub async fn delete(&self, names: &[Arc<str>]) -> Result<u64, StoreError> {
        let mut gone = 0;
        for name in names {
            let member = self.topology().member_of(name).map_err(error)?;
            let mut delete = redis::cmd("DEL");
            delete.arg(keys::named(member.shard.front(), name));
            let reply = member.shard.connection.send(&delete, Instant::now() + PATIENCE).await;
            if let Value::Int(1) = reply.map_err(error)? {
                gone += 1;
            }
        }
        Ok(gone)
    }

    /// All servers that hold keys, in the same order each time.
    fn members(&self) -> Vec<Arc<Member>> {
        let mut members = self.topology().members();
        members.sort_by(|one, other| one.shard.address.cmp(&other.shard.address));
        members
    }
}

impl Shard {
    /// The server's next cursor, and the names of the states between the two.
    async fn step(
        &self,
        pattern: &str,
        at: u64,
        count: usize,
    ) -> Result<(u64, Vec<String>), Failure> {
        let mut scan = redis::cmd("SCAN");
        scan.arg(at).arg("MATCH").arg(keys::named(self.front(), pattern)).arg("COUNT").arg(count);
        let reply = self.connection.send(&scan, Instant::now() + PATIENCE).await?;
        let unreadable = || Failure::unreadable("the reply to a SCAN has another shape");
        let (next, found): (u64, Vec<Vec<u8>>) =
            redis::from_redis_value(reply).map_err(|_| unreadable())?;
        let names = found.iter().filter_map(|key| keys::name_in(self.front(), key));
        Ok((next, names.map(str::to_owned).collect()))
    }

    async fn look(&self, names: &[String]) -> Result<Vec<Option<Found>>, Failure> {
        // In a cluster, each name may lie in a slot of its own.
        let together = if self.is_in_slots() { 1 } else { LOOKED_AT_ONCE };
        let mut looked = Vec::with_capacity(names.len());
        for page in names.chunks(LOOKED_AT_ONCE) {
            let run = |names: &[String]| {
                let keys = names.iter().map(|name| keys::named(self.front(), name)).collect();
                Run { keys, arguments: vec![Vec::new()], asking: false }
            };
            let runs: Vec<Run> = page.chunks(together).map(run).collect();
            let deadline = Instant::now() + PATIENCE;
            let replies = self.connection.run_all(script::look(), &runs, deadline).await?;
            for (names, reply) in page.chunks(together).zip(replies) {
                looked.extend(looked::read(names, reply?)?);
            }
        }
        Ok(looked)
    }
}

fn error(failure: Failure) -> StoreError {
    failure.error
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.shard, self.at)
    }
}

impl FromStr for Cursor {
    type Err = NoCursor;

    fn from_str(text: &str) -> Result<Self, NoCursor> {
        let (shard, at) = text.split_once('-').ok_or(NoCursor)?;
        let shard = shard.parse().map_err(|_| NoCursor)?;
        Ok(Self { shard, at: at.parse().map_err(|_| NoCursor)? })
    }
}

/// A text that no page ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoCursor;

impl fmt::Display for NoCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected the cursor of the page before")
    }
}

impl std::error::Error for NoCursor {}

#[cfg(test)]
mod tests;
