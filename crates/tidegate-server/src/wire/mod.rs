//! What is spoken on each listener.

pub(crate) mod api;
pub(crate) mod gateway;
