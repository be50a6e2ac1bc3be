//! What can be wrong with a limiter or a reset.

use std::fmt;

use crate::request::RequestError;
use crate::store::StoreError;

/// A limiter that cannot be built.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// There is no policy to decide by.
    NoPolicy,
    /// Two policies have this name.
    SameName(String),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPolicy => f.write_str("a limiter needs at least one policy"),
            Self::SameName(name) => write!(f, "two policies are called `{name}`"),
        }
    }
}

impl std::error::Error for BuildError {}

/// A state that could not be reset.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResetError {
    /// The request cannot be understood.
    Request(RequestError),
    /// The policy has no limit of this name.
    UnknownLimit(String),
    /// The limit does not apply to the request, so that it has no key.
    DoesNotApply(String),
    /// The store cannot answer.
    Store(StoreError),
}

impl fmt::Display for ResetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(error) => error.fmt(f),
            Self::UnknownLimit(name) => write!(f, "the policy has no limit `{name}`"),
            Self::DoesNotApply(name) => {
                write!(f, "the limit `{name}` does not apply to this request")
            }
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ResetError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Request(error) => Some(error),
            Self::Store(error) => Some(error),
            Self::UnknownLimit(_) | Self::DoesNotApply(_) => None,
        }
    }
}
