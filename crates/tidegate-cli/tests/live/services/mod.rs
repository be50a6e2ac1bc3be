//! Services of other languages behind the gateway, where this machine has what they need.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::Client;

/// A login service. It answers every login with 401.
pub(crate) struct LoginService {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl LoginService {
    /// One in Go that reads `json` or a `form`; none where there is no Go.
    pub(crate) fn in_go(format: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("login");
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(&program).arg(source("login.go"));
        build.env("GOTOOLCHAIN", "local").env("GO111MODULE", "off");
        if !is_done(&mut build) {
            eprintln!("left out: there is no Go");
            return None;
        }
        Some(Self::start(Command::new(&program).arg(format), folder))
    }

    /// One on Express; none where there is no Node, or no registry.
    pub(crate) fn on_express() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut install = Command::new("npm");
        install.args(["install", "--silent", "--no-audit", "--no-fund", "--fetch-retries=1"]);
        install.args(["--fetch-timeout=30000", "--prefix"]).arg(folder.path()).arg("express@5");
        if !is_done(&mut install) {
            eprintln!("left out: Express cannot be installed");
            return None;
        }
        let program = folder.path().join("login.js");
        std::fs::copy(source("login.js"), &program).unwrap();
        Some(Self::start(Command::new("node").arg(&program), folder))
    }

    fn start(command: &mut Command, folder: tempfile::TempDir) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening ").unwrap().parse().unwrap();
        Self { child, address, _folder: folder }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The service itself, without a gateway.
    pub(crate) fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// How often this account was guessed at.
    pub(crate) fn guesses(&self, email: &str) -> usize {
        self.client().get(&format!("/guesses?email={email}")).text().parse().unwrap()
    }
}

impl Drop for LoginService {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/live/services").join(name)
}

/// Runs a command to its end; false if it is not there or fails.
fn is_done(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}
