//! The gateway over real sockets, in front of small upstreams in this process.

mod answers;
mod bodies;
mod crowds;
mod heads;
mod http2;
mod leases;
mod penalties;
mod tunnels;
mod world;
