//! The daemon: everything that listens.

mod app;
mod body;
mod drain;
mod framing;
mod listen;
mod pace;
mod respond;
mod tls;
mod wire;
