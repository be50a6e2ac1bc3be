//! `tidegate serve`, as a process of its own.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use super::client::{Answer, Client};
use super::{Upstream, eventually};

/// A running daemon; it is killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    listening: Vec<(String, SocketAddr)>,
    log: Arc<Mutex<String>>,
    /// Where the policy of [`Daemon::with_policy`] is.
    pub(crate) folder: Option<tempfile::TempDir>,
}

impl Daemon {
    /// The command, on free ports. Later arguments override earlier ones.
    pub(crate) fn command() -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("serve").args(["--api", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command
    }

    /// Starts the daemon and waits until it has printed all its listeners.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (stderr, lines) = (child.stderr.take().unwrap(), Arc::clone(&log));
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut log = lines.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        let mut listening = Vec::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        loop {
            let mut line = String::new();
            if stdout.read_line(&mut line).unwrap() == 0 {
                let _ = child.wait();
                panic!("the daemon did not start:\n{}", log.lock().unwrap());
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            if let ["listening", name, url] = words[..] {
                let address = url.split_once("://").unwrap().1.parse().unwrap();
                listening.push((name.to_owned(), address));
                if name == "admin" {
                    break;
                }
            }
        }
        // Further output must not fill the pipe.
        thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        Self { child, listening, log, folder: None }
    }

    /// A daemon with this policy, and a gateway in front of this upstream.
    pub(crate) fn with_policy(policy: &str, upstream: Option<&Upstream>) -> Self {
        Self::with_policy_and(policy, upstream, &[])
    }

    /// The same with further arguments.
    pub(crate) fn with_policy_and(
        policy: &str,
        upstream: Option<&Upstream>,
        arguments: &[&str],
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.yaml");
        std::fs::write(&path, policy).unwrap();
        let mut command = Self::command();
        command.arg(&path).args(arguments);
        if let Some(upstream) = upstream {
            command.args(["--gateway", "127.0.0.1:0", "--upstream", &upstream.url()]);
        }
        let mut daemon = Self::start(&mut command);
        daemon.folder = Some(folder);
        daemon
    }

    /// Where the policy of [`Daemon::with_policy`] is.
    pub(crate) fn policy_path(&self) -> PathBuf {
        self.folder.as_ref().unwrap().path().join("policy.yaml")
    }

    pub(crate) fn address(&self, name: &str) -> SocketAddr {
        self.listening.iter().find(|(listener, _)| listener == name).unwrap().1
    }

    /// A client of the gateway.
    pub(crate) fn gateway(&self) -> Client {
        Client::new(self.address("gateway"))
    }

    /// A client of the decision API.
    pub(crate) fn api(&self) -> Client {
        Client::new(self.address("api"))
    }

    /// A client of the admin listener.
    pub(crate) fn admin(&self) -> Client {
        Client::new(self.address("admin"))
    }

    /// The status, from the admin listener.
    pub(crate) fn status(&self) -> serde_json::Value {
        self.admin().get("/admin/v1/status").json()
    }

    /// One check over the API.
    pub(crate) fn check(&self, body: &serde_json::Value) -> Answer {
        self.api().post("/v1/check", &body.to_string())
    }

    /// The log so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn wait_for_log(&self, text: &str) {
        eventually(&format!("`{text}` in the log"), || self.log().contains(text));
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal such as `TERM` or `HUP`.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    /// Waits until it has ended by itself.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut ended = None;
        eventually("the daemon's end", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        ended.unwrap()
    }

    /// Tells it to stop, and waits for a clean end.
    pub(crate) fn stop(&mut self) {
        self.signal("TERM");
        let status = self.wait();
        assert!(status.success(), "{status}\n{}", self.log());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
