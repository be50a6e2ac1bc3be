//! The real binary, over real sockets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod api;
mod attacks;
mod bodies;
mod challenge;
mod countries;
mod crowds;
mod drain;
mod examples;
mod identity;
mod idle;
mod jwt;
mod keys;
mod leases;
mod limits;
mod openapi;
mod paths;
mod protect;
mod refusals;
mod reload;
mod scene;
mod serve;
mod shared;
mod shared_cluster;
mod shared_faults;
mod shared_known;
mod shared_leases;
mod shared_lost_shard;
mod slow;
mod sockets;
mod state;
mod storm;
mod support;
mod tls;
mod upstream_ca;
mod upstreams;
mod waiting;
mod webhooks;
mod websockets;
