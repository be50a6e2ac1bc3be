//! `tidegate health` and `tidegate admin`, also over TLS.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Daemon, eventually};
use crate::tls::Files;

const POLICY: &str = "{ tidegate: 1, name: a, limits: { all: { by: ip, total: 5 } } }";

/// Runs the binary; the exit code and both outputs.
fn run(arguments: &[&str], variables: &[(&str, &str)]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let ran = command.args(arguments).envs(variables.iter().copied()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (ran.status.code().unwrap(), text(ran.stdout) + &text(ran.stderr))
}

#[test]
fn it_tells_whether_a_daemon_is_ready() {
    let mut daemon = Daemon::with_policy_and(POLICY, None, &["--drain-delay", "5min"]);
    let [api, admin] = ["api", "admin"].map(|name| daemon.address(name).to_string());
    let url = format!("http://{admin}");
    assert_eq!(run(&["health", &url], &[]), (0, "ready\n".to_owned()));
    assert_eq!(run(&["health", &format!("http://{api}/")], &[]), (0, "ready\n".to_owned()));
    for variable in ["TIDEGATE_ADMIN", "TIDEGATE_API"] {
        assert_eq!(run(&["health"], &[(variable, &admin)]), (0, "ready\n".to_owned()));
    }
    let (code, said) = run(&["health", "--json", &url], &[]);
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, said), (0, json!({ "url": url, "ready": true, "problem": null })));
    daemon.signal("TERM");
    daemon.wait_for_log("told to stop");
    let draining = "error: draining: about to stop\n".to_owned();
    assert_eq!(run(&["health", &url], &[]), (1, draining));
    let (code, said) = run(&["health", "--json", &url], &[]);
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &said["ready"]), (1, &json!(false)), "{said}");
    daemon.signal("TERM");
    assert!(daemon.wait().success(), "a second signal ends the delay");
    let (code, said) = run(&["health", &url], &[]);
    assert!(code == 1 && said.starts_with(&format!("error: cannot reach {url}: ")), "{said}");
}

#[test]
fn a_url_that_is_none_is_told() {
    for (arguments, expected) in [
        (&["health", "127.0.0.1:7071"][..], "expected http://HOST:PORT"),
        (&["health", "http://127.0.0.1:7071/ready"], "expected http://HOST:PORT"),
        (&["health", "http://127.0.0.1:7071", "--ca", "ca.pem"], "https://"),
        (&["health", "https://127.0.0.1:7071", "--ca", "none.pem"], "none.pem"),
    ] {
        let (code, said) = run(arguments, &[]);
        assert!(code == 1 && said.contains(expected), "{arguments:?}: {said}");
    }
    let (code, said) = run(&["health"], &[("TIDEGATE_ADMIN", "127.0.0.1:0")]);
    assert!(code == 1 && said.contains("give its URL"), "{said}");
}

#[test]
fn both_speak_tls_and_verify_the_certificate() {
    let files = Files::new();
    let ca = files.path("cert.pem").to_str().unwrap().to_owned();
    let daemon = files.public_daemon(POLICY, "http://127.0.0.1:9");
    let port = daemon.address("admin").port();
    let url = format!("https://localhost:{port}");
    assert_eq!(run(&["health", &url, "--ca", &ca], &[]), (0, "ready\n".to_owned()));
    assert_eq!(run(&["health", &url], &[("TIDEGATE_ADMIN_CA", &ca)]).0, 0);
    let other = Files::new();
    let foreign = other.path("cert.pem").to_str().unwrap().to_owned();
    for untrusted in [&["health", &url][..], &["health", &url, "--ca", &foreign]] {
        let (code, said) = run(untrusted, &[]);
        assert!(code == 1 && said.contains("certificate"), "{said}");
    }
    let (code, said) = run(&["health", &format!("https://127.0.0.1:{port}"), "--ca", &ca], &[]);
    assert!(code == 1 && said.contains("certificate"), "another name: {said}");

    let token = ("TIDEGATE_ADMIN_TOKEN", "three");
    let ban = ["admin", "bans", "add", "--ip", "192.0.2.1", "--for", "1h", "--url", &url];
    let (code, said) = run(&[&ban[..], &["--ca", &ca]].concat(), &[token]);
    assert_eq!(code, 0, "{said}");
    let list = ["admin", "bans", "list", "--json", "--url", &url, "--ca", &ca];
    eventually("the ban", || run(&list, &[token]).1.contains("192.0.2.1"));
    assert_eq!(run(&list, &[]).0, 1, "without a token");
    let (code, said) = run(&ban, &[token]);
    assert!(code == 1 && said.contains("certificate"), "without its authority: {said}");
}
