//! The roles of the processes that a benchmark starts from its own binary, and their priority.

use std::process::{Command, Stdio};

use crate::{bare, witness};

const AUTOGROUP: &str = "/proc/self/autogroup";

/// Plays the role that this process was started for. Returns true if there was one: then the process is
/// done.
///
/// # Panics
/// A bare server is not told how many bytes to answer.
#[must_use]
#[allow(clippy::unwrap_used, reason = "only a benchmark calls itself so")]
pub fn play() -> bool {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some(witness::ROLE) => witness::watch(),
        Some(bare::ROLE) => bare::serve(arguments.next().unwrap().parse().unwrap()),
        _ => return false,
    }
    true
}

/// While it lives, this process and its children run before the other programs of the machine.
#[derive(Debug)]
pub struct PriorityGuard {
    /// The earlier priority of its session.
    session: Option<String>,
}

/// Lets this process and its children run before the other programs of the machine, which have no part
/// in the measurement. Must be called before there is a second thread. `None` without permission.
#[must_use]
pub fn go_first() -> Option<PriorityGuard> {
    let mut command = Command::new("renice");
    command.args(["-n", "-20", "-p", &std::process::id().to_string()]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    if !command.status().is_ok_and(|status| status.success()) {
        return None;
    }
    // Where sessions share the processors evenly, a priority holds only within its own session.
    let session = std::fs::read_to_string(AUTOGROUP).ok();
    if session.is_some() {
        std::fs::write(AUTOGROUP, "-20").ok()?;
    }
    println!("what is measured goes before the other programs of the machine (nice -20)");
    Some(PriorityGuard { session })
}

impl Drop for PriorityGuard {
    fn drop(&mut self) {
        let nice = self.session.as_deref().and_then(|text| text.split_whitespace().last());
        if let Some(nice) = nice {
            // On an error the caller's session keeps the higher priority.
            let _ = std::fs::write(AUTOGROUP, nice);
        }
    }
}
