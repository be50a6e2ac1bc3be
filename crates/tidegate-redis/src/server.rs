//! A real server for tests, on a port of its own.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rcgen::{CertifiedKey, KeyPair};
use tempfile::TempDir;

use crate::config::Config;

/// A server that ends with its test.
pub(crate) struct Server {
    dir: TempDir,
    port: u16,
    arguments: Vec<String>,
    child: Option<Child>,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// One that speaks TLS too, on a second port, which is given as well.
    pub(crate) fn start_with_tls(made: &CertifiedKey<KeyPair>) -> (Self, u16) {
        let files = TempDir::new().unwrap();
        let (cert, key) = (files.path().join("cert.pem"), files.path().join("key.pem"));
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let port = free_port();
        let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
        let arguments = ["--tls-port", &port.to_string(), "--tls-auth-clients", "no"];
        let files = ["--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert];
        (Self::start_with(&[&arguments[..], &files].concat()), port)
    }

    fn start_with(arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let dir = TempDir::new().unwrap();
        let mut server = Self { dir, port: free_port(), arguments, child: None };
        server.restart();
        server
    }

    /// Starts it again, empty, where it was before.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port"])
            .arg(self.port.to_string())
            .arg("--dir")
            .arg(self.dir.path())
            .args(&self.arguments)
            .stdout(Stdio::null())
            .spawn();
        self.child = Some(child.unwrap());
        while !self.answers() {
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            _ = child.kill();
            _ = child.wait();
        }
    }

    /// Makes it hang, as a machine without memory does, until it may go on.
    pub(crate) fn hang(&self, hangs: bool) {
        let id = self.child.as_ref().unwrap().id().to_string();
        let signal = if hangs { "-STOP" } else { "-CONT" };
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    pub(crate) fn config(&self) -> Config {
        Config::parse(&format!("redis://127.0.0.1:{}", self.port)).unwrap()
    }

    /// Sends one command on a connection of its own, and gives the beginning of what it answers.
    pub(crate) fn tell(&self, command: &str) -> String {
        self.try_tell(command).unwrap()
    }

    fn answers(&self) -> bool {
        self.try_tell("PING").is_ok_and(|reply| reply.starts_with("+PONG"))
    }

    fn try_tell(&self, command: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        write!(stream, "{command}\r\n")?;
        let mut reply = [0; 4096];
        let length = stream.read(&mut reply)?;
        Ok(String::from_utf8_lossy(&reply[..length]).into_owned())
    }
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
