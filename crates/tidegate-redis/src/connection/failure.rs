//! Why a call was not answered.

use std::io;
use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerError};
use tidegate::StoreError;

use crate::config::Server;

/// The kinds of failures, as they are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// There was no answer in time.
    Timeout,
    /// There was no connection, or it broke.
    Connection,
    /// The server answered with an error.
    Refused,
    /// The server answered, but its answer about this key could not be read.
    Unreadable,
    /// The server answered something else than what was asked.
    Malformed,
    /// Too many commands waited.
    Overload,
    /// The store was not asked, because it failed before.
    Open,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Timeout,
        Self::Connection,
        Self::Refused,
        Self::Unreadable,
        Self::Malformed,
        Self::Overload,
        Self::Open,
    ];

    /// Its name in status, metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Connection => "connection",
            Self::Refused => "refused",
            Self::Unreadable => "unreadable",
            Self::Malformed => "malformed",
            Self::Overload => "overload",
            Self::Open => "open",
        }
    }
}

/// Why a call was not answered, and what may help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) reason: Reason,
    pub(crate) error: StoreError,
    pub(crate) remedy: Remedy,
}

/// What to do about a failure, within the deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Nothing.
    None,
    /// The connection broke. Whether the call was carried out is unknown: it may be sent again with
    /// the same sequence number, on another connection.
    SendAgain,
    /// Nothing was carried out: the slot is elsewhere now.
    Moved { slot: u16, to: Server },
    /// Nothing was carried out: these keys have moved, the rest of the slot has not.
    Ask { to: Server },
    /// Nothing was carried out: some of the keys have moved, others have not. Each by itself can be
    /// sent.
    TryAgain,
    /// The server no longer accepts writes. Connecting again finds the one that does.
    Reconnect,
}

impl Failure {
    pub(crate) fn new(reason: Reason, transient: bool, detail: impl Into<String>) -> Self {
        let error = StoreError { transient, detail: detail.into() };
        Self { reason, error, remedy: Remedy::None }
    }

    /// It is unknown whether the call was carried out.
    pub(crate) fn timeout() -> Self {
        Self::new(Reason::Timeout, true, "no answer in time")
    }

    pub(crate) fn closed() -> Self {
        Self::new(Reason::Connection, true, "the connection was closed")
    }

    pub(crate) fn no_connection_in(time: Duration) -> Self {
        Self::new(Reason::Connection, true, format!("no connection within {time:?}"))
    }

    pub(crate) fn no_server() -> Self {
        Self::new(Reason::Connection, true, "there is nobody to ask")
    }

    pub(crate) fn no_reply() -> Self {
        Self::unreadable("there is no reply")
    }

    pub(crate) fn unreachable(error: &io::Error) -> Self {
        Self::new(Reason::Connection, true, format!("cannot connect: {error}"))
    }

    /// A server that refuses the login.
    pub(crate) fn unwelcome(error: &RedisError) -> Self {
        let transient = error.is_io_error() || error.code().is_some_and(is_transient);
        Self::new(Reason::Connection, transient, format!("cannot log in: {error}"))
    }

    /// A connection that broke during a call.
    pub(super) fn broken(error: &RedisError) -> Self {
        if error.kind() == ErrorKind::Parse {
            return Self::malformed(error.to_string());
        }
        let failure = Self::new(Reason::Connection, true, error.to_string());
        Self { remedy: Remedy::SendAgain, ..failure }
    }

    /// An answer that is an error.
    pub(crate) fn refused(error: &ServerError) -> Self {
        let failure = Self::new(Reason::Refused, is_transient(error.code()), error.to_string());
        Self { remedy: remedy(error.code(), error.details().unwrap_or_default()), ..failure }
    }

    /// The script's error for one command. Some errors are about the whole server, not the command.
    pub(crate) fn of_command(error: StoreError) -> Self {
        let (code, _) = error.detail.split_once(' ').unwrap_or((&error.detail, ""));
        if is_of_server(code) {
            let remedy = remedy(code, "");
            let error = StoreError { transient: true, ..error };
            return Self { reason: Reason::Refused, error, remedy };
        }
        Self { reason: Reason::Unreadable, error, remedy: Remedy::None }
    }

