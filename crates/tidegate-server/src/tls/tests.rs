//! Handshakes with real clients over memory.

use rcgen::{CertifiedKey as Made, KeyPair, generate_simple_self_signed};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tempfile::TempDir;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;

fn made() -> Made<KeyPair> {
    generate_simple_self_signed(["localhost".to_owned()]).unwrap()
}

struct Files {
    _folder: TempDir,
    cert: PathBuf,
    key: PathBuf,
}

impl Files {
    fn of(made: &Made<KeyPair>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        let files = Self { _folder: folder, cert, key };
        files.write(&made.cert.pem(), &made.signing_key.serialize_pem());
        files
    }

    fn write(&self, cert: &str, key: &str) {
        std::fs::write(&self.cert, cert).unwrap();
        std::fs::write(&self.key, key).unwrap();
    }

    fn load(&self) -> Result<Arc<Certificates>, StartError> {
        Certificates::load(&self.cert, &self.key)
    }
}

/// What one connection agreed on.
struct Agreed {
    alpn: Option<Vec<u8>>,
    version: Option<rustls::ProtocolVersion>,
}

/// Connects as a client that trusts this certificate and no other.
async fn connect(
    server: &Arc<ServerConfig>,
    trusted: &Made<KeyPair>,
    versions: &[&'static SupportedProtocolVersion],
    alpn: &[&str],
) -> std::io::Result<Agreed> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.cert.der().clone()).unwrap();
    let mut client = ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let (near, far) = tokio::io::duplex(16 * 1024);
    let name = ServerName::try_from("localhost").unwrap();
    let acceptor = TlsAcceptor::from(Arc::clone(server));
    let connector = TlsConnector::from(Arc::new(client));
    let (connected, _) = tokio::join!(connector.connect(name, near), acceptor.accept(far));
    let connected = connected?;
    let (_, session) = connected.get_ref();
    Ok(Agreed {
        alpn: session.alpn_protocol().map(<[u8]>::to_vec),
        version: session.protocol_version(),
    })
}

#[tokio::test]
async fn both_versions_and_both_protocols_are_served() {
    let made = made();
    let config = Files::of(&made).load().unwrap().server_config().unwrap();
    for version in [&TLS12, &TLS13] {
        let both = connect(&config, &made, &[version], &["http/1.1", "h2"]).await.unwrap();
        assert_eq!(both.alpn.as_deref(), Some(&b"h2"[..]));
        assert_eq!(both.version, Some(version.version));
        let old = connect(&config, &made, &[version], &["http/1.1"]).await.unwrap();
        assert_eq!(old.alpn.as_deref(), Some(&b"http/1.1"[..]));
    }
}

#[tokio::test]
async fn a_reload_changes_the_certificate_of_new_connections() {
    let (old, new) = (made(), made());
    let files = Files::of(&old);
    let certificates = files.load().unwrap();
    let config = certificates.server_config().unwrap();
    assert!(connect(&config, &old, &[&TLS13], &[]).await.is_ok());
    assert!(connect(&config, &new, &[&TLS13], &[]).await.is_err());
    files.write(&new.cert.pem(), &new.signing_key.serialize_pem());
    assert!(connect(&config, &old, &[&TLS13], &[]).await.is_ok(), "not read by itself");
    certificates.reload().unwrap();
    assert!(connect(&config, &new, &[&TLS13], &[]).await.is_ok());
    assert!(connect(&config, &old, &[&TLS13], &[]).await.is_err());
}

#[tokio::test]
async fn broken_files_keep_the_old_certificate() {
    let (old, new) = (made(), made());
    let files = Files::of(&old);
    let certificates = files.load().unwrap();
    let config = certificates.server_config().unwrap();
    for (cert, key) in [
        (new.cert.pem(), old.signing_key.serialize_pem()),
        (String::new(), new.signing_key.serialize_pem()),
        (new.cert.pem(), "half a ke".to_owned()),
    ] {
        files.write(&cert, &key);
        assert!(certificates.reload().is_err());
        assert!(connect(&config, &old, &[&TLS13], &[]).await.is_ok());
    }
    std::fs::remove_file(&files.key).unwrap();
    assert!(certificates.reload().is_err());
    assert!(connect(&config, &old, &[&TLS13], &[]).await.is_ok());
}

#[test]
fn files_that_cannot_be_used_are_named_with_what_was_expected() {
    let (one, other) = (made(), made());
    let files = Files::of(&one);
    let (cert, key) = (one.cert.pem(), one.signing_key.serialize_pem());
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for (cert, key, file, expected) in [
        ("", &*key, "cert.pem", "holds no certificate"),
        (&*key, &*key, "cert.pem", "holds no certificate"),
        ("-----BEGIN CERTIFICATE-----\n!", &*key, "cert.pem", "is broken"),
        (broken, &*key, "cert.pem", "broken certificate"),
        (&*cert, "", "key.pem", "expected a private key"),
        (&*cert, &*cert, "key.pem", "expected a private key"),
        (&*cert, &other.signing_key.serialize_pem(), "key.pem", "does not belong"),
        (&"x".repeat(1024 * 1024 + 1), &*key, "cert.pem", "larger than 1 MiB"),
    ] {
        files.write(cert, key);
        let said = files.load().unwrap_err().to_string();
        assert!(said.contains(file) && said.contains(expected), "{expected}: {said}");
    }
    std::fs::remove_file(&files.cert).unwrap();
    let said = files.load().unwrap_err().to_string();
    assert!(said.starts_with("cannot read ") && said.contains("cert.pem: "), "{said}");
}
