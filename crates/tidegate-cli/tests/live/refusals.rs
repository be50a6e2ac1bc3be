//! Common mistakes: the daemon says what to do, and does not listen.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::{Daemon, eventually};

const POLICY: &str = "tidegate: 1\nname: shop\nlimits: { a: { by: ip, total: 1 } }\n";

/// A folder with files in it, where the daemon is started.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.write("policy.yaml", POLICY);
        folder
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(name), text).unwrap();
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Starts `tidegate serve` with these arguments, which must fail with this exit code, without
    /// a listener. Returns its message.
    fn refusal(&self, code: i32, arguments: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("serve").args(arguments);
        let named = |name: &str| arguments.iter().any(|argument| argument.starts_with(name));
        for flag in ["--api", "--admin", "--gateway"] {
            if !named(flag) {
                command.args([flag, "127.0.0.1:0"]);
            }
        }
        self.run(code, &mut command)
    }

    fn run(&self, code: i32, command: &mut Command) -> String {
        let (out, err) = (self.path().join("stdout"), self.path().join("stderr"));
        let file = |path: &PathBuf| Stdio::from(std::fs::File::create(path).unwrap());
        command.current_dir(self.path()).stdout(file(&out)).stderr(file(&err));
        let mut running = ChildGuard(command.spawn().unwrap());
        let mut status = None;
        eventually("the refusal to start", || {
            status = running.0.try_wait().unwrap();
            status.is_some()
        });
        let said = std::fs::read_to_string(err).unwrap();
        assert_eq!(std::fs::read_to_string(out).unwrap(), "", "it listened: {said}");
        assert_eq!(status.unwrap().code(), Some(code), "{said}");
        said
    }
}

/// A process that is killed when dropped.
struct ChildGuard(Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // It should have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_policy_that_is_not_there_is_named() {
    let said = Folder::new().refusal(1, &["polcy.yaml"]);
    assert_eq!(said, "error: cannot read polcy.yaml: No such file or directory (os error 2)\n");
}

#[test]
fn everything_wrong_with_all_policies_is_told_with_its_place() {
    let folder = Folder::new();
    folder.write("a.yaml", "tidegate: 1\nname: a\nlimts: {}\n");
    folder.write("b.yaml", "tidegate: 1\nname: b\nlimits: { x: { by: ipp, total: 1 } }\n");
    let said = folder.refusal(1, &["a.yaml", "b.yaml", "none.yaml"]);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("a.yaml:3:1: error: "), "{said}");
    assert!(lines[0].contains("limts") && said.contains("`limits`"), "{said}");
    assert!(lines.iter().any(|line| line.starts_with("b.yaml:3:20: error: ")), "{said}");
    assert!(lines.iter().any(|line| line.starts_with("error: cannot read none.yaml")), "{said}");
}

#[test]
fn a_variable_that_is_not_set_is_named() {
    let folder = Folder::new();
    let text = "tidegate: 1\nname: a\nlimits: { a: { by: ip, total: \"${SHOP_MOST}\" } }\n";
    folder.write("policy.yaml", text);
    let said = folder.refusal(1, &["policy.yaml"]);
    assert!(said.starts_with("policy.yaml:3:") && said.contains("SHOP_MOST"), "{said}");
}

#[test]
fn a_test_file_is_no_policy() {
    let folder = Folder::new();
    folder.write("a.test.yaml", "policy: policy.yaml\ntests: []\n");
    let said = folder.refusal(1, &["a.test.yaml"]);
    assert!(said.contains("found a test file, expected a policy"), "{said}");
    assert!(said.contains("`tidegate test`"), "{said}");
}

#[test]
fn an_unknown_profile_is_named_with_the_existing_ones() {
    let folder = Folder::new();
    let profiles = "profiles: { staging: {}, production: {} }\n";
    folder.write("policy.yaml", &format!("{POLICY}{profiles}"));
    let said = folder.refusal(1, &["policy.yaml", "--profile", "prod"]);
    assert!(said.starts_with("policy.yaml:4:"), "{said}");
    for word in ["`prod`", "`staging`", "`production`"] {
        assert!(said.contains(word), "{word} is not in {said}");
    }
}

#[test]
fn two_policies_of_one_name_are_both_named() {
    let folder = Folder::new();
    folder.write("other.yaml", POLICY);
    let said = folder.refusal(1, &["policy.yaml", "other.yaml"]);
    let expected = "other.yaml: error: found the name `shop`, which policy.yaml has too; give each policy its own\n";
    assert_eq!(said, expected);
}

#[test]
fn a_port_that_is_taken_is_told_with_its_flag_and_nothing_else_listens() {
    let folder = Folder::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for flag in ["--api", "--admin", "--gateway"] {
        let upstream = ["--upstream", "http://127.0.0.1:9"];
        let said = folder.refusal(1, &["policy.yaml", flag, &address, upstream[0], upstream[1]]);
        assert!(said.starts_with(&format!("error: {flag}: cannot listen on {address}")), "{said}");
        assert!(said.contains("choose another address, or port 0 for a free one"), "{said}");
    }
}

#[test]
fn beyond_loopback_there_must_be_tokens() {
    let folder = Folder::new();
    for flag in ["--api", "--admin"] {
        for address in ["0.0.0.0:0", "[::]:0"] {
            let said = folder.refusal(1, &["policy.yaml", flag, address]);
            assert!(said.starts_with(&format!("error: {flag} {address}: ")), "{said}");
            for way_out in ["--tokens FILE", "127.0.0.1", "--insecure"] {
                assert!(said.contains(way_out), "{way_out} is not in {said}");
            }
        }
    }
}

