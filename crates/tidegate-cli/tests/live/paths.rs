//! Spellings of a path: each counts on the limit of the plain path, or is refused as malformed, and
//! the upstream reads the counted path.

use std::io::Write as _;

use crate::support::{Answer, Daemon, Upstream};

const POLICY: &str = "
tidegate: 1
name: live
operations:
  login: POST|GET /auth/login
  open: /open/**
limits:
  login: { when: login, by: ip, total: 1000 }
";

struct World {
    daemon: Daemon,
    upstream: Upstream,
}

impl World {
    fn new() -> Self {
        let upstream = Upstream::start();
        Self { daemon: Daemon::with_policy(POLICY, Some(&upstream)), upstream }
    }

    fn send(&self, line: &[u8]) -> Answer {
        self.send_to("shop.example", line)
    }

    /// Sends a request with exactly this first line.
    fn send_to(&self, host: &str, line: &[u8]) -> Answer {
        let mut bytes = line.to_vec();
        bytes.extend_from_slice(format!("\r\nHost: {host}\r\n\r\n").as_bytes());
        let mut connection = self.daemon.gateway().connect();
        connection.socket.write_all(&bytes).unwrap();
        connection.answer()
    }

    fn get(&self, target: &[u8]) -> Answer {
        self.send(&[b"GET ", target, b" HTTP/1.1"].concat())
    }

    /// What is left of the limit, after this request.
    fn remaining(&self, answer: &Answer) -> u64 {
        let remaining = answer.header("x-ratelimit-remaining");
        remaining.unwrap_or_else(|| panic!("it was not counted: {answer:?}")).parse().unwrap()
    }

    fn plain(&self) -> u64 {
        self.remaining(&self.get(b"/auth/login"))
    }

    /// The target that the upstream saw last.
    fn forwarded(&self) -> String {
        self.upstream.last().line.split(' ').nth(1).unwrap().to_owned()
    }
}

#[test]
fn every_spelling_counts_on_the_limit_of_the_plain_path() {
    let world = World::new();
    for (target, forwarded) in [
        ("/auth/login", "/auth/login"),
        ("/auth/login/", "/auth/login/"),
        ("//auth///login//", "/auth///login//"),
        ("/./auth/./login", "/auth/login"),
        ("/open/../auth/login", "/auth/login"),
        ("/../../auth/login", "/auth/login"),
        ("/open/%2e%2e/auth/login", "/auth/login"),
        ("/open/%2E%2e/auth/login", "/auth/login"),
        ("/open/.%2e/auth/login", "/auth/login"),
        ("/open/..;x=1/auth/login", "/auth/login"),
        ("/open//../auth/login", "/auth/login"),
        ("/auth/login/.", "/auth/login/"),
        ("/auth/login/x/..", "/auth/login/"),
        ("/auth;x=1/login;y", "/auth;x=1/login;y"),
        ("/;x/auth/login", "/;x/auth/login"),
        ("/%61uth/login", "/%61uth/login"),
        ("/%61%75%74%68/%6C%6f%67%69%6e", "/%61%75%74%68/%6C%6f%67%69%6e"),
        ("/auth/login?a=/../b&c=%2f%5c%00", "/auth/login?a=/../b&c=%2f%5c%00"),
        ("/auth/login?", "/auth/login?"),
        ("/open/../auth/login?x=..", "/auth/login?x=.."),
    ] {
        let before = world.plain();
        let answer = world.get(target.as_bytes());
        assert_eq!(answer.status, 200, "{target}: {}", answer.text());
        assert_eq!(world.remaining(&answer), before - 1, "{target}");
        assert_eq!(world.forwarded(), forwarded, "{target}");
    }
}

#[test]
fn ambiguous_paths_are_malformed_and_not_forwarded() {
    let world = World::new();
    for target in [
        &b"/auth%2Flogin"[..],
        b"/auth%2flogin",
        b"/auth/login%2f",
        b"/open%2f..%2fauth/login",
        b"/open/..%2fauth/login",
        b"/open/%2e%2e%2fauth/login",
        b"/auth%5clogin",
        b"/open%5C..%5Cauth/login",
        b"/auth\\login",
        b"/open/..\\auth/login",
        b"/auth/login%00",
        b"/auth/login%00.css",
        b"/auth/login%0a",
        b"/auth/login%0D%0A",
        b"/auth/login%09",
        b"/auth/login%1f",
        b"/auth/login%7F",
        b"/auth/login;%0a",
        b"/auth/login;%2f..%2fopen",
        b"/auth/login%",
        b"/auth/login%2",
        b"/auth/login%zz",
        b"/auth/%ff",
        b"/auth/login%c0%ae",
        b"/%c0%ae%c0%ae/auth/login",
        b"/auth/login\xff",
        b"/auth\xc0\xaflogin",
        b"/auth/login\0",
        b"auth/login",
        b"",
    ] {
        let answer = world.get(target);
        let shown = String::from_utf8_lossy(target);
        assert_eq!(answer.status, 400, "{shown}: {}", answer.text());
    }
    assert_eq!(world.upstream.count(), 0);
    assert_eq!(world.plain(), 999, "none of them was charged");
}

#[test]
fn escapes_are_read_once() {
    let world = World::new();
    // `%252e` is the text `%2e`, and no dot.
    let answer = world.get(b"/open/%252e%252e/auth/login");
    assert_eq!((answer.status, answer.header("x-ratelimit-limit")), (200, None));
    assert_eq!(world.forwarded(), "/open/%252e%252e/auth/login");
    assert_eq!(world.get(b"/auth/LOGIN").header("x-ratelimit-limit"), None, "case matters");
}

#[test]
fn a_head_counts_as_a_get() {
    let world = World::new();
    let before = world.plain();
    let request = "HEAD /auth/login HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = world.daemon.gateway().raw(request.as_bytes()).to_ascii_lowercase();
    let expected = format!("x-ratelimit-remaining: {}\r\n", before - 1);
    assert!(answer.contains(&expected), "{answer}");
    assert!(answer.ends_with("\r\n\r\n"), "a HEAD has no body: {answer}");
    assert_eq!(world.upstream.last().line, "HEAD /auth/login HTTP/1.1");
}

#[test]
fn a_whole_url_is_its_path() {
    let world = World::new();
    for (target, forwarded) in [
        ("http://shop.example/auth/login", "/auth/login"),
        ("HTTP://SHOP.example/open/../auth/login?q", "/auth/login?q"),
        ("https://shop.example//auth/login", "/auth/login"),
    ] {
        let before = world.plain();
        let answer = world.get(target.as_bytes());
        assert_eq!(answer.status, 200, "{target}: {}", answer.text());
        assert_eq!(world.remaining(&answer), before - 1, "{target}");
        assert_eq!(world.forwarded(), forwarded, "{target}");
        assert_eq!(world.upstream.last().header("host"), Some("shop.example"));
    }
    let before = world.upstream.count();
    for target in [
        "http://other.example/auth/login",
        "http://user@shop.example/auth/login",
        "shop.example:80",
        "http:///auth/login",
    ] {
        assert_eq!(world.get(target.as_bytes()).status, 400, "{target}");
    }
    let tunnel = world.send(b"CONNECT shop.example:443 HTTP/1.1");
    assert_eq!(tunnel.status, 405);
    assert_eq!(world.upstream.count(), before);
}

#[test]
fn a_fragment_is_never_part_of_the_path_that_is_counted() {
    let world = World::new();
    for target in ["/auth/login#/open", "/auth/login?x#y"] {
        let before = world.plain();
        let seen = world.upstream.count();
        let answer = world.get(target.as_bytes());
        if answer.status == 400 {
            assert_eq!(world.upstream.count(), seen, "{target}");
        } else {
            assert_eq!(world.remaining(&answer), before - 1, "{target}");
            assert!(!world.forwarded().contains('#'), "{}", world.forwarded());
        }
    }
}

#[test]
fn no_spelling_of_a_method_escapes_either() {
    let world = World::new();
    let overrides = [
        ("X-HTTP-Method-Override", "PUT"),
        ("X-HTTP-Method", "PUT"),
        ("X-Method-Override", "PUT"),
        ("X_HTTP_Method_Override", "PUT"),
    ];
    let answer = world.daemon.gateway().send("POST", "/auth/login", &overrides, Some("{}"));
    assert_eq!(world.remaining(&answer), 999);
    let seen = world.upstream.last();
    assert!(!seen.headers.iter().any(|(name, _)| name.contains("method")), "{seen:?}");
    // Django and others take `post` for a POST.
    for (nth, method) in ["post", "Post", "get"].into_iter().enumerate() {
        let answer = world.send(format!("{method} /auth/login HTTP/1.1").as_bytes());
        assert_eq!(world.remaining(&answer), 998 - nth as u64, "{method}");
        assert_eq!(world.upstream.last().line, format!("{method} /auth/login HTTP/1.1"));
    }
}

#[test]
fn an_override_that_the_policy_follows_is_counted_and_every_header_says_it() {
    let policy = POLICY.replace("operations:", "paths: { method_override: true }\noperations:");
    let policy = policy.replace("POST|GET /auth", "PUT /auth");
    let upstream = Upstream::start();
    let world = World { daemon: Daemon::with_policy(&policy, Some(&upstream)), upstream };
    let send = |headers: &[(&str, &str)]| {
        world.daemon.gateway().send("POST", "/auth/login", headers, Some("{}"))
    };
    let answer = send(&[("X-HTTP-Method", "put")]);
    assert_eq!(world.remaining(&answer), 999);
    let seen = world.upstream.last();
    assert_eq!(seen.line, "POST /auth/login HTTP/1.1");
    for name in ["x-http-method-override", "x-http-method", "x-method-override"] {
        assert_eq!(seen.header(name), Some("PUT"), "{name}");
    }
    for headers in [
        &[("X-HTTP-Method", "PUT"), ("X-HTTP-Method", "PUT")][..],
        &[("X-HTTP-Method", "PUT"), ("X-Method-Override", "DELETE")],
        &[("X-HTTP-Method", "FROB")],
        &[("X-HTTP-Method", "GET")],
        &[("X-HTTP-Method", "")],
    ] {
        assert_eq!(send(headers).status, 400, "{headers:?}");
    }
    assert_eq!(world.upstream.count(), 1);
    let check = serde_json::json!({ "method": "POST", "path": "/auth/login", "ip": "127.0.0.1",
        "headers": { "X-HTTP-Method": "PUT" } });
    assert_eq!(world.daemon.check(&check).json()["limits"][0]["remaining"], 998);
}

#[test]
fn a_path_without_end_is_refused() {
    let world = World::new();
    let deep = "/a".repeat(300);
    assert_eq!(world.get(deep.as_bytes()).status, 400);
    let long = format!("/{}", "a".repeat(9000));
    assert_eq!(world.get(long.as_bytes()).status, 400);
    assert_eq!(world.upstream.count(), 0);
}
