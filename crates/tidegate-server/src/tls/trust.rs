//! TLS to the upstream: verified by the well-known roots, and by those of a file besides, which can
//! be read again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{Connect, TlsConnector};

use super::{certificates_in, provider, refuse};
use crate::error::StartError;

/// What an upstream's certificate is verified by. Every handshake takes that of its moment.
#[derive(Debug)]
pub(crate) struct Trust {
    own: Option<PathBuf>,
    config: ArcSwap<ClientConfig>,
}

impl Trust {
    /// The well-known roots, and those of a PEM file if there is one.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else.
    pub(crate) fn load(own: Option<&Path>) -> Result<Arc<Self>, StartError> {
        let config = ArcSwap::from_pointee(config(own)?);
        Ok(Arc::new(Self { own: own.map(Path::to_owned), config }))
    }

    /// Reads the file again. Connections from now on are verified by what it says.
    ///
    /// # Errors
    /// As [`load`](Self::load); then the old roots stay.
    pub(crate) fn reload(&self) -> Result<(), StartError> {
        self.config.store(Arc::new(config(self.own.as_deref())?));
        Ok(())
    }

    /// A handshake with the server of this name.
    pub(crate) fn connect<S>(&self, name: ServerName<'static>, stream: S) -> Connect<S>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        TlsConnector::from(self.config.load_full()).connect(name, stream)
    }
}

/// Trusts the well-known roots, and those of a PEM file.
///
/// # Errors
/// The file cannot be read, or holds something else.
pub(crate) fn trusting(own: &Path) -> Result<Arc<ClientConfig>, StartError> {
    config(Some(own)).map(Arc::new)
}

fn config(own: Option<&Path>) -> Result<ClientConfig, StartError> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(file) = own {
        for certificate in certificates_in(file, "expected certificates of authorities in PEM")? {
            roots.add(certificate).map_err(|error| {
                refuse(file, format!("holds a certificate that cannot be a root: {error}"))
            })?;
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_safe_default_protocol_versions()
        .map_err(StartError::new)?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
