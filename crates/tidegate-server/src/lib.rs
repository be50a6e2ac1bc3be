//! The daemon.

pub mod jwt;
pub mod tls;
