//! The daemon, built for release and started for one measurement.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a benchmark may stop at the first surprise"
)]

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::load::Server;

/// A running daemon.
#[derive(Debug)]
pub struct Daemon {
    /// Its process, which ends with its owner.
    pub server: Server,
    /// The address of the decision API.
    pub api: SocketAddr,
    /// The address of the gateway, if there is one.
    pub gateway: Option<SocketAddr>,
    /// The address of the admin listener.
    pub admin: SocketAddr,
}

impl Daemon {
    /// Starts it with a policy and further arguments, with one thread.
    #[must_use]
    pub fn start(tidegate: &Path, folder: &Path, policy: &str, arguments: &[&str]) -> Self {
        let path = folder.join("policy.yaml");
        std::fs::write(&path, policy).unwrap();
        let mut command = Command::new(tidegate);
        command.arg("serve").arg(&path);
        command.args(["--api", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-level", "warn"]);
        command.args(["--threads", "1"]).args(arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let server = Server(child);
        let (mut api, mut gateway) = (None, None);
        for line in lines.map_while(Result::ok) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let ["listening", name, url] = words[..] else { continue };
            let address = url.split_once("://").unwrap().1.parse().unwrap();
            match name {
                "api" => api = Some(address),
                "gateway" => gateway = Some(address),
                "admin" => return Self { server, api: api.unwrap(), gateway, admin: address },
                _ => {}
            }
        }
        unreachable!("the daemon ended before it listened");
    }
}

/// The daemon's binary, built for release.
#[must_use]
pub fn built() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--release", "-q", "-p", "tidegate-cli"])
        .status()
        .unwrap();
    assert!(status.success());
    let mut path = std::env::current_exe().unwrap();
    while !path.join("tidegate").is_file() {
        assert!(path.pop(), "cannot find the release build of tidegate");
    }
    path.join("tidegate")
}