#[test]
fn a_missing_companion_of_an_option_is_named() {
    let folder = Folder::new();
    for (given, missing) in [
        (["--tls-cert", "cert.pem"], "--tls-key <FILE>"),
        (["--tls-key", "key.pem"], "--tls-cert <FILE>"),
        (["--jwt-issuer", "https://id.example"], "--jwt-key <FILE>"),
        (["--jwt-audience", "shop"], "--jwt-key <FILE>"),
    ] {
        let said = folder.refusal(2, &["policy.yaml", given[0], given[1]]);
        assert!(said.contains(missing), "{missing} is not in {said}");
    }
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let folder = Folder::new();
    folder.write("junk", "junk");
    for arguments in [
        &["--jwt-key", "junk"][..],
        &["--jwt-key", "none"],
        &["--tokens", "junk"],
        &["--tokens", "none"],
        &["--hash-key", "junk"],
        &["--hash-key", "none"],
        &["--state-dir", "junk"],
        &["--tls-cert", "junk", "--tls-key", "junk"],
        &["--tls-cert", "none", "--tls-key", "none"],
    ] {
        let said = folder.refusal(1, &[&["policy.yaml"], arguments].concat());
        assert!(
            said.starts_with("error: ") && said.contains(arguments[1]),
            "{arguments:?}: {said}"
        );
        assert!(!said.contains("error: error"), "{said}");
    }
}

#[test]
fn addresses_are_told_by_example() {
    let folder = Folder::new();
    for (flag, found, expected) in [
        ("--api", "shop.example:7070", "localhost:7070"),
        ("--admin", "localhost", "127.0.0.1:8080"),
        ("--admin", ":70710", ":8080"),
        ("--gateway", "8080", "127.0.0.1:8080"),
        ("--upstream", "localhost:3000", "http://"),
        ("--upstream", "127.0.0.1", "http://"),
        ("--upstream", "ftp://shop.example", "http://"),
        ("--upstream", "http://shop.example/api?x=1", "http://"),
        ("--upstream", "http://shop.example:99999", "65535"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["serve", "policy.yaml", flag, found]);
        let code = if flag == "--upstream" { 1 } else { 2 };
        let said = folder.run(code, &mut command);
        assert!(said.contains(found), "{found} is not in {said}");
        assert!(said.contains(expected), "{expected} is not in {said}");
    }
}

#[test]
fn a_path_for_the_limits_is_one_that_a_gateway_can_answer() {
    let folder = Folder::new();
    let upstream = "http://127.0.0.1:9";
    let challenges = "/.well-known/tidegate/challenge";
    for path in ["limits", "/a/../b", "//a", "/a?b", "/a#b", "/a b", "", challenges] {
        let arguments = ["policy.yaml", "--upstream", upstream, "--public-limits", path];
        let said = folder.refusal(2, &arguments);
        assert!(said.contains("--public-limits"), "{path}: {said}");
    }
    let said = folder.refusal(1, &["policy.yaml", "--public-limits", "/limits"]);
    assert!(said.contains("--public-limits") && said.contains("--upstream"), "{said}");
}

#[test]
fn a_mistyped_option_is_named_with_the_nearest_one() {
    let said = Folder::new().refusal(2, &["policy.yaml", "--upstrem", "http://127.0.0.1:9"]);
    assert!(said.contains("'--upstrem'") && said.contains("'--upstream'"), "{said}");
}

#[test]
fn a_store_that_is_none_is_told_without_its_password() {
    let folder = Folder::new();
    for store in ["disk", "reddis://:hunter2@127.0.0.1", "redis+clutter://:hunter2@127.0.0.1"] {
        let said = folder.refusal(1, &["policy.yaml", "--store", store]);
        assert!(said.contains("--store") && said.contains("`redis://"), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
    for store in ["redis://127.0.0.1", "memory"] {
        let said = folder.refusal(1, &["policy.yaml", "--store", store, "--cluster-tag", "one"]);
        assert!(said.contains("--cluster-tag"), "{said}");
    }
}

#[test]
fn a_policy_that_reads_tokens_needs_a_key() {
    let folder = Folder::new();
    folder.write("policy.yaml", &format!("{POLICY}identity: {{ user: {{ jwt: sub }} }}\n"));
    let said = folder.refusal(1, &["policy.yaml"]);
    assert!(said.contains("`jwt`") && said.contains("--jwt-key"), "{said}");
}

#[test]
fn after_the_mistake_is_mended_it_starts() {
    let folder = Folder::new();
    folder.refusal(1, &["polcy.yaml"]);
    let daemon = Daemon::start(Daemon::command().arg(folder.path().join("policy.yaml")));
    assert_eq!(daemon.api().get("/ready").status, 200);
}

#[test]
fn a_bound_of_no_time_is_refused_with_its_flag() {
    let folder = Folder::new();
    for bound in ["header", "body", "idle", "connect", "upstream"] {
        let flag = format!("--{bound}-timeout");
        let said = folder.refusal(2, &["policy.yaml", &flag, "0s"]);
        assert!(said.contains(&flag) && said.contains("expected more than no time"), "{said}");
    }
}
