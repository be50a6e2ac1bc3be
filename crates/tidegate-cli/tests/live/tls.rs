//! TLS, HTTP/2 and WebSockets over both.

use std::fs;
use std::future::Future;
use std::io::Write as _;
use std::net::TcpStream as StdStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::floods;
use crate::support::{Daemon, Reply, Upstream, eventually};

const TWO: &str = "{ tidegate: 1, name: two, limits: { two: { by: ip, total: 2 } } }";
const PLACE: &str = "{ tidegate: 1, name: one, limits: { one: { by: ip, concurrency: 1 } } }";

/// A certificate for `localhost` and its key, in files.
pub(crate) struct Files {
    folder: tempfile::TempDir,
    made: CertifiedKey<KeyPair>,
}

impl Files {
    pub(crate) fn new() -> Self {
        let files = Self { folder: tempfile::tempdir().unwrap(), made: made() };
        files.write();
        files
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self) {
        fs::write(self.path("key.pem"), self.made.signing_key.serialize_pem()).unwrap();
        fs::write(self.path("cert.pem"), self.made.cert.pem()).unwrap();
    }

    fn daemon(&self, policy: &str, upstream: &Upstream) -> Daemon {
        let (cert, key) = (self.path("cert.pem"), self.path("key.pem"));
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let files = [text(&cert), text(&key)];
        let arguments =
            ["--header-timeout", "500ms", "--tls-cert", &files[0], "--tls-key", &files[1]];
        Daemon::with_policy_and(policy, Some(upstream), &arguments)
    }

    /// A daemon whose listeners all speak TLS: the API and the admin listener are beyond loopback, for the
    /// client with the token `one` and the operator with the token `three`.
    pub(crate) fn public_daemon(&self, policy: &str, upstream: &str) -> Daemon {
        let tokens = "\
            client shop 7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed\n\
            operator alice 8b5b9db0c13db24256c829aa364aa90c6d2eba318b9232a4ab9313b954d3555f\n";
        fs::write(self.path("tokens"), tokens).unwrap();
        fs::write(self.path("policy.yaml"), policy).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.current_dir(self.folder.path()).args([
            "serve",
            "policy.yaml",
            "--upstream",
            upstream,
        ]);
        command.args(["--gateway", "127.0.0.1:0", "--api", "0.0.0.0:0", "--admin", "0.0.0.0:0"]);
        command.args(["--tls-cert", "cert.pem", "--tls-key", "key.pem", "--tokens", "tokens"]);
        Daemon::start(&mut command)
    }

    /// A connection whose certificate is this one.
    async fn connect(
        &self,
        daemon: &Daemon,
        alpn: &[&str],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.made.cert.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        let socket = TcpStream::connect(daemon.address("gateway")).await?;
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, socket).await
    }
}

fn made() -> CertifiedKey<KeyPair> {
    generate_simple_self_signed(["localhost".to_owned()]).unwrap()
}

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// The statuses of `count` requests, all at once on one connection of HTTP/2.
async fn http2<S>(socket: S, count: usize) -> Vec<u16>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let executor = TokioExecutor::new();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(executor, TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    let requests = (0..count).map(|_| {
        let mut sender = sender.clone();
        tokio::spawn(async move {
            let request = hyper::Request::post("https://localhost/two")
                .body(Full::new(Bytes::from_static(b"body")))
                .unwrap();
            let response = sender.send_request(request).await.unwrap();
            let status = response.status().as_u16();
            response.into_body().collect().await.unwrap();
            status
        })
    });
    let mut statuses = Vec::new();
    for request in requests.collect::<Vec<_>>() {
        statuses.push(request.await.unwrap());
    }
    statuses.sort_unstable();
    statuses
}

