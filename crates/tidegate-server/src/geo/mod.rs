//! Which country clients are in, from a database in the MMDB form.
//!
//! It is verified, and then all that it says of countries is in memory: a file that is mapped could
//! change under the feet of whoever reads it. When the file is replaced, the new one is put in its place, or, if it is broken,
//! refused.

mod database;
mod ranges;

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use tidegate::{Countries, CountryCode};

use database::Database;
pub use database::GeoError;

/// The database in force, if there is one.
#[derive(Debug, Default)]
pub struct GeoIp {
    current: ArcSwapOption<Database>,
}

impl GeoIp {
    /// The database of a file; without one nothing is known.
    ///
    /// # Errors
    /// The file cannot be read, or is no database of countries.
    pub fn load(path: Option<&Path>) -> Result<Self, GeoError> {
        let database = path.map(|path| Database::load(path, None)).transpose()?.flatten();
        Ok(Self { current: ArcSwapOption::from_pointee(database) })
    }

    /// Reads the file again, beside whatever else goes on, unless it is the one in force.
    ///
    /// # Errors
    /// As [`load`](Self::load); then the old database stays.
    pub(crate) async fn reload(&self, path: &Path) -> Result<(), GeoError> {
        let (path, known) = (path.to_owned(), self.current.load_full());
        let loading =
            tokio::task::spawn_blocking(move || Database::load(&path, known.as_deref())).await;
        if let Some(database) = loading.map_err(GeoError::new)?? {
            self.current.store(Some(Arc::new(database)));
        }
        Ok(())
    }
}

impl Countries for GeoIp {
    fn country(&self, ip: IpAddr) -> Option<CountryCode> {
        self.current.load().as_deref()?.country(ip)
    }
}

#[cfg(test)]
mod tests;
