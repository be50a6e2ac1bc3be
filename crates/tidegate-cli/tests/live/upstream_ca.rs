//! Upstreams whose certificates come from an authority of the company's own.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::support::{Daemon, eventually};

const OPEN: &str = "{ tidegate: 1, name: live }";

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A service that answers one request a connection, with a certificate of this authority.
fn upstream(authority: &Authority) -> String {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let certificate = params.signed_by(&key, authority).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        );
    let config = Arc::new(config.unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = StreamOwned::new(connection, socket);
            let mut request = [0; 1024];
            // A client that does not trust the certificate has disconnected.
            if stream.read(&mut request).is_ok_and(|bytes| bytes > 0) {
                let answer =
                    "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsecret";
                let _ = stream.write_all(answer.as_bytes());
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        }
    });
    url
}

/// A folder with a policy, and a file of authorities.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new(authorities: &str) -> Self {
        let files = Self { folder: tempfile::tempdir().unwrap() };
        fs::write(files.path("policy.yaml"), OPEN).unwrap();
        fs::write(files.path("ca.pem"), authorities).unwrap();
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, upstream: &str) -> std::process::Command {
        let mut command = Daemon::command();
        command.arg(self.path("policy.yaml")).arg("--upstream-ca").arg(self.path("ca.pem"));
        command.args(["--gateway", "127.0.0.1:0", "--upstream", upstream]);
        command
    }

    /// The message of a daemon that does not start.
    fn refusal(&self, upstream: &str) -> String {
        let output = self.command(upstream).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    }
}

#[test]
fn only_an_authority_that_was_given_is_trusted_beside_the_well_known() {
    let (ours, theirs) = (authority("ours"), authority("theirs"));
    let (known, stranger) = (upstream(&ours), upstream(&theirs));
    let files = Files::new(&ours.pem());
    let daemon = Daemon::start(&mut files.command(&known));
    assert_eq!(daemon.gateway().get("/").text(), "secret");
    let daemon = Daemon::start(&mut files.command(&stranger));
    assert_eq!(daemon.gateway().get("/").status, 502);
    daemon.wait_for_log("upstream_unreachable");
}

#[test]
fn a_changed_file_of_authorities_is_read_again_and_a_broken_one_refused() {
    let (ours, next) = (authority("ours"), authority("next"));
    let files = Files::new(&ours.pem());
    let daemon = Daemon::start(&mut files.command(&upstream(&next)));
    assert_eq!(daemon.gateway().get("/").status, 502);
    fs::write(files.path("ca.pem"), format!("{}{}", ours.pem(), next.pem())).unwrap();
    eventually("the new authority", || daemon.gateway().get("/").status == 200);
    fs::write(files.path("ca.pem"), "nothing").unwrap();
    daemon.wait_for_log("the roots of the upstream (the file ");
    assert_eq!(daemon.gateway().get("/").status, 200, "what was in force stays");
}

#[test]
fn a_file_that_cannot_be_used_or_is_not_needed_ends_the_start() {
    let files = Files::new("");
    let said = files.refusal("https://localhost");
    assert!(said.contains("ca.pem holds no certificate"), "{said}");
    fs::remove_file(files.path("ca.pem")).unwrap();
    let said = files.refusal("https://localhost");
    assert!(said.contains("cannot read ") && said.contains("ca.pem"), "{said}");
    fs::write(files.path("ca.pem"), authority("ours").pem()).unwrap();
    let said = files.refusal("http://localhost");
    assert!(said.contains("`https://`, since --upstream-ca is given"), "{said}");
}
