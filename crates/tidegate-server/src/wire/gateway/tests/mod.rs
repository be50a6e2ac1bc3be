//! The gateway over real sockets, in front of small upstreams in this process.

mod answers;
mod bodies;
mod http2;
mod inbound;
mod penalties;
mod pool;
mod reservations;
mod tunnels;
mod world;
