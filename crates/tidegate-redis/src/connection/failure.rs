//! Why a call was not answered.

use std::io;
use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerError};
use tidegate::store::StoreError;

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
    /// The answer could not be read.
    Unreadable,
    /// Too many asks waited.
    Overload,
    /// The store was not asked, because it failed before.
    Open,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Timeout,
        Self::Connection,
        Self::Refused,
        Self::Unreadable,
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
            Self::Overload => "overload",
            Self::Open => "open",
        }
    }

    /// Its place in [`ALL`](Self::ALL).
    pub(crate) const fn index(self) -> usize {
        self as usize
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
    /// Nothing was carried out: these keys are elsewhere already, the rest of the slot is not.
    Ask { to: Server },
    /// Nothing was carried out: some of the keys are elsewhere already, and others are not. Each by
    /// itself is in one place.
    TryAgain,
    /// The server no longer takes writes: whoever does is found by connecting again.
    Reconnect,
}

impl Failure {
    pub(crate) fn new(reason: Reason, transient: bool, detail: impl Into<String>) -> Self {
        let error = StoreError { transient, detail: detail.into() };
        Self { reason, error, remedy: Remedy::None }
    }

    /// Whether it was carried out is unknown.
    pub(crate) fn timeout() -> Self {
        Self::new(Reason::Timeout, true, "no answer in time")
    }

    pub(super) fn connecting() -> Self {
        Self::new(Reason::Connection, true, "not connected yet")
    }

    pub(crate) fn closed() -> Self {
        Self::new(Reason::Connection, true, "the connection was closed")
    }

    pub(crate) fn no_connection_in(time: Duration) -> Self {
        Self::new(Reason::Connection, true, format!("no connection within {time:?}"))
    }

    pub(crate) fn unreachable(error: &io::Error) -> Self {
        Self::new(Reason::Connection, true, format!("cannot connect: {error}"))
    }

    /// A server that is there and did not let us in.
    pub(crate) fn unwelcome(error: &RedisError) -> Self {
        let transient = error.is_io_error() || error.code().is_some_and(is_passing);
        Self::new(Reason::Connection, transient, format!("cannot log in: {error}"))
    }

    /// A connection that broke during a call.
    pub(super) fn broken(error: &RedisError) -> Self {
        if error.kind() == ErrorKind::Parse {
            return Self::new(Reason::Unreadable, true, error.to_string());
        }
        let failure = Self::new(Reason::Connection, true, error.to_string());
        Self { remedy: Remedy::SendAgain, ..failure }
    }

    /// An answer that is an error.
    pub(crate) fn refused(error: &ServerError) -> Self {
        let failure = Self::new(Reason::Refused, is_passing(error.code()), error.to_string());
        Self { remedy: remedy(error.code(), error.details().unwrap_or_default()), ..failure }
    }

    /// What the script found instead of an answer to one ask. An error of the server's own is that of
    /// the whole server, not of what was asked.
    pub(crate) fn of_ask(error: StoreError) -> Self {
        let (code, _) = error.detail.split_once(' ').unwrap_or((&error.detail, ""));
        if is_of_server(code) {
            let remedy = remedy(code, "");
            let error = StoreError { transient: true, ..error };
            return Self { reason: Reason::Refused, error, remedy };
        }
        Self { reason: Reason::Unreadable, error, remedy: Remedy::None }
    }

    /// Whether it surely was not sent, so that it can be sent again.
    pub(crate) fn is_unsent(&self) -> bool {
        matches!(self.reason, Reason::Open | Reason::Overload)
    }

    /// The same of an ask of which another part may have been carried out.
    pub(crate) fn in_part(self) -> Self {
        let reason = if self.is_unsent() { Reason::Connection } else { self.reason };
        Self { reason, ..self }
    }

    /// An answer of the wrong shape.
    pub(crate) fn unreadable(detail: impl Into<String>) -> Self {
        Self::new(Reason::Unreadable, false, detail)
    }

    /// Whether the server is to blame, rather than what was asked or where.
    pub(crate) fn is_of_server(&self) -> bool {
        let elsewhere =
            matches!(self.remedy, Remedy::Moved { .. } | Remedy::Ask { .. } | Remedy::TryAgain);
        match self.reason {
            Reason::Timeout | Reason::Connection => true,
            Reason::Refused => !elsewhere,
            Reason::Unreadable | Reason::Overload | Reason::Open => false,
        }
    }
}

/// What a server says that does not do its work: to whatever is written, or to all that is asked.
fn is_of_server(code: &str) -> bool {
    matches!(
        code,
        "READONLY" | "OOM" | "NOREPLICAS" | "MISCONF" | "CLUSTERDOWN" | "LOADING" | "MASTERDOWN"
    )
}

/// What a server says while it starts, fails over, is full or is busy.
fn is_passing(code: &str) -> bool {
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
    fn every_reason_stands_at_its_place() {
        for (place, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), place);
        }
    }

    #[test]
    fn whoever_is_sent_elsewhere_knows_where() {
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
    fn what_befalls_a_server_is_no_fault_of_an_ask() {
        let of_ask = |detail: &str| {
            Failure::of_ask(StoreError { transient: false, detail: detail.to_owned() })
        };
        for detail in ["OOM command not allowed", "NOREPLICAS Not enough", "READONLY You can't"] {
            let failure = of_ask(detail);
            assert!(failure.is_of_server() && failure.error.transient, "{detail}");
        }
        assert_eq!(of_ask("READONLY You can't").remedy, Remedy::Reconnect);
        let failure = of_ask("a value of another format");
        assert!(!failure.is_of_server() && !failure.error.transient);
    }
}
