//! One database of countries.

use std::collections::HashMap;
use std::fmt::Display;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use maxminddb::{LookupResult, PathElement, Reader, WithinOptions};
use serde::de::IgnoredAny;
use tidegate::engine::CountryCode;

use super::ranges::Ranges;
use crate::error::StartError;
use crate::files::{self, FileError};

/// No database is larger. A database of all cities has a tenth of this size.
const BYTES_MAX: u64 = 1 << 30;
/// The code for an unknown country in some databases.
const NOWHERE: &str = "ZZ";

/// Where a record has its country.
const PATHS: [&[PathElement<'static>]; 2] = [
    &[PathElement::Key("country"), PathElement::Key("iso_code")],
    &[PathElement::Key("country_code")],
];

/// The countries of a verified database, as sorted ranges. To walk down the tree of the file and to
/// decode a record for each address would take ten times as long.
#[derive(Debug)]
pub(super) struct Database {
    v4: Ranges<u32>,
    v6: Ranges<u128>,
    stamp: Stamp,
}

/// Tells a file from the one that was there before: device, inode, length and change time.
type Stamp = (u64, u64, u64, i64, i64);

impl Database {
    /// Reads and verifies a file; `None` if it is the file of `known`.
    ///
    /// # Errors
    /// It cannot be read, is broken, or has no countries.
    pub(super) fn load(path: &Path, known: Option<&Self>) -> Result<Option<Self>, StartError> {
        let refuse = |problem: &dyn Display| StartError::new(format!("--geoip: {problem}"));
        let mut file = files::open(path).map_err(|error| refuse(&error))?;
        let unreadable = |error: io::Error| refuse(&FileError::new(path, error));
        let found = file.metadata().map_err(unreadable)?;
        let stamp: Stamp =
            (found.dev(), found.ino(), found.len(), found.ctime(), found.ctime_nsec());
        if known.is_some_and(|known| known.stamp == stamp) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        (&mut file).take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if u64::try_from(bytes.len()).is_ok_and(|length| length > BYTES_MAX) {
            return Err(refuse(&FileError::new(path, "it is larger than 1 GiB")));
        }
        let (v4, v6) = read(bytes)
            .map_err(|problem| refuse(&format_args!("the file {} {problem}", path.display())))?;
        let ranges = v4.len() + v6.len();
        tracing::info!(event = "geoip_loaded", ranges, "countries are known");
        Ok(Some(Self { v4, v6, stamp }))
    }

    /// The country of an address.
    pub(super) fn country(&self, ip: IpAddr) -> Option<CountryCode> {
        match ip {
            IpAddr::V4(ip) => self.v4.country(ip.to_bits()),
            IpAddr::V6(ip) => self.v6.country(ip.to_bits()),
        }
    }
}

/// The countries of a database, or what is wrong with it.
fn read(bytes: Vec<u8>) -> Result<(Ranges<u32>, Ranges<u128>), String> {
    let expected = "expected a database of countries in the MMDB form";
    let broken = |error| format!("is broken or something else ({error}), {expected}");
    let reader = Reader::from_source(bytes).map_err(broken)?;
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    // Many networks share a record.
    let mut known: HashMap<Option<usize>, Option<CountryCode>> = HashMap::new();
    for record in reader.networks(WithinOptions::default()).map_err(broken)? {
        let record = record.map_err(broken)?;
        let network = record.network().map_err(broken)?;
        let country = match known.get(&record.offset()) {
            Some(country) => *country,
            None => {
                // The whole record is decoded, so that a broken file is found here.
                record.decode::<IgnoredAny>().map_err(broken)?;
                *known.entry(record.offset()).or_insert(country(&record))
            }
        };
        match (network.network(), network.broadcast()) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                v4.push((first.to_bits(), last.to_bits(), country));
            }
            (first, last) => v6.push((bits(first), bits(last), country)),
        }
    }
    let v4 = Ranges::new(v4, |last: u32| last.checked_add(1));
    let v6 = Ranges::new(v6, |last: u128| last.checked_add(1));
    if v4.knows_any() || v6.knows_any() {
        return Ok((v4, v6));
    }
    let database = &reader.metadata().database_type;
    Err(format!(
        "(`{database}`) has no countries, expected records with `country_code` or `country.iso_code`"
    ))
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn country(record: &LookupResult<'_, Vec<u8>>) -> Option<CountryCode> {
    let code = PATHS.iter().find_map(|path| record.decode_path::<&str>(path).ok().flatten())?;
    CountryCode::new(code).filter(|_| code != NOWHERE)
}
