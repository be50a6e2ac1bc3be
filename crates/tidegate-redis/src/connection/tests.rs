use std::time::Duration;

use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::{ClientConfig, RootCertStore};

use tempfile::TempDir;
use tidegate_testkit::servers::{Server, free_port};
use tokio::io::AsyncWriteExt as _;

use super::*;
use crate::config::Config;
use crate::script::Script;

/// Counts in its key, and gives back what it was given.
static COUNT: Script = Script::new("redis.call('INCR', KEYS[1]); return ARGV[1]");
/// Generous: what is tested is not how fast this machine is.
const PATIENCE: Duration = Duration::from_secs(10);

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn config(server: &Server) -> Config {
    Config::parse(&server.url()).unwrap()
}

fn start(config: &Config) -> Connection {
    let dialer = Dialer::new(config);
    Connection::start(&dialer, Target::single(&config.endpoints, &dialer).unwrap())
}

async fn connected(server: &Server) -> Connection {
    let connection = start(&config(server));
    assert!(connection.connected(soon()).await);
    connection
}

async fn count(connection: &Connection, given: &str) -> Result<Value, Failure> {
    let (keys, arguments) = (vec![b"counted".to_vec()], vec![given.as_bytes().to_vec()]);
    connection.eval(&COUNT, ScriptCall { keys, arguments, asking: false }, soon()).await
}

fn counted(server: &Server) -> String {
    server.command(&["GET", "counted"]).unwrap().text().to_owned()
}

#[tokio::test]
async fn a_server_that_does_not_know_the_script_is_given_it_and_runs_it_once() {
    let server = Server::start().unwrap();
    let connection = connected(&server).await;
    for times in 1..=3 {
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        let reply = count(&connection, "told").await;
        assert_eq!(reply, Ok(Value::BulkString(b"told".to_vec())));
        assert_eq!(counted(&server), times.to_string());
    }
}

#[tokio::test]
async fn the_hash_is_that_of_the_text() {
    let server = Server::start().unwrap();
    let found = server.command(&["SCRIPT", "LOAD", COUNT.text]).unwrap();
    assert_eq!(found.text(), COUNT.sha1());
}

#[tokio::test]
async fn without_a_server_calls_fail_at_once_and_say_why() {
    let config = Config::parse(&format!("redis://127.0.0.1:{}", free_port().unwrap())).unwrap();
    let connection = start(&config);
    for _ in 0..3 {
        let failure = count(&connection, "lost").await.unwrap_err();
        assert_eq!((failure.reason, failure.error.transient), (Reason::Connection, true));
        assert!(failure.error.detail.starts_with("cannot connect"), "{}", failure.error);
    }
}

#[tokio::test]
async fn a_server_that_comes_back_is_found_again() {
    let server = Server::start().unwrap();
    let connection = connected(&server).await;
    server.kill().unwrap();
    let mut current = connection.link.clone();
    current.wait_for(|link| !link.is_up()).await.unwrap();
    assert_eq!(count(&connection, "lost").await.unwrap_err().reason, Reason::Connection);
    server.restart().unwrap();
    assert!(connection.connected(soon()).await);
    assert!(count(&connection, "told").await.is_ok());
}

#[tokio::test]
async fn a_server_that_does_not_answer_costs_the_deadline_and_no_more() {
    let server = Server::start().unwrap();
    let connection = connected(&server).await;
    server.pause().unwrap();
    let deadline = Instant::now() + Duration::from_millis(20);
    let failure = connection.send(&redis::cmd("PING"), deadline).await.unwrap_err();
    assert_eq!(failure, Failure::timeout());
}

#[tokio::test]
async fn a_connection_that_was_given_up_is_replaced() {
    let server = Server::start().unwrap();
    let connection = connected(&server).await;
    let id = |reply: Value| match reply {
        Value::Int(id) => id,
        other => panic!("{other:?}"),
    };
    let identify = || async {
        let mut command = redis::cmd("CLIENT");
        id(connection.send(command.arg("ID"), soon()).await.unwrap())
    };
    let before = identify().await;
    let mut current = connection.link.clone();
    current.mark_unchanged();
    connection.give_up();
    current.wait_for(|link| !link.is_up()).await.unwrap();
    assert!(connection.connected(soon()).await);
    assert_ne!(identify().await, before);
}

#[tokio::test]
async fn an_error_of_the_server_is_told_as_it_is() {
    let server = Server::start().unwrap();
    let connection = connected(&server).await;
    server.command(&["SET", "counted", "text"]).unwrap();
    let failure = count(&connection, "refused").await.unwrap_err();
    assert_eq!((failure.reason, failure.error.transient), (Reason::Refused, false));
}

#[tokio::test]
async fn a_wrong_password_is_told() {
    let server = Server::start().unwrap();
    server.command(&["CONFIG", "SET", "requirepass", "right"]).unwrap();
    let config = Config::parse(&server.url().replace("//", "//:wrong@")).unwrap();
    let connection = start(&config);
    let failure = count(&connection, "refused").await.unwrap_err();
    assert!(failure.error.detail.starts_with("cannot log in"), "{}", failure.error);
    assert!(!failure.error.transient, "{}", failure.error);
}

/// Trusts this certificate and no other.
fn trusting(made: &CertifiedKey<KeyPair>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
}

/// A server that speaks TLS too, on a second port, which is given as well.
async fn with_tls(made: &CertifiedKey<KeyPair>) -> (Server, u16) {
    let files = TempDir::new().unwrap();
    let (cert, key) = (files.path().join("cert.pem"), files.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let port = free_port().unwrap();
    let (cert, key, tls_port) = (cert.to_str().unwrap(), key.to_str().unwrap(), port.to_string());
    let arguments = ["--tls-port", &tls_port, "--tls-auth-clients", "no"];
    let files = ["--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert];
    (Server::start_with(&[&arguments[..], &files].concat()).unwrap(), port)
}

#[tokio::test]
async fn a_server_is_asked_over_tls_if_its_certificate_is_trusted() {
    let made = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (server, port) = with_tls(&made).await;
    let config = Config::parse(&format!("rediss://localhost:{port}")).unwrap();
    let connection = start(&config.clone().trust(trusting(&made)));
    assert!(connection.connected(soon()).await);
    assert!(count(&connection, "told").await.is_ok());
    assert_eq!(counted(&server), "1");
    let stranger = start(&config);
    let failure = count(&stranger, "refused").await.unwrap_err();
    assert!(failure.error.detail.contains("certificate"), "{}", failure.error);
}

#[tokio::test]
async fn a_reply_without_an_end_breaks_the_connection() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let config = Config::parse(&format!("redis://{address}")).unwrap();
    let connection = start(&config);
    let (mut socket, _) = listener.accept().await.unwrap();
    let flood = async {
        let mut sent = 0_usize;
        let mut bytes = b"$536870912\r\n".to_vec();
        while sent < 256 << 20 && socket.write_all(&bytes).await.is_ok() {
            sent += bytes.len();
            bytes = vec![b'x'; 1 << 16];
        }
        sent
    };
    let sent = tokio::time::timeout(PATIENCE, flood).await.unwrap();
    assert!(sent < 64 << 20, "{sent} bytes were taken");
    assert!(connection.last_error().is_some() || !connection.connected(Instant::now()).await);
}
