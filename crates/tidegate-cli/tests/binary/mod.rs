//! The real binary, in a folder of its own.
#![allow(dead_code, reason = "no test needs all of it")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

/// A policy without fault.
pub(crate) const SHOP: &str = "tidegate: 1
name: shop
identity:
  trusted_proxies: 127.0.0.0/8
  user: { header: X-User }
  default_tier: free
  attributes: { amount: given, key: { header: X-Key, trusted: true } }
operations:
  order: POST /orders/{shop}
exempt: { path: /health }
block: { ips: [203.0.113.0/24] }
limits:
  order-ip: { when: order, by: ip, sliding_window: 2/min }
  order-shop: { when: order, by: shop, quota: 100/day, exceed: warn }
  spent: { when: order, by: client, total: 1000, cost: amount }
  vip: { when: { tier: vip }, by: user, token_bucket: { vip: 5/s }, shadow: true }
  keyed: { by: key, fixed_window: 10/min, missing: skip }
profiles:
  loose: { limits: { order-ip: { sliding_window: 100/min } } }
";

/// Two errors and a warning.
pub(crate) const BROKEN: &str = "tidegate: 1
name: broken
tiers: [gold]
limits:
  a: { by: user, sliding_windw: 5/min }
  b: { by: usr, total: 5 }
";

/// A folder for a test's files, gone when the test ends.
pub(crate) struct Folder(TempDir);

/// The result of a run of the binary.
pub(crate) struct CommandOutput {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Folder {
    /// An empty folder.
    pub(crate) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    /// A folder with files in it.
    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let folder = Self::new();
        files.iter().for_each(|(name, text)| folder.write(name, text));
        folder
    }

    /// Writes a file, and the folders that it stands in.
    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs the binary here, without a terminal.
    pub(crate) fn run(&self, arguments: &[&str]) -> CommandOutput {
        self.run_with(arguments, &[])
    }

    /// Runs the binary here, with environment variables.
    pub(crate) fn run_with(&self, arguments: &[&str], env: &[(&str, &str)]) -> CommandOutput {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.current_dir(self.0.path()).args(arguments).envs(env.iter().copied());
        command.env_remove("CLICOLOR_FORCE").env_remove("NO_COLOR");
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let code = output.status.code().unwrap();
        CommandOutput { code, out: text(output.stdout), err: text(output.stderr) }
    }
}

impl CommandOutput {
    /// What was printed, as JSON.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.err, "");
        serde_json::from_str(&self.out).unwrap()
    }

    /// Exit code and both outputs, for snapshots.
    pub(crate) fn transcript(&self) -> String {
        let Self { code, out, err } = self;
        let stderr = if err.is_empty() { String::new() } else { format!("stderr:\n{err}") };
        format!("{out}{stderr}exit {code}")
    }

    /// There is no escape sequence in what was printed.
    pub(crate) fn assert_plain(&self) {
        assert!(!self.out.contains('\u{1b}') && !self.err.contains('\u{1b}'), "{}", self.out);
    }
}
