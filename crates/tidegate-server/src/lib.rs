//! The daemon.

pub mod admin;
pub mod telemetry;
