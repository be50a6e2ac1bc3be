//! The daemon.

pub mod jwt;
