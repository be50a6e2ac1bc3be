//! How methods and paths are read, as a user of the library meets it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

use tidegate::{Limiter, Outcome, Policy, Request};

fn limiter(text: &str) -> Limiter {
    let text = format!("tidegate: 1\nname: api\n{text}");
    Limiter::new(Policy::parse("api.yaml", &text).unwrap_or_else(|errors| panic!("{errors}")))
}

fn outcome(limiter: &Limiter, request: &Request<'_>) -> Outcome {
    limiter.check(request).unwrap().outcome
}

#[test]
fn where_case_is_ignored_every_spelling_is_one_path() {
    let policy = "
paths: { ignore_case: true }
operations: { user: 'GET /Users/{id}' }
limits:
  operation: { when: user, by: id, total: 2 }
  condition: { when: { path: /Reports/** }, by: global, total: 2 }
  key:       { when: { path: '/files/*' }, by: path, total: 2 }
";
    let limiter = limiter(policy);
    let paths = |paths: &[&str]| -> Vec<Outcome> {
        paths.iter().map(|path| outcome(&limiter, &Request::new("GET", *path))).collect()
    };
    let limited_third = [Outcome::Allowed, Outcome::Allowed, Outcome::Limited];
    assert_eq!(paths(&["/users/Ada", "/USERS/Ada", "/%55sers/Ada"]), limited_third);
    assert_eq!(paths(&["/Users/ada"]), [Outcome::Allowed], "a capture keeps its case");
    assert_eq!(paths(&["/reports/a", "/REPORTS", "/Reports/b"]), limited_third);
    assert_eq!(paths(&["/files/a", "/FILES/A", "/Files/a"]), limited_third);
    let explained = limiter.explain(&Request::new("get", "/FILES//A/")).unwrap();
    assert_eq!(
        (explained.method.as_deref(), explained.path.as_deref()),
        (Some("GET"), Some("/files/a"))
    );
}

#[test]
fn an_exemption_takes_a_path_only_as_it_is_forwarded() {
    let limits =
        "limits: { all: { by: global, total: 1000 } }\noperations: { health: GET /health }";
    for exempt in ["path: /health", "operation: health", "path: [/x, /health]"] {
        let limiter = limiter(&format!("exempt: [{{ {exempt} }}]\n{limits}"));
        let of = |path: &str| outcome(&limiter, &Request::new("GET", path.to_owned()));
        for path in ["/health", "/health?x=1", "/a/../health", "//health"] {
            assert_eq!(of(path), Outcome::Exempt, "{exempt}: {path}");
        }
        for path in ["/health;x=1", "/health//", "/health/;/", "/health/", "/;/health", "/%68ealth"]
        {
            assert_eq!(of(path), Outcome::Allowed, "{exempt}: {path}");
        }
    }
    let named = limiter(&format!("exempt: [{{ operation: health }}]\n{limits}"));
    assert_eq!(outcome(&named, &Request::operation("health")), Outcome::Exempt);
    let slash = limiter(&format!("exempt: [{{ path: [/health/, /files/**] }}]\n{limits}"));
    let of = |path: &'static str| outcome(&slash, &Request::new("GET", path));
    assert_eq!([of("/health/"), of("/files/"), of("/files/a%20b")], [Outcome::Exempt; 3]);
    assert_eq!([of("/health"), of("/files//"), of("/files;x")], [Outcome::Allowed; 3]);
}

#[test]
fn what_a_limit_leaves_out_it_leaves_out_only_as_it_is_forwarded() {
    let policy = "
exempt: [{ internal: true, not: { path: /admin } }]
limits: { all: { when: { not: { path: /health } }, by: global, total: 1 } }
";
    let limiter = limiter(policy);
    let get = |path: &'static str| Request::new("GET", path);
    assert_eq!(outcome(&limiter, &get("/")), Outcome::Allowed);
    assert_eq!(outcome(&limiter, &get("/health")), Outcome::Allowed);
    for path in ["/health;x=1", "/health//", "/health/"] {
        assert_eq!(outcome(&limiter, &get(path)), Outcome::Limited, "{path}");
    }
    assert_eq!(outcome(&limiter, &get("/x").internal(true)), Outcome::Exempt);
    for path in ["/admin", "/admin;x=1", "/admin//"] {
        assert_eq!(outcome(&limiter, &get(path).internal(true)), Outcome::Limited, "{path}");
    }
}

#[test]
fn an_overriding_header_counts_only_where_the_policy_follows_it() {
    let rest = "operations: { delete: DELETE /a, post: POST /a }
limits: { deletions: { when: delete, by: global, total: 1 } }";
    let follows = limiter(&format!("paths: {{ method_override: true }}\n{rest}"));
    let ignores = limiter(rest);
    let request = || Request::new("POST", "/a").header("X-HTTP-Method-Override", "delete");
    assert_eq!(outcome(&follows, &request()), Outcome::Allowed);
    assert_eq!(outcome(&follows, &request()), Outcome::Limited);
    assert_eq!(outcome(&follows, &Request::new("DELETE", "/a")), Outcome::Limited);
    assert_eq!(follows.explain(&request()).unwrap().method.as_deref(), Some("DELETE"));
    for _ in 0..3 {
        assert_eq!(outcome(&ignores, &request()), Outcome::Allowed);
    }
    let twice = request().header("x-http-method-override", "DELETE");
    assert_eq!(follows.check(&twice).unwrap_err().field, "headers.x-http-method-override");
    assert!(ignores.check(&twice).is_ok());
}
