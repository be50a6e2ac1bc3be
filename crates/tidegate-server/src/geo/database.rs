//! One database of countries.

use std::collections::HashMap;
use std::fmt;
use std::fs::Metadata;
use std::io::Read as _;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use maxminddb::{LookupResult, PathElement, Reader, WithinOptions};
use serde::de::IgnoredAny;
use tidegate::CountryCode;

use super::ranges::Ranges;
use crate::files::{self, Unreadable};

/// No database is larger; that of all cities has about a tenth of it.
const BYTES_MAX: u64 = 1 << 30;
/// What some databases say of addresses whose country they do not know.
const NOWHERE: &str = "ZZ";

/// Where records have their country.
const PATHS: [&[PathElement<'static>]; 2] = [
    &[PathElement::Key("country"), PathElement::Key("iso_code")],
    &[PathElement::Key("country_code")],
];

/// What a database that was verified says of countries, and nothing else of it: to walk down its
/// tree and to decode a record for each address would take ten times as long.
#[derive(Debug)]
pub(super) struct Database {
    v4: Ranges<u32>,
    v6: Ranges<u128>,
    stamp: Stamp,
}

/// What tells a file from the one that was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    changed: (i64, i64),
}

/// Why a file is no database of countries.
#[derive(Debug)]
pub struct GeoError(String);

impl GeoError {
    pub(super) fn new(detail: impl fmt::Display) -> Self {
        Self(detail.to_string())
    }
}

impl fmt::Display for GeoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--geoip: {}", self.0)
    }
}

impl std::error::Error for GeoError {}

impl From<Unreadable> for GeoError {
    fn from(error: Unreadable) -> Self {
        Self::new(error)
    }
}

impl Database {
    /// Reads and verifies a file; `None` where it is the one that is known.
    ///
    /// # Errors
    /// It cannot be read, is broken, or knows no countries.
    pub(super) fn load(path: &Path, known: Option<&Self>) -> Result<Option<Self>, GeoError> {
        let mut file = files::open(path)?;
        let unreadable = |error: std::io::Error| GeoError::from(Unreadable::new(path, error));
        let stamp = Stamp::of(&file.metadata().map_err(unreadable)?);
        if known.is_some_and(|known| known.stamp == stamp) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        (&mut file).take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if u64::try_from(bytes.len()).is_ok_and(|length| length > BYTES_MAX) {
            return Err(Unreadable::new(path, "it is larger than 1 GiB").into());
        }
        let (v4, v6) = read(bytes)
            .map_err(|problem| GeoError::new(format!("the file {} {problem}", path.display())))?;
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

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.len(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// The countries of a database without faults; otherwise what is wrong with it.
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
                // All of it, as what is broken elsewhere in the file is not to be trusted here.
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
    let said = PATHS.iter().find_map(|path| record.decode_path::<&str>(path).ok().flatten())?;
    CountryCode::new(said).filter(|_| said != NOWHERE)
}