    /// True if the command was certainly not sent, so that it can be sent again.
    pub(crate) fn is_unsent(&self) -> bool {
        matches!(self.reason, Reason::Open | Reason::Overload)
    }

    /// The same for a command of which another fragment may have been carried out.
    pub(crate) fn into_partly_sent(self) -> Self {
        let reason = if self.is_unsent() { Reason::Connection } else { self.reason };
        Self { reason, ..self }
    }

    /// An answer about a key, or about the deployment, that cannot be used.
    pub(crate) fn unreadable(detail: impl Into<String>) -> Self {
        Self::new(Reason::Unreadable, false, detail)
    }

    /// An answer of the wrong shape: whatever answers is no server of this store.
    pub(crate) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(Reason::Malformed, false, detail)
    }

    /// True if the server is to blame, rather than the command or its route.
    pub(crate) fn is_of_server(&self) -> bool {
        let is_redirect =
            matches!(self.remedy, Remedy::Moved { .. } | Remedy::Ask { .. } | Remedy::TryAgain);
        match self.reason {
            Reason::Timeout | Reason::Connection | Reason::Malformed => true,
            Reason::Refused => !is_redirect,
            Reason::Unreadable | Reason::Overload | Reason::Open => false,
        }
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

/// Errors of a server that cannot work: of any write, or of any command.
fn is_of_server(code: &str) -> bool {
    matches!(
        code,
        "READONLY" | "OOM" | "NOREPLICAS" | "MISCONF" | "CLUSTERDOWN" | "LOADING" | "MASTERDOWN"
    )
}

/// Errors of a server that starts, fails over, is full or is busy.
fn is_transient(code: &str) -> bool {
    is_of_server(code)
        || matches!(code, "BUSY" | "TRYAGAIN" | "MOVED" | "ASK" | "UNBLOCKED" | "NOSCRIPT")
}

fn remedy(code: &str, details: &str) -> Remedy {
    let elsewhere = || {
        let (slot, address) = details.split_once(' ')?;
        let (host, port) = address.rsplit_once(':')?;
        let to = Server { host: host.to_owned(), port: port.parse().ok()? };
        Some((slot.parse().ok()?, to))
    };
    match code {
        "READONLY" => Remedy::Reconnect,
        "TRYAGAIN" => Remedy::TryAgain,
        "MOVED" => elsewhere().map_or(Remedy::None, |(slot, to)| Remedy::Moved { slot, to }),
        "ASK" => elsewhere().map_or(Remedy::None, |(_, to)| Remedy::Ask { to }),
        _ => Remedy::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_index() {
        for (place, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, place);
        }
    }

    #[test]
    fn a_redirection_says_where_to() {
        let to = |host: &str, port| Server { host: host.to_owned(), port };
        let moved = Remedy::Moved { slot: 3999, to: to("10.0.0.1", 6381) };
        assert_eq!(remedy("MOVED", "3999 10.0.0.1:6381"), moved);
        assert_eq!(remedy("ASK", "3999 ::1:6381"), Remedy::Ask { to: to("::1", 6381) });
        assert_eq!(remedy("ASK", "3999 :6381"), Remedy::Ask { to: to("", 6381) });
        for broken in ["", "3999", "x 10.0.0.1:1", "1 10.0.0.1:x"] {
            assert_eq!(remedy("MOVED", broken), Remedy::None, "{broken}");
        }
    }

    #[test]
    fn an_error_of_the_server_is_not_one_of_the_command() {
        let of_command = |detail: &str| {
            Failure::of_command(StoreError { transient: false, detail: detail.to_owned() })
        };
        for detail in ["OOM command not allowed", "NOREPLICAS Not enough", "READONLY You can't"] {
            let failure = of_command(detail);
            assert!(failure.is_of_server() && failure.error.transient, "{detail}");
        }
        assert_eq!(of_command("READONLY You can't").remedy, Remedy::Reconnect);
        let failure = of_command("a value of another format");
        assert!(!failure.is_of_server() && !failure.error.transient);
    }
}
