//! What fails around a request, by reason. Metrics count it, and logs name it.

/// Why a bearer token gives no identity: the values of the label `reason`, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenFailure {
    /// It is no token, or one with parts that nobody can rely on.
    Malformed,
    /// No key has the id that it names.
    UnknownKey,
    /// It was not signed by the key, or not by the key's algorithm.
    Signature,
    /// It has expired, is not valid yet, or says no time.
    Time,
    /// Another issuer made it.
    Issuer,
    /// It is meant for somebody else.
    Audience,
}

impl TokenFailure {
    pub(crate) const NAMES: [&str; 6] =
        ["malformed", "unknown_key", "signature", "time", "issuer", "audience"];

    pub(crate) const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// Why the upstream does not answer: the values of the label `reason`, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamFailure {
    /// There is no connection.
    Unreachable,
    /// All connections are in use, and none came free in time.
    Crowded,
    /// The connection ended, or did not speak HTTP.
    Broken,
    /// The answer takes too long.
    TimedOut,
}

impl UpstreamFailure {
    pub(crate) const NAMES: [&str; 4] = ["unreachable", "crowded", "broken", "timed_out"];
}
