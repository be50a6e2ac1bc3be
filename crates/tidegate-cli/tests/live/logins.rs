//! The policy of docs/login.md, in front of services that read bodies in their own ways.

use std::thread;

use crate::attacks::document_policy;
use crate::services::LoginService;
use crate::support::{Client, Daemon, Reply, Upstream};

const ADA: &str = "ada@example.com";
const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";
const MULTIPART: &str = "multipart/form-data; boundary=b";
/// As many failures as an account may have before it is challenged.
const HONEST_GUESSES: usize = 10;

fn daemon(upstream: &str) -> Daemon {
    let (folder, policy) = document_policy("login.md", "login.yaml");
    let mut command = Daemon::command();
    command.arg(&policy).args(["--gateway", "127.0.0.1:0", "--upstream", upstream]);
    let mut daemon = Daemon::start(&mut command);
    daemon.folder = Some(folder);
    daemon
}

/// The n-th guess from an address of its own, which tells the gateway of another account, or of none.
fn attacks(n: usize) -> Vec<(Vec<&'static str>, String)> {
    let part = |name: &str, value: &str| {
        format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let bait = format!("d{n}");
    vec![
        (vec![FORM], format!(r#"{{"email":"{bait}","x":"&email={ADA}&"}}"#)),
        (vec![FORM], format!(r#"{{"email":"{ADA}","n":{n}}}"#)),
        (vec!["application/json; charset=utf-7"], format!(r#"{{"email":"{}"}}"#, in_utf_7(n))),
        (vec!["text/plain"], format!(r#"{{"email":"{ADA}","n":{n}}}"#)),
        (vec![], format!(r#"{{"email":"{ADA}","n":{n}}}"#)),
        (vec![JSON, FORM], format!(r#"{{"email":"{ADA}","n":{n}}}"#)),
        (vec![JSON], format!(r#"{{"email":"{bait}","EMAIL":"{ADA}"}}"#)),
        (vec![JSON], format!(r#"{{"email":"{bait}","email":"{ADA}"}}"#)),
        (vec![JSON], format!(r#"{{"EMAIL":"{ADA}","n":{n}}}"#)),
        (vec![JSON], format!(r#"{{"email":"{ADA}"}} {{"email":"{bait}"}}"#)),
        (vec![FORM], format!("email={bait}&email={ADA}")),
        (vec![FORM], format!("email={ADA}&email={bait}")),
        (vec![FORM], format!("email={bait}&email[]={ADA}")),
        (vec![FORM], format!("email[]={ADA}&n={n}")),
        (vec![MULTIPART], part("email", ADA) + &part("email", &bait) + "--b--\r\n"),
        (vec![MULTIPART], format!("--b\r\n--b\r\n{}--b--\r\n", &part("email", ADA)[5..])),
        (vec![MULTIPART], format!("{}x\r\n{}--b--", part("x", &bait), part("email", ADA))),
    ]
}

/// The account with some of its letters in UTF-7, by the bits of a number.
fn in_utf_7(bits: usize) -> String {
    let encoded = [("a", "+AGE-"), ("d", "+AGQ-"), ("e", "+AGU-"), ("x", "+AHg-"), ("m", "+AG0-")];
    let places = encoded.iter().enumerate().filter(|(place, _)| bits >> place & 1 == 1);
    places.fold(ADA.to_owned(), |text, (_, (letter, code))| text.replacen(letter, code, 1))
}

/// Sends everything at once, because answers to failures are held back.
fn attack(client: &Client, times: usize) {
    thread::scope(|scope| {
        for (number, (types, body)) in (0..times).flat_map(attacks).enumerate() {
            scope.spawn(move || {
                let address = format!("198.51.{}.{}", number / 200, number % 200 + 1);
                let mut headers = vec![("X-Forwarded-For", &*address)];
                headers.extend(types.iter().map(|line| ("Content-Type", *line)));
                client.send("POST", "/auth/login", &headers, Some(&body));
            });
        }
    });
}

/// An attacker gets no more guesses through the gateway than an honest client does.
fn assert_protected(service: &LoginService) {
    attack(&service.client(), 4);
    let unprotected = service.guesses(ADA);
    assert!(unprotected >= 4 * 4, "the service falls for {unprotected} of the attacks");
    attack(&daemon(&service.url()).gateway(), 8);
    let guesses = service.guesses(ADA) - unprotected;
    assert!(guesses <= HONEST_GUESSES, "{guesses} guesses");
}

#[test]
fn a_service_in_go_that_decodes_json_is_guessed_at_no_more_than_by_honest_requests() {
    LoginService::in_go("json").iter().for_each(assert_protected);
}

#[test]
fn a_service_in_go_that_reads_forms_is_guessed_at_no_more_than_by_honest_requests() {
    LoginService::in_go("form").iter().for_each(assert_protected);
}

#[test]
fn a_service_on_express_is_guessed_at_no_more_than_by_honest_requests() {
    LoginService::on_express().iter().for_each(assert_protected);
}

#[test]
fn twelve_people_who_log_in_by_a_form_are_counted_one_by_one() {
    let service = Upstream::replying(|request| {
        let is_right = String::from_utf8_lossy(&request.body).contains("right");
        Reply::Answer(if is_right { 200 } else { 401 }, String::new())
    });
    let daemon = daemon(&service.url());
    for person in 0..12 {
        let login = |password: &str| {
            let address = format!("203.0.113.{person}");
            let headers = [("X-Forwarded-For", &*address), ("Content-Type", FORM)];
            let body = format!("email=person{person}%40example.com&password={password}");
            daemon.gateway().send("POST", "/auth/login", &headers, Some(&body)).status
        };
        assert_eq!([login("wrong"), login("typo"), login("right")], [401, 401, 200], "{person}");
    }
    assert_eq!(service.count(), 36);
    let metrics = daemon.admin().get("/metrics").text();
    assert!(!metrics.contains("tidegate_unreadable_bodies_total{reason=\"type\"} 1"), "{metrics}");
}
