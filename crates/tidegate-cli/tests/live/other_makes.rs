//! Services of other makes behind the gateway: no spelling of a path or a method is counted as one thing
//! and served as another.

use std::path::Path;

use crate::support::{Answer, Daemon, Service};

/// A gateway with a policy in front of a service.
fn gateway(policy: &str, service: &Service) -> Daemon {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    std::fs::write(&path, policy).unwrap();
    let mut daemon = started(&path, service);
    daemon.folder = Some(folder);
    daemon
}

fn started(policy: &Path, service: &Service) -> Daemon {
    let mut command = Daemon::command();
    command.arg(policy).args(["--gateway", "127.0.0.1:0", "--upstream", &service.url()]);
    Daemon::start(&mut command)
}

fn remaining(answer: &Answer) -> Option<u64> {
    answer.header("x-ratelimit-remaining").map(|remaining| remaining.parse().unwrap())
}

const SPELLINGS: [&str; 4] = ["/login", "/LOGIN", "/Login", "/loGin/"];

#[test]
fn express_serves_a_login_in_any_case_and_the_limit_counts_it_in_any() {
    let Some(service) = Service::express("app.post('/login', (_, res) => res.send('in'));") else {
        return;
    };
    let policy = "
tidegate: 1
name: shop
paths: { ignore_case: true }
operations: { login: POST /login }
limits: { login: { when: login, by: ip, total: 4 } }
";
    let daemon = gateway(policy, &service);
    for (used, path) in SPELLINGS.into_iter().enumerate() {
        assert_eq!(service.client().send("POST", path, &[], None).text(), "in", "{path}");
        let answer = daemon.gateway().send("POST", path, &[], None);
        assert_eq!((answer.status, remaining(&answer)), (200, Some(3 - used as u64)), "{path}");
    }
    for path in SPELLINGS {
        assert_eq!(daemon.gateway().send("POST", path, &[], None).status, 429, "{path}");
    }
}

#[test]
fn express_serves_the_user_service_in_any_case_and_its_example_counts_it() {
    let Some(service) = Service::express("app.use((req, res) => res.send(req.path));") else {
        return;
    };
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/policies");
    let daemon = started(&examples.join("user-service.yaml"), &service);
    for (used, path) in ["/upload/a", "/UPLOAD/a", "/Upload/a"].into_iter().enumerate() {
        let answer = daemon.gateway().get(path);
        assert_eq!((answer.text().as_str(), remaining(&answer)), (path, Some(4 - used as u64)));
    }
}

const OVERRIDES: &str = "
const override = require('method-override');
app.use(override('X-HTTP-Method-Override'));
app.use((req, res) => res.send(req.method));
";

fn post(daemon: &Daemon, header: &str, value: &str) -> Answer {
    daemon.gateway().send("POST", "/orders/7", &[(header, value)], Some("{}"))
}

#[test]
fn express_serves_the_method_that_was_counted() {
    let Some(service) = Service::express(OVERRIDES) else { return };
    let headers = [("X-HTTP-Method-Override", "DELETE")];
    let alone = service.client().send("POST", "/orders/7", &headers, Some("{}"));
    assert_eq!(alone.text(), "DELETE", "the service does follow the header");

    let policy = "
tidegate: 1
name: shop
operations: { delete: DELETE /orders/*, create: POST /orders/* }
limits:
  delete: { when: delete, by: ip, total: 5 }
  create: { when: create, by: ip, total: 50 }
";
    let daemon = gateway(policy, &service);
    for (used, header) in
        ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"].into_iter().enumerate()
    {
        let answer = post(&daemon, header, "DELETE");
        let counted = (answer.text(), remaining(&answer));
        assert_eq!(counted, ("POST".to_owned(), Some(49 - used as u64)), "{header}");
    }
    let follows = policy.replace("operations:", "paths: { method_override: true }\noperations:");
    let daemon = gateway(&follows, &service);
    for (used, header) in
        ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"].into_iter().enumerate()
    {
        let answer = post(&daemon, header, "delete");
        let counted = (answer.text(), remaining(&answer));
        assert_eq!(counted, ("DELETE".to_owned(), Some(4 - used as u64)), "{header}");
    }
    assert_eq!(post(&daemon, "X-HTTP-Method-Override", "FROB").status, 400);
}

const HEALTH: &str = "
tidegate: 1
name: shop
exempt: [{ path: /health }]
limits: { all: { by: ip, total: 1000 } }
";

/// Whatever reaches another route than the health check is counted.
fn only_the_health_check_is_exempt(service: &Service) {
    let daemon = gateway(HEALTH, service);
    let answer = daemon.gateway().get("/health");
    assert_eq!((answer.text().as_str(), remaining(&answer)), ("health", None));
    for path in ["/health;x=1", "/health//", "/health/;/", "/health/", "/health/;", "/health/x"] {
        let answer = daemon.gateway().get(path);
        assert_ne!(answer.text(), "health", "{path} is another route of this service");
        assert!(remaining(&answer).is_some(), "{path}: {answer:?}");
    }
    for path in ["/health%0a", "/health%00", "/health%7f"] {
        assert_eq!(daemon.gateway().get(path).status, 400, "{path}");
    }
}

#[test]
fn go_answers_other_spellings_of_the_health_check_elsewhere_and_they_are_counted() {
    let routes = r#"
mux.HandleFunc("/health", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "health") })
mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "catch-all") })
"#;
    if let Some(service) = Service::go(routes) {
        only_the_health_check_is_exempt(&service);
    }
}

#[test]
fn nginx_answers_other_spellings_of_the_health_check_elsewhere_and_they_are_counted() {
    let locations =
        "location = /health { return 200 health; } location / { return 200 catch-all; }";
    if let Some(service) = Service::nginx(locations) {
        only_the_health_check_is_exempt(&service);
    }
}
