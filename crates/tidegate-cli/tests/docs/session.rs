//! A session that follows a document: a folder, a shell, and other terminals for daemons.
//!
//! Documented ports are rewritten to free ones, there and back, so that documents run side by side.

use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidegate_testkit::servers::free_port;

use crate::markdown::{Step, root};
use crate::shown::{fits, line_fits};

/// The listeners of a daemon, and the default address of each.
const LISTENERS: [(&str, &str); 3] =
    [("gateway", "127.0.0.1:8080"), ("api", "127.0.0.1:7070"), ("admin", "127.0.0.1:7071")];
/// Where the documents' service listens.
const SERVICE: &str = "127.0.0.1:3000";
/// The marker that the shell prints after a command's output.
const DONE: &str = "\n--done with ";
/// The two ways to start the daemon.
const SERVE: [&str; 2] = ["tidegate serve", "cargo run --release -p tidegate-cli -- serve"];

pub(crate) struct Session {
    shell: Shell,
    daemon: Option<Daemon>,
    service: Option<Child>,
    ports: Ports,
    folder: TempDir,
}

impl Session {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        symlink(root().join("examples").canonicalize().unwrap(), folder.path().join("examples"))
            .unwrap();
        fs::write(folder.path().join(".curlrc"), "silent\nshow-error\nmax-time = 30\n").unwrap();
        let shell = Shell::start(folder.path());
        Self { shell, daemon: None, service: None, ports: Ports::default(), folder }
    }

    pub(crate) fn follow(&mut self, step: &Step) {
        match step {
            Step::Save { name, text } => {
                fs::write(self.folder.path().join(name), self.ports.taken(text)).unwrap();
            }
            Step::Succeed { place, command } => {
                let (output, code) = self.shell.run(&self.ports.taken(command));
                assert_eq!(code, "0", "{place}: {command}\n{output}");
            }
            Step::Run { place, command, shown } if command.starts_with("python3 ") => {
                assert!(shown.is_empty(), "{place}: {command}: it prints nothing");
                self.start_service(command);
            }
            Step::Run { place, command, shown } => {
                let starts = SERVE.iter().find(|serve| command.contains(*serve));
                match starts.filter(|_| shown.iter().any(|line| line.starts_with("listening "))) {
                    Some(serve) => self.start_daemon(place, command, serve, shown),
                    None => self.run(place, command, shown),
                }
            }
        }
    }

    /// The output of a command.
    pub(crate) fn output(&self, command: &str) -> String {
        self.shell.run(&self.ports.taken(command)).0
    }

    /// Stops all processes, and compares the daemon's output.
    pub(crate) fn end(mut self) {
        self.stop_daemon();
    }

    fn run(&self, place: &str, command: &str, shown: &[String]) {
        let started = now();
        // A command that only reads is repeated until it shows the documented output.
        let only_looks = command.contains("/admin/v1/status") || command.contains("/metrics");
        loop {
            let (output, _) = self.shell.run(&self.ports.taken(command));
            let output = self.ports.documented(&output);
            let came: Vec<&str> = output.lines().collect();
            if fits(shown, &came) {
                return;
            }
            if !only_looks || started.elapsed() > Duration::from_secs(20) {
                let log = self.daemon.as_ref().map(|daemon| daemon.printed()).unwrap_or_default();
                let shown = shown.join("\n");
                panic!(
                    "{place}: {command}\n--- shown\n{shown}\n--- came\n{output}\n--- log\n{log}"
                );
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// A terminal has one daemon: the one before is stopped, as by Ctrl-C.
    fn start_daemon(&mut self, place: &str, command: &str, serve: &str, shown: &[String]) {
        self.stop_daemon();
        self.ports.0.retain(|(documented, _)| documented == SERVICE);
        let (before, arguments) = command.split_once(serve).unwrap();
        let mut words: Vec<&str> = arguments.split(' ').filter(|word| !word.is_empty()).collect();
        let mut documented = LISTENERS.map(|(name, address)| (name, address.to_owned()));
        for (name, address) in &mut documented {
            let flag = format!("--{name}");
            if let Some(at) = words.iter().position(|word| *word == flag) {
                *address = words[at + 1].to_owned();
                words.drain(at..at + 2);
            }
        }
        let mut line = format!("{before}exec tidegate serve {}", words.join(" "));
        LISTENERS.iter().for_each(|(name, _)| line += &format!(" --{name} 127.0.0.1:0"));
        let command = in_folder(self.folder.path(), &self.ports.taken(&line));
        let daemon = Daemon::start(command, place, shown);
        for (name, address) in documented {
            if let Some(url) = daemon.url(name) {
                let taken = url.split_once("://").unwrap().1.to_owned();
                self.ports.0.push((address, taken));
            }
        }
        self.daemon = Some(daemon);
    }

    fn stop_daemon(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            daemon.stop(&self.ports);
        }
    }

    fn start_service(&mut self, command: &str) {
        let free = format!("127.0.0.1:{}", free_port().unwrap());
        self.ports.0.push((SERVICE.to_owned(), free.clone()));
        let line = format!("exec {}", self.ports.taken(command));
        let mut command = in_folder(self.folder.path(), &line);
        self.service = Some(command.stderr(Stdio::null()).spawn().unwrap());
        eventually("the service", || TcpStream::connect(&free).is_ok());
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(service) = &mut self.service {
            let _ = service.kill();
            let _ = service.wait();
        }
    }
}

/// Pairs of a documented and an actual address.
#[derive(Default)]
struct Ports(Vec<(String, String)>);

impl Ports {
    fn taken(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (shown, taken)| text.replace(shown, taken))
    }

    fn documented(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (shown, taken)| text.replace(taken, shown))
    }
}