#[test]
fn http_1_and_2_are_spoken_over_tls() {
    let (files, upstream) = (Files::new(), Upstream::start());
    let daemon = files.daemon(TWO, &upstream);
    run(async {
        let socket = files.connect(&daemon, &["h2", "http/1.1"]).await.unwrap();
        assert_eq!(socket.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        assert_eq!(http2(socket, 5).await, [200, 200, 429, 429, 429]);
        let seen = upstream.last();
        assert_eq!((seen.line.as_str(), &seen.body[..]), ("POST /two HTTP/1.1", &b"body"[..]));
        assert_eq!(seen.header("x-forwarded-proto"), Some("https"));
        assert_eq!(seen.header("host"), Some("localhost"));
        let mut socket = files.connect(&daemon, &["http/1.1"]).await.unwrap();
        let text = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        socket.write_all(text).await.unwrap();
        let mut answer = String::new();
        let _ = socket.read_to_string(&mut answer).await;
        assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    });
}

#[test]
fn http_2_is_known_without_tls_by_its_first_bytes() {
    let upstream = Upstream::start();
    let daemon = Daemon::with_policy(TWO, Some(&upstream));
    run(async {
        let socket = TcpStream::connect(daemon.address("gateway")).await.unwrap();
        assert_eq!(http2(socket, 3).await, [200, 200, 429]);
    });
    assert_eq!(upstream.last().body, b"body");
}

#[test]
fn plain_text_on_the_tls_port_and_a_handshake_that_never_ends_are_let_go() {
    let (files, upstream) = (Files::new(), Upstream::start());
    let daemon = files.daemon(TWO, &upstream);
    let text = daemon.gateway().raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(!text.contains("HTTP/1.1"), "{text}");
    assert_eq!(upstream.count(), 0);
    assert!(daemon.gateway().connect().is_closed(), "a handshake that never begins");
    let mut half = daemon.gateway().connect();
    half.socket.write_all(b"\x16\x03\x01\x02\x00\x01\x00").unwrap();
    assert!(half.is_closed(), "a handshake that never ends");
    run(async {
        assert!(Files::new().connect(&daemon, &[]).await.is_err(), "another certificate");
        assert!(files.connect(&daemon, &[]).await.is_ok());
    });
}

#[test]
fn a_certificate_that_is_replaced_serves_new_connections_and_a_broken_one_does_not() {
    let (mut files, upstream) = (Files::new(), Upstream::start());
    let daemon = files.daemon(TWO, &upstream);
    run(async { assert!(files.connect(&daemon, &[]).await.is_ok()) });
    files.made = made();
    files.write();
    eventually("the new certificate", || run(async { files.connect(&daemon, &[]).await.is_ok() }));
    fs::write(files.path("cert.pem"), "broken").unwrap();
    daemon.signal("HUP");
    daemon.wait_for_log("reload was refused");
    run(async { assert!(files.connect(&daemon, &[]).await.is_ok(), "the last good one stays") });
}

#[test]
fn a_websocket_over_tls_holds_its_place_until_it_closes() {
    let files = Files::new();
    let upstream = Upstream::replying(|seen| match seen.header("upgrade") {
        None => Reply::Answer(200, String::new()),
        Some(_) => Reply::Take(Box::new(|mut socket: StdStream| {
            let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
            socket.write_all(head.as_bytes()).unwrap();
            let mut copy = socket.try_clone().unwrap();
            let _ = std::io::copy(&mut socket, &mut copy);
        })),
    });
    let daemon = files.daemon(PLACE, &upstream);
    let ask =
        "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let status = |connection: &str| {
        run(async {
            let mut socket = files.connect(&daemon, &["http/1.1"]).await.unwrap();
            let head =
                format!("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: {connection}\r\n\r\n");
            socket.write_all(head.as_bytes()).await.unwrap();
            let mut start = [0; 12];
            socket.read_exact(&mut start).await.unwrap();
            String::from_utf8_lossy(&start[9..]).into_owned()
        })
    };
    run(async {
        let mut socket = files.connect(&daemon, &["http/1.1"]).await.unwrap();
        socket.write_all(ask.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await.unwrap());
        }
        assert!(head.starts_with(b"HTTP/1.1 101"));
        for size in [1, 1_000, 100_000] {
            let message = vec![b'x'; size];
            let (mut reader, mut writer) = tokio::io::split(&mut socket);
            let mut back = vec![0; size];
            let (read, written) =
                tokio::join!(reader.read_exact(&mut back), writer.write_all(&message));
            read.unwrap();
            written.unwrap();
            assert!(back == message);
        }
        assert_eq!(
            std::thread::scope(|scope| scope.spawn(|| status("close")).join().unwrap()),
            "429"
        );
    });
    eventually("the place", || status("close") == "200");
}

#[test]
fn draining_finishes_the_requests_of_http_2_and_takes_no_more() {
    let upstream = Upstream::replying(|_| {
        Reply::Take(Box::new(|mut socket: StdStream| {
            socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n").unwrap();
            for _ in 0..30 {
                socket.write_all(&[b'x'; 10_000]).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }))
    });
    let mut daemon = Daemon::with_policy("{ tidegate: 1, name: open }", Some(&upstream));
    let address = daemon.address("gateway");
    let client = std::thread::spawn(move || {
        run(async {
            let socket = TcpStream::connect(address).await.unwrap();
            http2(socket, 5).await
        })
    });
    eventually("the requests", || upstream.count() == 5);
    daemon.stop();
    assert_eq!(client.join().unwrap(), [200; 5]);
}

#[test]
fn a_head_over_http_2_is_answered_without_the_body() {
    let (files, upstream) = (Files::new(), Upstream::start());
    let one = "{ tidegate: 1, name: one, limits: { one: { by: ip, total: 1 } } }";
    let daemon = files.public_daemon(one, &upstream.url());
    let head = |listener: &str, path: &str| {
        let url = format!("https://localhost:{}{path}", daemon.address(listener).port());
        let curl = Command::new("curl")
            .args(["-sSI", "--http2", &url, "--cacert"])
            .arg(files.path("cert.pem"))
            .output()
            .unwrap();
        assert!(curl.status.success(), "{url}: {}", String::from_utf8_lossy(&curl.stderr));
        String::from_utf8(curl.stdout).unwrap()
    };
    for (listener, path, status) in [
        ("gateway", "/", "200"),
        ("gateway", "/", "429"),
        ("api", "/limits", "200"),
        ("api", "/openapi.json", "401"),
        ("admin", "/ready", "200"),
    ] {
        let text = head(listener, path);
        assert!(text.starts_with(&format!("HTTP/2 {status} ")), "{text}");
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
        assert!(length.is_some_and(|length| length != "0"), "{text}");
    }
}

#[tokio::test]
async fn a_flood_of_frames_is_cut_behind_tls_as_well() {
    let (files, upstream) = (Files::new(), Upstream::start());
    let daemon = files.daemon(TWO, &upstream);
    for (name, frame) in floods::idle_frames() {
        let stream = files.connect(&daemon, &["h2"]).await.unwrap();
        let (mut reader, mut writer) = tokio::io::split(stream);
        tokio::spawn(async move { while matches!(reader.read(&mut [0; 4096]).await, Ok(1..)) {} });
        writer.write_all(&floods::start(65_535)).await.unwrap();
        let (batch, mut sent) = (frame.repeat(100), 0);
        while sent < 10_000 && writer.write_all(&batch).await.is_ok() {
            sent += 1;
        }
        assert!(sent < 9_000, "{name}: {sent} batches were taken");
    }
}
