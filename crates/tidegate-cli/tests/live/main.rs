//! The real binary, over real sockets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod admin_api;
mod api;
mod attacks;
mod authorization;
mod bans_and_events;
mod bodies;
mod challenge;
mod countries;
mod drain;
mod early_answers;
mod examples;
mod fault_scene;
mod floods;
mod health;
mod identity;
mod idle;
mod jwt;
mod keys;
mod leases;
mod limits;
mod logins;
mod open_files;
mod openapi;
mod other_makes;
mod paths;
mod random_bytes;
mod refusals;
mod reload;
mod rolling_restart;
mod serve;
mod services;
mod shared;
mod shared_cluster;
mod shared_faults;
mod shared_leases;
mod shared_lost_shard;
mod shared_nodes_alone;
mod slow_clients;
mod sockets;
mod state;
mod support;
mod tls;
mod unreadable;
mod upstream_ca;
mod upstreams;
mod waiting;
mod webhooks;
mod websockets;
