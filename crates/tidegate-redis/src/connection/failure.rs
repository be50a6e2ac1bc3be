//! Why a call was not answered.

use std::io;
use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerError};
use tidegate::store::StoreError;

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

/// Why a call was not answered, and whether trying again may help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) reason: Reason,
    pub(crate) error: StoreError,
}

impl Failure {
    pub(crate) fn new(reason: Reason, transient: bool, detail: impl Into<String>) -> Self {
        Self { reason, error: StoreError { transient, detail: detail.into() } }
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

    /// A connection that broke during a call. Whether it was carried out is unknown.
    pub(super) fn broken(error: &RedisError) -> Self {
        let reason =
            if error.kind() == ErrorKind::Parse { Reason::Unreadable } else { Reason::Connection };
        Self::new(reason, true, error.to_string())
    }

    /// An answer that is an error.
    pub(crate) fn refused(error: &ServerError) -> Self {
        Self::new(Reason::Refused, is_passing(error.code()), error.to_string())
    }

    /// An answer of the wrong shape.
    pub(crate) fn unreadable(detail: impl Into<String>) -> Self {
        Self::new(Reason::Unreadable, false, detail)
    }
}

/// What a server says while it starts, fails over, is full or is busy.
fn is_passing(code: &str) -> bool {
    matches!(
        code,
        "LOADING"
            | "BUSY"
            | "TRYAGAIN"
            | "CLUSTERDOWN"
            | "MASTERDOWN"
            | "READONLY"
            | "NOREPLICAS"
            | "MISCONF"
            | "OOM"
            | "MOVED"
            | "ASK"
            | "UNBLOCKED"
            | "NOSCRIPT"
    )
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
}
