//! One server process.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{Reply, binary, free_port, reply, until};

const START: Duration = Duration::from_secs(10);
/// How often a start is repeated when another process took the free port.
const ATTEMPTS: usize = 5;

/// A server on a port of its own, without persistence; it ends with its owner.
///
/// ```no_run
/// use tidegate_testkit::servers::Server;
///
/// # fn main() -> std::io::Result<()> {
/// let redis = Server::start()?;
/// redis.command(&["SCRIPT", "FLUSH"])?;
/// redis.pause()?;
/// redis.resume()?;
/// redis.restart()?; // It has forgotten everything.
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    process: Mutex<Child>,
    launch: Launch,
    port: u16,
}

/// The command line of a process, for restarts.
#[derive(Debug)]
struct Launch {
    binary: PathBuf,
    arguments: Vec<String>,
    folder: TempDir,
}

impl Server {
    /// Starts one.
    ///
    /// # Errors
    /// The binary is not installed, or does not start.
    pub fn start() -> io::Result<Self> {
        Self::start_with(&[])
    }

    /// Starts a server with further arguments, such as `--maxmemory 1mb`.
    ///
    /// # Errors
    /// The binary is not installed, or does not start.
    pub fn start_with(arguments: &[&str]) -> io::Result<Self> {
        Self::start_with_ports(|| Ok(owned(arguments)))
    }

    /// Starts a server that reads a configuration file, as Sentinels must.
    pub(super) fn start_configured(
        text: &str,
        further: impl Fn() -> io::Result<Vec<String>>,
    ) -> io::Result<Self> {
        Self::on_a_free_port(further, |folder| {
            let file = folder.path().join("server.conf");
            fs::write(&file, text)?;
            Ok(Some(file.display().to_string()))
        })
    }

    /// Starts a server whose arguments hold further free ports.
    pub(super) fn start_with_ports(
        further: impl Fn() -> io::Result<Vec<String>>,
    ) -> io::Result<Self> {
        Self::on_a_free_port(further, |_| Ok(None))
    }

