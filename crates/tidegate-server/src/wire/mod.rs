//! The protocols that the listeners speak.
//!
//! [`routes`] is the table of all calls of the decision API and of the admin API. [`endpoint`]
//! serves it, and [`openapi`] describes it.

pub(crate) mod api;
pub(crate) mod endpoint;
pub(crate) mod fields;
pub(crate) mod gateway;
pub(crate) mod json;
mod openapi;
pub(crate) mod query;
pub(crate) mod routes;
