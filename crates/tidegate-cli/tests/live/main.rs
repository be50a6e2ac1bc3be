//! The real binary, over real sockets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod api;
mod leases;
mod limits;
mod openapi;
mod serve;
mod support;