    fn on_a_free_port(
        further: impl Fn() -> io::Result<Vec<String>>,
        configure: impl Fn(&TempDir) -> io::Result<Option<String>>,
    ) -> io::Result<Self> {
        let mut failed = io::Error::other("no port was tried");
        for _ in 0..ATTEMPTS {
            let (port, folder) = (free_port()?, tempfile::tempdir()?);
            let mut arguments: Vec<String> = configure(&folder)?.into_iter().collect();
            arguments.extend(further()?);
            let launch = Launch { binary: binary::find()?, arguments, folder };
            match Self::launch(launch, port) {
                Ok(server) => return Ok(server),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn launch(launch: Launch, port: u16) -> io::Result<Self> {
        let server = Self { process: Mutex::new(launch.spawn(port)?), launch, port };
        server.wait_until_ready()?;
        Ok(server)
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The port that it listens on, before and after a restart.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The TLS port, if there is one.
    #[must_use]
    pub fn tls_port(&self) -> Option<u16> {
        let mut arguments = self.launch.arguments.iter();
        arguments.find(|argument| *argument == "--tls-port")?;
        arguments.next()?.parse().ok()
    }

    /// The port on which other servers reach it.
    pub(super) fn peer_port(&self) -> u16 {
        self.tls_port().unwrap_or(self.port)
    }

    /// The URL for clients.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    /// Sends one command on a connection of its own.
    ///
    /// # Errors
    /// The server cannot be reached within two seconds, or replies an error.
    pub fn command(&self, command: &[&str]) -> io::Result<Reply> {
        reply::ask(self.addr(), command)
    }

    /// One field of `INFO`, such as `role` or `total_commands_processed`.
    ///
    /// # Errors
    /// The server cannot be reached, or has no such field.
    pub fn info(&self, field: &str) -> io::Result<String> {
        let reply = self.command(&["INFO", "everything"])?;
        let mut lines = reply.text().lines();
        let found = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        found.map(str::to_owned).ok_or_else(|| io::Error::other(format!("INFO has no {field}")))
    }

    /// Kills the process as `kill -9` does.
    ///
    /// # Errors
    /// The system refuses.
    pub fn kill(&self) -> io::Result<()> {
        let mut process = self.process();
        process.kill()?;
        process.wait().map(|_| ())
    }

    /// Pauses the process (SIGSTOP): connections stay open, and nothing is answered.
    ///
    /// # Errors
    /// It does not run.
    pub fn pause(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Resumes the process (SIGCONT). It carries out the commands that came meanwhile.
    ///
    /// # Errors
    /// It does not run.
    pub fn resume(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Kills it if it runs, and starts it on the same port with empty memory.
    ///
    /// # Errors
    /// It does not start.
    pub fn restart(&self) -> io::Result<()> {
        // Another test that looks for a free port may hold this one for a moment.
        let mut failed = Ok(());
        for _ in 0..ATTEMPTS {
            self.kill()?;
            *self.process() = self.launch.spawn(self.port)?;
            failed = self.wait_until_ready();
            if failed.is_ok() {
                break;
            }
        }
        failed
    }

    fn process(&self) -> MutexGuard<'_, Child> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        let mut process = self.process();
        // The system may have given the id of an ended process to another one.
        if process.try_wait()?.is_some() {
            return Err(io::Error::other("the server does not run"));
        }
        Ok(kill_process(Pid::from_child(&process), signal)?)
    }

    /// Waits until this process answers a PING.
    fn wait_until_ready(&self) -> io::Result<()> {
        let own_id = self.process().id().to_string();
        let mut ended = None;
        let started = until("the server answers", START, || {
            ended = self.process().try_wait()?;
            if ended.is_some() {
                return Ok(true);
            }
            self.command(&["PING"])?;
            Ok(self.info("process_id")? == own_id)
        });
        match ended {
            None => started,
            Some(status) => Err(io::Error::other(format!(
                "{} on port {} has ended ({status}): {}",
                self.launch.binary.display(),
                self.port,
                self.launch.printed()
            ))),
        }
    }
}

fn owned(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|argument| (*argument).to_owned()).collect()
}

impl Drop for Server {
    fn drop(&mut self) {
        // A failure here has no caller to report to, and an ended process is fine.
        let _ = self.kill();
    }
}

impl Launch {
    fn spawn(&self, port: u16) -> io::Result<Child> {
        let output = File::create(self.output())?;
        let mut command = Command::new(&self.binary);
        // The configuration file must be the first argument.
        let (file, further) = match self.arguments.split_first() {
            Some((file, further)) if !file.starts_with("--") => (Some(file), further),
            _ => (None, &*self.arguments),
        };
        command.args(file).args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
        command.arg("--dir").arg(self.folder.path()).args(further);
        if file.is_none() {
            command.args(["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]);
        }
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).spawn()
    }

    fn output(&self) -> PathBuf {
        self.folder.path().join("output")
    }

    fn printed(&self) -> String {
        fs::read_to_string(self.output()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_answers_at_once_and_ends_with_its_owner() {
        let server = Server::start().unwrap();
        let address = server.addr();
        assert_eq!(server.url(), format!("redis://{address}"));
        assert_eq!(server.command(&["SET", "k", "v"]).unwrap().text(), "OK");
        assert_eq!(server.command(&["GET", "k"]).unwrap().text(), "v");
        assert_eq!(server.info("role").unwrap(), "master");
        drop(server);
        assert!(reply::ask(address, &["PING"]).is_err());
    }

    #[test]
    fn a_restarted_server_is_at_the_same_place_and_knows_nothing() {
        let server = Server::start().unwrap();
        server.command(&["SET", "k", "v"]).unwrap();
        let place = server.url();
        server.restart().unwrap();
        assert_eq!(server.url(), place);
        assert_eq!(server.command(&["GET", "k"]).unwrap(), Reply::Nil);
        server.kill().unwrap();
        assert!(server.command(&["PING"]).is_err());
        server.restart().unwrap();
        assert_eq!(server.command(&["PING"]).unwrap().text(), "PONG");
    }

    #[test]
    fn a_paused_server_keeps_its_connections_and_answers_when_it_goes_on() {
        use std::io::{Read, Write};
        use std::net::TcpStream;

        let server = Server::start().unwrap();
        let mut connection = TcpStream::connect(server.addr()).unwrap();
        server.pause().unwrap();
        connection.write_all(b"PING\r\n").unwrap();
        connection.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut answer = [0; 7];
        assert!(connection.read(&mut answer).is_err());
        server.resume().unwrap();
        connection.set_read_timeout(Some(START)).unwrap();
        connection.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"+PONG\r\n");
    }

    #[test]
    fn a_server_that_does_not_start_says_why() {
        let error = Server::start_with(&["--no-such-setting", "1"]).unwrap_err().to_string();
        assert!(error.contains("no-such-setting"), "{error}");
    }

    #[test]
    fn a_killed_server_cannot_be_paused() {
        let server = Server::start().unwrap();
        server.kill().unwrap();
        assert!(server.pause().is_err());
    }
}
