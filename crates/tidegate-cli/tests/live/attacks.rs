//! The policies of docs/login.md and docs/abuse.md, in front of a service that is attacked.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use crate::support::{Daemon, Reply, Upstream, eventually};

/// A policy out of a document, in a folder of its own.
pub(crate) fn document_policy(document: &str, file: &str) -> (tempfile::TempDir, PathBuf) {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(document);
    let text = fs::read_to_string(docs).unwrap();
    let block = text.split(&format!("```yaml file={file}\n")).nth(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(file);
    fs::write(&path, block.split("```").next().unwrap()).unwrap();
    (folder, path)
}

/// A policy out of a document, in front of a service, with a webhook.
struct Scene {
    daemon: Daemon,
    service: Upstream,
    hook: Upstream,
}

impl Scene {
    fn new(document: &str, file: &str) -> Self {
        let (folder, path) = document_policy(document, file);
        let service = Upstream::replying(|request| {
            let is_login = request.line.starts_with("POST /auth/login");
            let is_right = String::from_utf8_lossy(&request.body).contains("right horse");
            Reply::Answer(if is_login && !is_right { 401 } else { 200 }, "service\n".to_owned())
        });
        let hook = Upstream::start();
        let mut command = Daemon::command();
        command.arg(&path).args(["--gateway", "127.0.0.1:0", "--upstream", &service.url()]);
        command.args(["--notify-allow-private", "127.0.0.0/8"]);
        command.env("SECURITY_WEBHOOK", hook.url()).env("OPERATORS_WEBHOOK", hook.url());
        let mut daemon = Daemon::start(&mut command);
        daemon.folder = Some(folder);
        Self { daemon, service, hook }
    }

    fn login(&self, ip: &str, email: &str, password: &str) -> u16 {
        let body = format!("{{\"email\":\"{email}\",\"password\":\"{password}\"}}");
        let headers = [("X-Forwarded-For", ip), ("Content-Type", "application/json")];
        self.daemon.gateway().send("POST", "/auth/login", &headers, Some(&body)).status
    }

    fn get(&self, ip: &str, path: &str) -> u16 {
        self.daemon.gateway().send("GET", path, &[("X-Forwarded-For", ip)], None).status
    }
}

#[test]
fn one_account_is_guessed_from_many_addresses_at_once() {
    let scene = Scene::new("login.md", "login.yaml");
    let guess = |n: usize| {
        let password = if n == 30 { "right horse".to_owned() } else { format!("guess {n}") };
        scene.login(&format!("198.51.{n}.1"), "Ada@example.com", &password)
    };
    // Answers are held back, so a test cannot wait for them one by one.
    let together = |guesses: std::ops::Range<usize>| -> Vec<u16> {
        thread::scope(|scope| {
            let running: Vec<_> = guesses.map(|n| scope.spawn(move || guess(n))).collect();
            running.into_iter().map(|one| one.join().unwrap()).collect()
        })
    };
    assert_eq!(together(0..10), [401; 10]);
    assert_eq!(together(10..60), [403; 50], "challenged, the right password too");
    assert_eq!(scene.service.count(), 10);
    assert_eq!(scene.login("192.0.2.1", "bob@example.com", "right horse"), 200);
}

#[test]
fn many_accounts_are_tried_from_one_address() {
    let scene = Scene::new("abuse.md", "stuffing.yaml");
    let attack = |n: usize| scene.login("192.0.2.1", &format!("user{n}@example.com"), "1234");
    let statuses: Vec<u16> = (0..30).map(attack).collect();
    assert_eq!(statuses[..20], [401; 20]);
    assert_eq!(statuses[20..], [403; 10], "banned");
    assert_eq!(scene.service.count(), 20);
    assert_eq!(scene.login("192.0.2.77", "ada@example.com", "right horse"), 403, "its network");
    assert_eq!(scene.login("198.51.100.1", "ada@example.com", "right horse"), 200);
}

#[test]
fn many_accounts_are_tried_from_many_addresses() {
    let scene = Scene::new("abuse.md", "stuffing.yaml");
    let attack = |n: usize| {
        let ip = format!("198.{}.{}.1", n / 200, n % 200);
        scene.login(&ip, &format!("user{n}@example.com"), "1234")
    };
    // However slow this host is, at some time the attack is faster than the limit.
    let refused = (0..5_000).find(|n| attack(*n) != 401).unwrap();
    assert!(refused >= 300, "{refused}");
    assert_eq!(scene.service.count(), refused);
    assert_eq!(attack(5_001), 403, "challenged");
    eventually("the message", || scene.hook.count() == 1);
}

#[test]
fn a_catalogue_is_crawled() {
    let scene = Scene::new("abuse.md", "scraping.yaml");
    let pages: Vec<u16> =
        (0..200).map(|n| scene.get("192.0.2.1", &format!("/items/{n}"))).collect();
    assert_eq!(pages[..60], [200; 60]);
    assert_eq!(pages[60..], [403; 140]);
    assert_eq!(scene.service.count(), 60);
    assert_eq!(scene.get("192.0.2.200", "/items/1"), 403, "its network");
    assert_eq!(scene.get("198.51.100.1", "/items/1"), 200);
}

#[test]
fn one_address_floods() {
    let scene = Scene::new("abuse.md", "floods.yaml");
    let is_banned = (0..5_000).any(|_| scene.get("192.0.2.1", "/") == 403);
    assert!(is_banned);
    let served = scene.service.count();
    for _ in 0..50 {
        assert_eq!(scene.get("192.0.2.1", "/"), 403);
    }
    assert_eq!(scene.service.count(), served);
    assert_eq!(scene.get("198.51.100.1", "/"), 200);
    assert_eq!(scene.get("192.0.2.1", "/health"), 200);
}
