//! The real binary, over real sockets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod api;
mod examples;
mod identity;
mod jwt;
mod leases;
mod limits;
mod openapi;
mod paths;
mod refusals;
mod serve;
mod support;
