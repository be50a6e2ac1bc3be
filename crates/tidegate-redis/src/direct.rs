//! The script without anything around it: one call for each ask, at the time that the ask says.
//!
//! For tests, which must set the store's clock, and for measurements of the script alone.

use std::fmt;
use std::future::{Future, ready};
use std::sync::{Mutex, PoisonError};

use redis::Connection;
use tidegate::clock::Now;
use tidegate::plan::Plan;
use tidegate::store::{Amended, Amendment, Answer, Store, StoreError};

use crate::codec::{self, Ask, Told};
use crate::keys;
use crate::leases::{Lent, Loan};
use crate::script::{self, Sequence, Time};

/// A connection that waits.
pub struct Direct {
    connection: Mutex<Connection>,
    prefix: String,
    sha1: String,
}

impl fmt::Debug for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Direct").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Direct {
    /// Loads the script.
    ///
    /// # Errors
    /// What the server says.
    pub fn new(connection: Connection, prefix: &str) -> redis::RedisResult<Self> {
        Self::with_script(connection, prefix, script::TEXT)
    }

    /// Loads the script without its machinery: asks that need it fail.
    ///
    /// # Errors
    /// What the server says.
    pub fn quick_only(connection: Connection, prefix: &str) -> redis::RedisResult<Self> {
        let text = script::TEXT.replace(
            "if not answer then answer",
            "error('the machinery') if not answer then answer",
        );
        Self::with_script(connection, prefix, &text)
    }

    fn with_script(
        mut connection: Connection,
        prefix: &str,
        text: &str,
    ) -> redis::RedisResult<Self> {
        let script = redis::Script::new(text);
        script.prepare_invoke().load(&mut connection)?;
        let (connection, sha1) = (Mutex::new(connection), script.get_hash().to_owned());
        Ok(Self { connection, prefix: prefix.to_owned(), sha1 })
    }

    /// Decides plans in one call.
    ///
    /// # Errors
    /// What the server says.
    pub fn decide_all(
        &self,
        time: Time,
        plans: Vec<Plan>,
    ) -> Result<Vec<Result<Answer, StoreError>>, StoreError> {
        self.decide_numbered(time, None, plans)
    }

    /// The same as the batch of a lane with this number, which can be sent twice.
    ///
    /// # Errors
    /// What the server says.
    pub fn decide_numbered(
        &self,
        time: Time,
        lane: Option<(&str, u64)>,
        plans: Vec<Plan>,
    ) -> Result<Vec<Result<Answer, StoreError>>, StoreError> {
        let asks: Vec<Ask> = plans.into_iter().map(Ask::Decide).collect();
        let told = self.call(time, lane, &asks)?;
        Ok(told.into_iter().map(|told| told.and_then(answer)).collect())
    }

    /// Lends tokens, as if the time were this.
    ///
    /// # Errors
    /// What the server says.
    pub fn lend(&self, now: Now, loan: Loan) -> Result<Lent, StoreError> {
        match self.one(now, Ask::Lend(loan))? {
            Told::Lent(lent) => Ok(lent),
            _ => Err(unexpected()),
        }
    }

    fn call(
        &self,
        time: Time,
        lane: Option<(&str, u64)>,
        asks: &[Ask],
    ) -> Result<Vec<Result<Told, StoreError>>, StoreError> {
        let codec::Packed { mut keys, arguments, layout } = codec::encode(asks, &self.prefix);
        keys.extend(lane.map(|(lane, _)| keys::lane(&self.prefix, lane)));
        let sequence = lane.map(|(_, number)| Sequence(number));
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sha1).arg(keys.len()).arg(keys);
        command.arg(script::header(time, sequence)).arg(arguments);
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let reply: Vec<u8> = command
            .query(&mut *connection)
            .map_err(|error| StoreError { transient: true, detail: error.to_string() })?;
        codec::decode(&asks.iter().collect::<Vec<_>>(), &layout, &reply)
    }

    fn one(&self, now: Now, ask: Ask) -> Result<Told, StoreError> {
        let mut told = self.call(Time::Fixed(now.unix_us), None, &[ask])?;
        told.pop().unwrap_or_else(|| Err(unexpected()))
    }
}

impl Store for Direct {
    fn names_keys(&self) -> bool {
        true
    }

    fn decide(&self, plan: &Plan) -> impl Future<Output = Result<Answer, StoreError>> + Send {
        ready(self.one(plan.now, Ask::Decide(plan.clone())).and_then(answer))
    }

    fn amend(
        &self,
        now: Now,
        amendments: &[Amendment],
    ) -> impl Future<Output = Result<Amended, StoreError>> + Send {
        ready(self.one(now, Ask::Amend(amendments.to_vec())).and_then(|told| match told {
            Told::Amended(amended) => Ok(amended),
            _ => Err(unexpected()),
        }))
    }

    /// The server has no shares.
    fn announce(&self, _families: &[u64]) {}
}

fn answer(told: Told) -> Result<Answer, StoreError> {
    match told {
        Told::Decided(answer) => Ok(answer),
        _ => Err(unexpected()),
    }
}

fn unexpected() -> StoreError {
    StoreError { transient: false, detail: "an answer to something else".to_owned() }
}
