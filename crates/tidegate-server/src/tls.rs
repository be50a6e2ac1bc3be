//! TLS of the listeners: a certificate and its key from PEM files, which can be read again while
//! connections are open.

mod trust;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{InconsistentKeys, ServerConfig};

pub(crate) use trust::{Trust, trusting};

use crate::error::StartError;
use crate::files::read_bytes;

/// The certificate in force, and where it came from. Every handshake takes the one of its moment.
#[derive(Debug)]
pub(crate) struct Certificates {
    cert: PathBuf,
    key: PathBuf,
    current: ArcSwap<CertifiedKey>,
}

impl Certificates {
    /// Reads a certificate, with its chain behind it, and its private key.
    ///
    /// # Errors
    /// A file cannot be read or holds something else, or the two do not belong together.
    pub(crate) fn load(cert: &Path, key: &Path) -> Result<Arc<Self>, StartError> {
        let current = ArcSwap::from_pointee(read(cert, key)?);
        Ok(Arc::new(Self { cert: cert.to_owned(), key: key.to_owned(), current }))
    }

    /// Reads the files again. Connections from now on get the new certificate.
    ///
    /// # Errors
    /// As [`load`](Self::load); then the old certificate stays.
    pub(crate) fn reload(&self) -> Result<(), StartError> {
        self.current.store(Arc::new(read(&self.cert, &self.key)?));
        Ok(())
    }

    /// What a listener needs: TLS 1.2 and 1.3, HTTP/2 before HTTP/1.1. It follows every reload.
    ///
    /// # Errors
    /// The cryptography has neither version, which does not happen with the one built in.
    pub(crate) fn server_config(self: &Arc<Self>) -> Result<Arc<ServerConfig>, rustls::Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
            .with_protocol_versions(&[&TLS13, &TLS12])?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

fn provider() -> CryptoProvider {
    aws_lc_rs::default_provider()
}

fn read(cert: &Path, key: &Path) -> Result<CertifiedKey, StartError> {
    let expected = "expected a certificate in PEM, with its chain behind it";
    let chain = certificates_in(cert, expected)?;
    let private = PrivateKeyDer::from_pem_slice(&read_bytes(key)?);
    let private = private.map_err(|error| {
        refuse(key, format!("has no usable key ({error}), expected a private key in PEM"))
    })?;
    CertifiedKey::from_der(chain, private, &provider()).map_err(|error| match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            let problem = format!("does not belong to the certificate in {}", cert.display());
            refuse(key, problem)
        }
        rustls::Error::InvalidCertificate(error) => {
            refuse(cert, format!("holds a broken certificate ({error:?}), {expected}"))
        }
        error => {
            let expected = "expected a private key in PEM: RSA, EC or Ed25519";
            refuse(key, format!("cannot be used ({error}), {expected}"))
        }
    })
}

/// All certificates of a file, one at least.
fn certificates_in(
    file: &Path,
    expected: &str,
) -> Result<Vec<CertificateDer<'static>>, StartError> {
    let found: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(&read_bytes(file)?).collect();
    let found = found.map_err(|error| refuse(file, format!("is broken ({error}), {expected}")))?;
    if found.is_empty() {
        return Err(refuse(file, format!("holds no certificate, {expected}")));
    }
    Ok(found)
}

fn refuse(file: &Path, problem: impl fmt::Display) -> StartError {
    StartError::new(format!("the file {} {problem}", file.display()))
}

#[cfg(test)]
mod tests;
