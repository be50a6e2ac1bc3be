//! Services of other makes behind the gateway: what Tidegate counts must be what they read.
//!
//! A machine that lacks a make leaves its tests out, with one line that says so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use tempfile::TempDir;
use tidegate_testkit::servers::free_port;

use super::{Client, eventually_within};

/// Go compiles its service first, on a machine that may be busy.
const PATIENCE: Duration = Duration::from_secs(180);

/// A service on a port of its own. It ends when dropped.
pub(crate) struct Service {
    child: Child,
    port: u16,
    _folder: TempDir,
}

impl Service {
    /// An Express application; `routes` is JavaScript that uses `app` and `express`.
    pub(crate) fn express(routes: &str) -> Option<Self> {
        let modules = express_modules()?;
        let folder = tempfile::tempdir().unwrap();
        let port = free_port().unwrap();
        let script = format!(
            "const express = require('express'); const app = express();\n{routes}\napp.listen({port}, '127.0.0.1');\n"
        );
        fs::write(folder.path().join("service.js"), script).unwrap();
        let mut command = Command::new("node");
        command.arg("service.js").env("NODE_PATH", modules);
        Some(Self::start(command, port, folder))
    }

    /// A Go program; `routes` is Go that uses `http`, `fmt` and `mux`.
    pub(crate) fn go(routes: &str) -> Option<Self> {
        if !runs("go", "version") {
            return left_out("Go is not there");
        }
        let folder = tempfile::tempdir().unwrap();
        let port = free_port().unwrap();
        let program = format!(
            "package main\nimport (\"fmt\"; \"net/http\")\nfunc main() {{\nmux := http.NewServeMux()\n{routes}\nfmt.Println(http.ListenAndServe(\"127.0.0.1:{port}\", mux))\n}}\n"
        );
        fs::write(folder.path().join("service.go"), program).unwrap();
        let binary = folder.path().join("service");
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(&binary).arg("service.go").current_dir(folder.path());
        build.env("GOFLAGS", "-mod=mod").env("GO111MODULE", "off");
        assert!(build.status().unwrap().success(), "the service does not compile");
        Some(Self::start(Command::new(binary), port, folder))
    }

    /// nginx; `locations` stand inside its one server.
    pub(crate) fn nginx(locations: &str) -> Option<Self> {
        if !runs("nginx", "-v") {
            return left_out("nginx is not there");
        }
        let folder = tempfile::tempdir().unwrap();
        let port = free_port().unwrap();
        let at = folder.path().display();
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temporary: String =
            temporary.iter().map(|name| format!("{name}_temp_path {at}/{name};\n")).collect();
        let configuration = format!(
            "daemon off; master_process off; pid {at}/pid; error_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}server {{ listen 127.0.0.1:{port};\n{locations}\n}} }}\n"
        );
        let path = folder.path().join("nginx.conf");
        fs::write(&path, configuration).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-e").arg("stderr").arg("-p").arg(folder.path()).arg("-c").arg(path);
        Some(Self::start(command, port, folder))
    }

    fn start(mut command: Command, port: u16, folder: TempDir) -> Self {
        command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        eventually_within(PATIENCE, "the service", || {
            assert!(child.try_wait().unwrap().is_none(), "the service has ended");
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Self { child, port, _folder: folder }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// A client that asks the service without the gateway.
    pub(crate) fn client(&self) -> Client {
        Client::new(([127, 0, 0, 1], self.port).into())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where Express is installed, once for all tests and later runs.
fn express_modules() -> Option<&'static Path> {
    static MODULES: OnceLock<Option<PathBuf>> = OnceLock::new();
    MODULES.get_or_init(install_express).as_deref()
}

fn install_express() -> Option<PathBuf> {
    if !runs("node", "--version") || !runs("npm", "--version") {
        return left_out("Node.js or npm is not there");
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("express");
    let modules = folder.join("node_modules");
    fs::create_dir_all(&folder).unwrap();
    let mut install = Command::new("npm");
    install
        .args(["install", "--no-audit", "--no-fund", "--prefer-offline", "--prefix"])
        .arg(&folder);
    install.args(["express@4", "method-override@3"]).stdout(Stdio::null());
    let is_there = modules.join("method-override").exists();
    match is_there || install.status().is_ok_and(|status| status.success()) {
        true => Some(modules),
        false => left_out("Express cannot be installed"),
    }
}

fn runs(program: &str, argument: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(argument).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn left_out<T>(why: &str) -> Option<T> {
    eprintln!("left out: {why}");
    None
}