/// A shell that keeps its variables from one command to the next.
struct Shell {
    child: Mutex<(Child, ChildStdin, BufReader<ChildStdout>)>,
}

impl Shell {
    fn start(folder: &Path) -> Self {
        let mut command = in_folder(folder, "exec bash -s");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child: Mutex::new((child, stdin, BufReader::new(stdout))) }
    }

    /// The output of a command, on both streams, and its exit code.
    fn run(&self, command: &str) -> (String, String) {
        let (_, stdin, stdout) = &mut *self.child.lock().unwrap();
        let line = format!("{{ {command}\n}} </dev/null 2>&1; printf '{DONE}%s\\n' $?\n");
        stdin.write_all(line.replace(DONE, "\\n--done with ").as_bytes()).unwrap();
        let mut output = String::new();
        loop {
            let mut line = Vec::new();
            let read = stdout.read_until(b'\n', &mut line).unwrap();
            assert!(read > 0, "the shell ended at: {command}\n{output}");
            output.push_str(&String::from_utf8_lossy(&line));
            if let Some((before, code)) = output.rsplit_once(DONE) {
                let code = code.trim_end().to_owned();
                return (before.replace('\r', ""), code);
            }
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let (child, ..) = &mut *self.child.lock().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// `tidegate serve` in a terminal of its own.
struct Daemon {
    child: Child,
    printed: Arc<Mutex<String>>,
    place: String,
    shown: Vec<String>,
}

impl Daemon {
    /// Starts it, and waits until it has printed all its listeners.
    fn start(mut command: Command, place: &str, shown: &[String]) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let printed = Arc::new(Mutex::new(String::new()));
        collect(child.stdout.take().unwrap(), &printed);
        collect(child.stderr.take().unwrap(), &printed);
        let (place, shown) = (place.to_owned(), shown.to_vec());
        let mut daemon = Self { child, printed, place, shown };
        eventually("a listening daemon", || {
            let ended = daemon.child.try_wait().unwrap();
            assert!(ended.is_none(), "{}: it ended:\n{}", daemon.place, daemon.printed());
            daemon.url("admin").is_some()
        });
        daemon
    }

    fn printed(&self) -> String {
        self.printed.lock().unwrap().clone()
    }

    fn url(&self, listener: &str) -> Option<String> {
        let prefix = format!("listening {listener} ");
        let printed = self.printed();
        let complete = printed.rsplit_once('\n')?.0;
        complete.lines().find_map(|line| line.strip_prefix(&prefix)).map(str::to_owned)
    }

    /// Stops it as Ctrl-C does. Every line that the document shows must have been printed.
    fn stop(mut self, ports: &Ports) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", "INT", &id]).status().unwrap().success());
        let status = self.child.wait().unwrap();
        let missing = || {
            let printed = ports.documented(&self.printed());
            let is_missing = |shown: &&String| !printed.lines().any(|line| line_fits(shown, line));
            self.shown.iter().find(is_missing).cloned()
        };
        let place = &self.place;
        assert!(status.success(), "{place}: {status}\n{}", self.printed());
        let started = now();
        while let Some(line) = missing() {
            let late = started.elapsed() > Duration::from_secs(5);
            assert!(!late, "{place}: `{line}` is not in\n{}", ports.documented(&self.printed()));
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It has ended, unless a test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(stream: impl Read + Send + 'static, into: &Arc<Mutex<String>>) {
    let into = Arc::clone(into);
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            *into.lock().unwrap() += &format!("{line}\n");
        }
    });
}

/// A command line that finds `tidegate`, in the session's folder.
fn in_folder(folder: &Path, line: &str) -> Command {
    let binaries = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().unwrap();
    let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("bash");
    command.args(["-c", line]).current_dir(folder).env("PATH", path).env("HOME", folder);
    command.stdin(Stdio::null());
    command
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let started = now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(20), "{what} did not come");
        thread::sleep(Duration::from_millis(5));
    }
}

#[allow(clippy::disallowed_methods, reason = "a test waits in real time")]
fn now() -> Instant {
    Instant::now()
}
