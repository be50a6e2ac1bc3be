//! Which server is the master now, as any of its sentinels tells.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::Value;

use super::dial::Made;
use super::{Dialer, Failure, Reason};
use crate::config::Server;

/// How long one sentinel is asked, before the next is.
const ANSWERS_WITHIN: Duration = Duration::from_millis(300);

/// The sentinels of one server.
pub(crate) struct Sentinels {
    sentinels: Vec<Server>,
    master: String,
    /// Most have no password, and those that have one share it with the server.
    dialers: [Dialer; 2],
    /// Who answered last, and is asked first.
    first: AtomicUsize,
}

impl Sentinels {
    pub(super) fn new(sentinels: Vec<Server>, master: String, dialer: &Dialer) -> Self {
        let dialers = [dialer.anonymous(), dialer.without_database()];
        Self { sentinels, master, dialers, first: AtomicUsize::new(0) }
    }

    /// Where the master is, as the first of them says that says anything.
    pub(super) async fn master(&self) -> Result<Server, Failure> {
        let first = self.first.load(Ordering::Relaxed);
        let mut failed = Failure::new(Reason::Connection, true, "there are no sentinels");
        for step in 0..self.sentinels.len() {
            let index = (first + step) % self.sentinels.len();
            match self.ask(&self.sentinels[index]).await {
                Ok(server) => {
                    self.first.store(index, Ordering::Relaxed);
                    return Ok(server);
                }
                Err(failure) => failed = failure,
            }
        }
        failed.error.detail = format!("no sentinel knows where it is: {}", failed.error.detail);
        Err(failed)
    }

    async fn ask(&self, sentinel: &Server) -> Result<Server, Failure> {
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master);
        let [plain, with_password] = &self.dialers;
        let reply = match plain.ask(sentinel, &command, ANSWERS_WITHIN).await {
            Err(failure) if failure.error.detail.contains("NOAUTH") => {
                with_password.ask(sentinel, &command, ANSWERS_WITHIN).await
            }
            replied => replied,
        };
        let detail = || format!("{sentinel} does not know `{}`", self.master);
        address(&reply?).ok_or_else(|| Failure::new(Reason::Connection, true, detail()))
    }
}

/// Refuses a server that is no master: one that was, or is about to be.
pub(super) async fn check_role(made: &mut Made) -> Result<(), Failure> {
    let reply = made.send(&redis::cmd("ROLE")).await?;
    let is_master = matches!(&reply, Value::Array(parts)
        if matches!(parts.first(), Some(Value::BulkString(role)) if role == b"master"));
    let detail = "the sentinels name a server that is no master";
    is_master.then_some(()).ok_or_else(|| Failure::new(Reason::Connection, true, detail))
}

fn address(reply: &Value) -> Option<Server> {
    let Value::Array(parts) = reply else { return None };
    let [Value::BulkString(host), Value::BulkString(port)] = parts.as_slice() else { return None };
    let port = str::from_utf8(port).ok()?.parse().ok()?;
    Some(Server { host: String::from_utf8(host.clone()).ok()?, port })
}
