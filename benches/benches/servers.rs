//! The daemon against its peers in the same run: the decision API against a bare hyper server that
//! reads the same POST and answers as many bytes, the gateway against nginx with `limit_req`, both
//! refusing and forwarding to the same upstream. Needs nginx.
//!
//! `cargo bench -p tidegate-benches --bench servers`

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark may stop at the first surprise, and prints"
)]

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};

use tidegate_benches::bare::Bare;
use tidegate_benches::daemon::{Daemon, built};
use tidegate_benches::load::{Figures, Server, body_bytes, load, median, wait_for};
use tidegate_benches::roles;

const CONNECTIONS: usize = 32;
const REQUESTS: usize = 200_000;
const ROUNDS: usize = 7;

const POLICY: &str = "
tidegate: 1
name: bench
tiers: [free, premium]
identity: { default_tier: free }
operations:
  booking: POST /rooms/{room}/bookings
  nothing: GET /nothing
limits:
  booking-user: { when: booking, by: user, token_bucket: { free: 1m/s, premium: 2m/s } }
  booking-room: { when: booking, by: room, fixed_window: 100m/s }
  per-ip: { by: ip, token_bucket: 100m/s burst 100m }
  refuse: { when: nothing, by: ip, token_bucket: 1/day }
";

fn main() {
    if roles::play() {
        return;
    }
    let tidegate = built();
    let folder = std::env::temp_dir().join(format!("tidegate-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    api(&tidegate, &folder);
    gateway(&tidegate, &folder);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The decision API, three limits applying.
fn api(tidegate: &Path, folder: &Path) {
    let Daemon { server, api, .. } = daemon(tidegate, folder, None);
    let bytes = body_bytes(api, &check(api, 0));
    let bare = Bare::start(bytes);
    let address = bare.address;
    println!("\nPOST /v1/check, three limits applying, {CONNECTIONS} connections");
    let (floor, ours) = in_turn(
        || {
            let check = move |turn| check(address, turn);
            load(bare.server.0.id(), address, CONNECTIONS, REQUESTS, check)
        },
        || load(server.0.id(), api, CONNECTIONS, REQUESTS, move |turn| check(api, turn)),
    );
    print("bare hyper, same bytes", &floor, &floor);
    print("tidegate", &ours, &floor);
}

/// The gateway beside nginx's limit_req, with the same limits in both and the same upstream behind them:
/// one that all requests meet, and a strict one that refuses.
fn gateway(tidegate: &Path, folder: &Path) {
    let upstream = Bare::start(100);
    let (nginx, proxied) = nginx(folder, upstream.address);
    let Daemon { server, gateway, .. } = daemon(tidegate, folder, Some(upstream.address));
    let gateway = gateway.unwrap();
    for (title, path) in [("refusing", "/nothing"), ("forwarding", "/rooms")] {
        let get = |address: SocketAddr| {
            let text = format!(
                "GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n"
            );
            move |_: usize| text.clone().into_bytes()
        };
        println!("\ngateway {title}, {CONNECTIONS} connections");
        let (theirs, ours) = in_turn(
            || load(nginx.0.id(), proxied, CONNECTIONS, REQUESTS, get(proxied)),
            || load(server.0.id(), gateway, CONNECTIONS, REQUESTS, get(gateway)),
        );
        print("nginx limit_req, one worker", &theirs, &theirs);
        print("tidegate", &ours, &theirs);
    }
}

/// Measures both in turn, several times, because the machine's speed varies. Returns the medians.
fn in_turn(
    mut theirs: impl FnMut() -> Figures,
    mut ours: impl FnMut() -> Figures,
) -> (Figures, Figures) {
    let rounds: Vec<(Figures, Figures)> = (0..ROUNDS).map(|_| (theirs(), ours())).collect();
    let (theirs, ours) = rounds.into_iter().unzip();
    (median(theirs), median(ours))
}

fn check(address: SocketAddr, turn: usize) -> Vec<u8> {
    let (room, user) = (turn % 1_000, turn % 100_000);
    let body = format!(
        "{{\"method\":\"POST\",\"path\":\"/rooms/r{room}/bookings\",\"ip\":\"203.0.113.7\",\"user\":\"user-{user}\"}}"
    );
    let length = body.len();
    format!("POST /v1/check HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
}

fn print(name: &str, figures: &Figures, floor: &Figures) {
    println!(
        "  {name:<30} {:>6.2} CPU-s per million {:>6.2} x  {:>8.0}/s  p50 {:>5} µs  p99 {:>6} µs  ({})",
        figures.cpu_seconds_per_million,
        figures.cpu_seconds_per_million / floor.cpu_seconds_per_million,
        figures.per_second,
        figures.p50_us,
        figures.p99_us,
        figures.status,
    );
}

fn daemon(tidegate: &Path, folder: &Path, upstream: Option<SocketAddr>) -> Daemon {
    let upstream = upstream.map(|upstream| format!("http://{upstream}"));
    let gateway = |upstream| ["--gateway", "127.0.0.1:0", "--upstream", upstream];
    let gateway = upstream.as_deref().map(gateway);
    Daemon::start(tidegate, folder, POLICY, gateway.as_ref().map_or(&[], |gateway| &gateway[..]))
}

fn nginx(folder: &Path, upstream: SocketAddr) -> (Server, SocketAddr) {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let at = folder.display();
    let config = format!(
        "daemon off; master_process off; pid {at}/nginx.pid; error_log /dev/null;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 100000000;
  client_body_temp_path {at}/body; proxy_temp_path {at}/proxy; fastcgi_temp_path {at}/fastcgi;
  uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;
  limit_req_zone $binary_remote_addr zone=loose:10m rate=1000000r/s;
  limit_req_zone $binary_remote_addr zone=strict:10m rate=1r/m;
  limit_req_status 429;
  upstream service {{ server {upstream}; keepalive 64; keepalive_requests 100000000; }}
  server {{
    listen {address};
    location /nothing {{ limit_req zone=loose burst=100000 nodelay; limit_req zone=strict; proxy_pass http://service; proxy_http_version 1.1; proxy_set_header Connection \"\"; }}
    location / {{ limit_req zone=loose burst=100000 nodelay; proxy_pass http://service; proxy_http_version 1.1; proxy_set_header Connection \"\"; }}
  }}
}}
"
    );
    let path = folder.join("nginx.conf");
    std::fs::write(&path, config).unwrap();
    let nginx = if Path::new("/usr/sbin/nginx").exists() { "/usr/sbin/nginx" } else { "nginx" };
    let child = Command::new(nginx).arg("-c").arg(&path).stderr(Stdio::null()).spawn().unwrap();
    wait_for(address);
    (Server(child), address)
}
