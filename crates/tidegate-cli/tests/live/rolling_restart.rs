//! Two daemons behind a real nginx, as docs/operating.md has it, restarted one after the other under load.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::{Client, Daemon, Upstream, eventually};

const OPEN: &str = "{ tidegate: 1, name: open, limits: { all: { by: ip, total: 1_000_000_000 } } }";
const OPERATING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating.md");
/// Each client rests between two requests, so that the load is bounded.
const REST: Duration = Duration::from_millis(10);

/// A running nginx; it is killed when dropped.
struct Nginx {
    child: Child,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Nginx {
    /// Starts nginx with the servers of the document, on these ports.
    fn start(daemons: [SocketAddr; 2]) -> Self {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let text = fs::read_to_string(OPERATING).unwrap();
        let shown = text.split_once("```nginx\n").and_then(|(_, rest)| rest.split_once("```"));
        let mut servers = shown.expect("docs/operating.md shows a configuration").0.to_owned();
        for (documented, used) in [
            ("192.0.2.11:8080", daemons[0].to_string()),
            ("192.0.2.12:8080", daemons[1].to_string()),
            ("listen 80;", format!("listen {address};")),
        ] {
            assert!(servers.contains(documented), "{documented} is not in {servers}");
            servers = servers.replace(documented, &used);
        }
        let folder = tempfile::tempdir().unwrap();
        let configuration = format!(
            "daemon off;\nmaster_process off;\npid nginx.pid;\nevents {{}}\nhttp {{\n\
             access_log off;\nclient_body_temp_path body;\nproxy_temp_path proxy;\n\
             fastcgi_temp_path fastcgi;\nuwsgi_temp_path uwsgi;\nscgi_temp_path scgi;\n{servers}}}\n"
        );
        fs::write(folder.path().join("nginx.conf"), configuration).unwrap();
        let mut nginx = Self { child: run(folder.path()), address, folder };
        eventually("nginx", || {
            assert!(nginx.child.try_wait().unwrap().is_none(), "nginx ended: {}", nginx.log());
            TcpStream::connect(address).is_ok()
        });
        nginx
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("error.log")).unwrap_or_default()
    }
}

fn run(folder: &Path) -> Child {
    let mut command = Command::new("nginx");
    // The path of a Debian user has no `sbin`.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/usr/local/sbin"));
    command.arg("-p").arg(folder).args(["-c", "nginx.conf", "-e", "error.log"]);
    let started = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    started.expect("nginx is there: scripts/test installs the package nginx")
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(upstream: &Upstream, gateway: &str) -> Daemon {
    let arguments = ["--drain-delay", "1s"];
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.yaml");
    fs::write(&policy, OPEN).unwrap();
    let mut command = Daemon::command();
    command.arg(&policy).args(arguments);
    command.args(["--gateway", gateway, "--upstream", &upstream.url()]);
    let mut daemon = Daemon::start(&mut command);
    daemon.folder = Some(folder);
    daemon
}

/// Sends requests until told to stop. Returns what was not answered with 200.
fn send(client: Client, stopped: &AtomicBool, done: &AtomicUsize) -> Vec<String> {
    let mut failures = Vec::new();
    while !stopped.load(Ordering::Relaxed) {
        let number = done.fetch_add(1, Ordering::Relaxed);
        let answer = if number.is_multiple_of(4) {
            client.send("POST", "/order", &[("Connection", "close")], Some("one"))
        } else {
            client.send("GET", "/", &[("Connection", "close")], None)
        };
        if answer.status != 200 {
            failures.push(format!("{number}: {} {}", answer.status, answer.text()));
        }
        thread::sleep(REST);
    }
    failures
}

#[test]
fn a_rolling_restart_behind_nginx_loses_no_request() {
    let upstream = Upstream::start();
    let mut daemons = [start(&upstream, "127.0.0.1:0"), start(&upstream, "127.0.0.1:0")];
    let nginx = Nginx::start([daemons[0].address("gateway"), daemons[1].address("gateway")]);
    let (stopped, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (stopped, done) = (Arc::clone(&stopped), Arc::clone(&done));
            let client = Client::new(nginx.address);
            thread::spawn(move || send(client, &stopped, &done))
        })
        .collect();
    let go_on = || {
        let before = done.load(Ordering::Relaxed);
        eventually("further requests", || done.load(Ordering::Relaxed) > before + 50);
    };
    for daemon in &mut daemons {
        go_on();
        let gateway = daemon.address("gateway").to_string();
        daemon.stop();
        go_on();
        *daemon = start(&upstream, &gateway);
    }
    go_on();
    stopped.store(true, Ordering::Relaxed);
    let failures: Vec<String> =
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
    assert!(failures.is_empty(), "{failures:#?}\n{}", nginx.log());
    let served =
        |daemon: &Daemon| daemon.admin().get("/metrics").text().contains("outcome=\"allowed\"} ");
    assert!(daemons.iter().all(served), "both serve again");
}
