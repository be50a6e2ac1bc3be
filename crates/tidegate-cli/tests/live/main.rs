//! The real binary, over real sockets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod bodies;
mod drain;
mod idle;
mod reload;
mod serve;
mod slow;
mod sockets;
mod storm;
mod support;
mod tls;
mod upstreams;
mod waiting;
mod websockets;
