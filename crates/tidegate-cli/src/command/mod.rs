//! The commands. Each has its `Arguments` and a `run` that returns whether all is well.

pub(crate) mod admin;
mod client;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod health;
mod name_value;
pub(crate) mod serve;
pub(crate) mod test;
pub(crate) mod validate;

/// Why a command could not do its work at all.
pub(crate) type Error = Box<dyn std::error::Error>;
