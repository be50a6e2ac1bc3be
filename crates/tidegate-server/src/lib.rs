//! The daemon: everything that listens.

mod admin;
mod app;
mod body;
mod config;
mod demo;
mod drain;
mod error;
mod guard;
mod jwt;
mod leases;
mod listen;
mod pace;
mod reload;
mod respond;
mod server;
mod telemetry;
mod tls;
mod tokens;
mod wire;

pub use config::{Bounds, Config, JwtConfig, TlsConfig};
pub use error::StartError;
pub use pace::Pace;
pub use server::run;
pub use telemetry::{LogFormat, LogSettings, Identities, LevelFilter};
