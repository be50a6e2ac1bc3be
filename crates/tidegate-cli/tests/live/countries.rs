//! Countries of clients, on the gateway and on the API, from a database that is replaced.

use std::fs;
use std::net::IpAddr;

use serde_json::json;
use tidegate_testkit::geography::{RecordForm, database};

use crate::support::{Daemon, Upstream, eventually};

const POLICY: &str = "
tidegate: 1
name: live
identity: { trusted_proxies: [127.0.0.0/8] }
block: { countries: [KP] }
limits:
  home: { when: { country: DE }, by: ip, total: 1 }
";

fn networks(first: &str) -> Vec<u8> {
    let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
    let networks = [(ip("192.0.2.0"), 24, first), (ip("2001:db8::"), 32, "KP")];
    database(RecordForm::Nested, &networks)
}

#[test]
fn clients_are_blocked_and_limited_by_the_country_of_their_address() {
    let (upstream, folder) = (Upstream::start(), tempfile::tempdir().unwrap());
    let file = folder.path().join("countries.mmdb");
    fs::write(&file, networks("DE")).unwrap();
    let file_flag = ["--geoip", file.to_str().unwrap()];
    let daemon = Daemon::with_policy_and(POLICY, Some(&upstream), &file_flag);
    let send =
        |ip: &str| daemon.gateway().send("GET", "/", &[("X-Forwarded-For", ip)], None).status;
    assert_eq!([send("192.0.2.1"), send("192.0.2.1")], [200, 429], "DE");
    assert_eq!(send("2001:db8::1"), 403, "KP");
    assert_eq!([send("198.51.100.1"), send("198.51.100.1")], [200, 200], "nobody knows where");
    let outcome = |body| daemon.check(&body).json()["outcome"].clone();
    assert_eq!(outcome(json!({ "ip": "2001:db8::2" })), "blocked");
    assert_eq!(outcome(json!({ "ip": "2001:db8::2", "country": "FR" })), "allowed", "is believed");
    assert!(!daemon.status()["warnings"].to_string().contains("countries"));

    let beside = folder.path().join("new");
    fs::write(&beside, networks("KP")).unwrap();
    fs::rename(&beside, &file).unwrap();
    eventually("the new database", || send("192.0.2.1") == 403);
    fs::write(&file, "no database").unwrap();
    daemon.wait_for_log("reload_refused");
    assert_eq!(send("192.0.2.1"), 403, "the old one stays");
}

#[test]
fn a_broken_database_ends_the_start_and_one_without_countries_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (file, policy) = (folder.path().join("broken.mmdb"), folder.path().join("policy.yaml"));
    fs::write(&file, "192.0.2.0/24 DE").unwrap();
    fs::write(&policy, POLICY).unwrap();
    let output = Daemon::command().arg(&policy).arg("--geoip").arg(&file).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && told.contains("--geoip: the file "), "{told}");

    let upstream = Upstream::start();
    let daemon = Daemon::with_policy(POLICY, Some(&upstream));
    let warnings = daemon.status()["warnings"].to_string();
    assert!(warnings.contains("`block.countries` blocks nobody on the gateway"), "{warnings}");
}

#[test]
fn reports_are_counted_by_the_country_of_the_address_that_they_say() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("countries.mmdb");
    fs::write(&file, networks("DE")).unwrap();
    let policy = "
tidegate: 1
name: live
events: { bad: {} }
penalties: { p: { event: bad, by: [country, user], within: 1h, ladder: { 2: { delay: 2s } } } }
";
    let daemon = Daemon::with_policy_and(policy, None, &["--geoip", file.to_str().unwrap()]);
    let delay = |ip: &str| {
        let body = json!({ "event": "bad", "user": "u", "ip": ip }).to_string();
        daemon.api().post("/v1/report", &body).json()["delay_ms"].clone()
    };
    assert_eq!([delay("192.0.2.1"), delay("192.0.2.2")], [0, 2_000], "both are in DE");
    assert_eq!([delay("198.51.100.1"), delay("198.51.100.1")], [0, 0], "nobody knows where");
}
