//! Servers that speak TLS beside their ordinary port.

use std::io;
use std::path::PathBuf;

use super::free_port;

/// A certificate that servers show, and that they trust among themselves; both files are PEM.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Where the certificate is.
    pub certificate: PathBuf,
    /// Where its key is.
    pub key: PathBuf,
}

impl Tls {
    /// The arguments of a server that speaks TLS on a second port. Clients need no certificate. Servers
    /// speak TLS to each other too; otherwise they announce the wrong ports to clients.
    pub(super) fn arguments(&self) -> io::Result<Vec<String>> {
        let (certificate, key) =
            (self.certificate.display().to_string(), self.key.display().to_string());
        let pairs = [
            ("--tls-port", free_port()?.to_string()),
            ("--tls-cert-file", certificate.clone()),
            ("--tls-key-file", key),
            ("--tls-ca-cert-file", certificate),
            ("--tls-auth-clients", "no".to_owned()),
            ("--tls-replication", "yes".to_owned()),
            ("--tls-cluster", "yes".to_owned()),
        ];
        Ok(pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect())
    }
}
