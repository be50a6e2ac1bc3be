//! Sentinels, which know the server that is the primary now.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::Value;

use super::dial::OpenConnection;
use super::{Dialer, Failure, Reason};
use crate::config::Server;

/// How long one sentinel may take, before the next is asked.
const TIMEOUT: Duration = Duration::from_millis(300);

/// The sentinels of one primary.
pub(crate) struct Sentinels {
    sentinels: Vec<Server>,
    primary: String,
    /// Most sentinels have no password; the others have that of the server.
    dialers: [Dialer; 2],
    /// The index of the one that answered last, and is asked first.
    first: AtomicUsize,
}

impl Sentinels {
    pub(super) fn new(sentinels: Vec<Server>, primary: String, dialer: &Dialer) -> Self {
        let dialers = [dialer.anonymous(), dialer.without_database()];
        Self { sentinels, primary, dialers, first: AtomicUsize::new(0) }
    }

    /// The address of the primary, from the first sentinel that answers.
    pub(super) async fn primary(&self) -> Result<Server, Failure> {
        let first = self.first.load(Ordering::Relaxed);
        let mut last_failure = Failure::new(Reason::Connection, true, "there are no sentinels");
        for step in 0..self.sentinels.len() {
            let index = (first + step) % self.sentinels.len();
            match self.ask(&self.sentinels[index]).await {
                Ok(server) => {
                    self.first.store(index, Ordering::Relaxed);
                    return Ok(server);
                }
                Err(failure) => last_failure = failure,
            }
        }
        let detail = &mut last_failure.error.detail;
        *detail = format!("no sentinel knows where it is: {detail}");
        Err(last_failure)
    }

    async fn ask(&self, sentinel: &Server) -> Result<Server, Failure> {
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.primary);
        let [plain, with_password] = &self.dialers;
        let reply = match plain.ask(sentinel, &command, TIMEOUT).await {
            Err(failure) if failure.error.detail.contains("NOAUTH") => {
                with_password.ask(sentinel, &command, TIMEOUT).await
            }
            replied => replied,
        };
        let detail = || format!("{sentinel} does not know `{}`", self.primary);
        address(&reply?).ok_or_else(|| Failure::new(Reason::Connection, true, detail()))
    }
}

/// Refuses a server that is no primary: one that no longer is, or is not yet.
pub(super) async fn check_role(open: &mut OpenConnection) -> Result<(), Failure> {
    let reply = open.send(&redis::cmd("ROLE")).await?;
    let is_primary = matches!(&reply, Value::Array(fields)
        if matches!(fields.first(), Some(Value::BulkString(role)) if role == b"master"));
    let detail = "the sentinels name a server that is no master";
    is_primary.then_some(()).ok_or_else(|| Failure::new(Reason::Connection, true, detail))
}

fn address(reply: &Value) -> Option<Server> {
    let Value::Array(fields) = reply else { return None };
    let [Value::BulkString(host), Value::BulkString(port)] = fields.as_slice() else { return None };
    let port = str::from_utf8(port).ok()?.parse().ok()?;
    Some(Server { host: String::from_utf8(host.clone()).ok()?, port })
}
