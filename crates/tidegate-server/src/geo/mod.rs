//! The countries of clients, from a database in the MMDB form.
//!
//! The file is verified and read into memory: a file that is mapped could change under a reader. A
//! reload replaces the database, unless the new file is broken.

mod database;
mod ranges;

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use tidegate::engine::{Countries, CountryCode};

use crate::error::StartError;
use database::Database;

/// The database in force, if there is one.
#[derive(Debug, Default)]
pub struct GeoIp {
    current: ArcSwapOption<Database>,
}

impl GeoIp {
    /// The database of a file; without a file no country is known.
    ///
    /// # Errors
    /// The file cannot be read, or is no database of countries.
    pub fn load(path: Option<&Path>) -> Result<Self, StartError> {
        let database = path.map(|path| Database::load(path, None)).transpose()?.flatten();
        Ok(Self { current: ArcSwapOption::from_pointee(database) })
    }

    /// Reads the file again, unless it is the one in force.
    ///
    /// # Errors
    /// As [`load`](Self::load); then the old database stays.
    pub(crate) fn reload(&self, path: &Path) -> Result<(), StartError> {
        let current = self.current.load_full();
        if let Some(database) = Database::load(path, current.as_deref())? {
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
