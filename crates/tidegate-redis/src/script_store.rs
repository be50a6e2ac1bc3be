//! The script by itself, without batching, retries or caches: one call for each command, at the time
//! that the command says.
//!
//! Tests use it because they must set the store's clock, and benchmarks to measure the script alone.

use std::fmt;
use std::future::{Future, ready};
use std::sync::{Arc, Mutex};

use redis::Connection;
use tidegate::clock::Now;
use tidegate::engine::plan::Plan;
use tidegate::engine::store::{Amendment, AmendmentResults, Answer, Store, StoreError};

use crate::codec::{self, Command, Response};
use crate::connection::Failure;
use crate::loans::{LoanReply, LoanRequest};
use crate::script::{self, Time};
use crate::{keys, lock};

/// A store on a blocking connection.
pub struct ScriptStore {
    connection: Mutex<Connection>,
    prefix: String,
    sha1: String,
}

impl fmt::Debug for ScriptStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptStore").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl ScriptStore {
    /// Loads the script.
    ///
    /// # Errors
    /// The server's own.
    pub fn new(connection: Connection, prefix: &str) -> redis::RedisResult<Self> {
        Self::with_script(connection, prefix, script::DECIDE.text)
    }

    /// Loads the script without its general path: commands that need it fail.
    ///
    /// # Errors
    /// The server's own.
    pub fn fast_path_only(connection: Connection, prefix: &str) -> redis::RedisResult<Self> {
        let text = script::DECIDE.text.replace(
            script::GENERAL_PATH,
            &format!("error('the general path') {}", script::GENERAL_PATH),
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

    /// Decides plans in one call. With an idempotency key and a number it can be sent twice.
    ///
    /// # Errors
    /// The server's own.
    pub fn decide_all(
        &self,
        time: Time,
        idempotency: Option<(&str, u64)>,
        plans: Vec<Plan>,
    ) -> Result<Vec<Result<Answer, StoreError>>, StoreError> {
        let plans = plans.into_iter().map(|plan| Command::Decide(Arc::new(plan)));
        let responses = self.call(time, idempotency, &plans.collect::<Vec<_>>())?;
        Ok(responses.into_iter().map(|response| Ok(response?.into_answer()?)).collect())
    }

    /// Lends tokens at this time.
    ///
    /// # Errors
    /// The server's own.
    pub fn lend(&self, now: Now, request: LoanRequest) -> Result<LoanReply, StoreError> {
        Ok(self.execute(now, Command::Lend(Arc::new(request)))?.into_loan_reply()?)
    }

    fn call(
        &self,
        time: Time,
        idempotency: Option<(&str, u64)>,
        commands: &[Command],
    ) -> Result<Vec<Result<Response, StoreError>>, StoreError> {
        let codec::EncodedBatch { mut keys, arguments, layout } =
            codec::encode(commands, &self.prefix);
        keys.extend(idempotency.map(|(name, _)| keys::idempotency(&self.prefix, name)));
        let header = script::header(time, idempotency.map(|(_, number)| number));
        let mut call = redis::cmd("EVALSHA");
        call.arg(&self.sha1).arg(keys.len()).arg(keys).arg(header).arg(arguments);
        let reply: Vec<u8> = call
            .query(&mut *lock(&self.connection))
            .map_err(|error| StoreError { transient: true, detail: error.to_string() })?;
        codec::decode(&commands.iter().collect::<Vec<_>>(), &layout, &reply)
            .ok_or_else(|| Failure::malformed("a reply of another format").into())
    }

    fn execute(&self, now: Now, command: Command) -> Result<Response, StoreError> {
        let mut responses = self.call(Time::Fixed(now.unix_us), None, &[command])?;
        responses.pop().unwrap_or_else(|| Err(Failure::no_reply().into()))
    }
}

impl Store for ScriptStore {
    fn names_keys(&self) -> bool {
        true
    }

    fn decide(&self, plan: &Plan) -> impl Future<Output = Result<Answer, StoreError>> + Send {
        let response = self.execute(plan.now, Command::Decide(Arc::new(plan.clone())));
        ready(response.and_then(|response| Ok(response.into_answer()?)))
    }

    fn amend(
        &self,
        now: Now,
        amendments: &[Amendment],
    ) -> impl Future<Output = Result<AmendmentResults, StoreError>> + Send {
        let response = self.execute(now, Command::Amend(amendments.into()));
        ready(response.and_then(|response| Ok(response.into_amended()?)))
    }

    /// Nothing to prepare: a server has no tables per limit.
    fn announce(&self, _families: &[u64]) {}
}
