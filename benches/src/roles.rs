//! What a benchmark plays when it has started itself once more, and the precedence of its parts.

use std::process::{Command, Stdio};

use crate::{bare, witness};

const AUTOGROUP: &str = "/proc/self/autogroup";

/// Plays the part that this process was started for, if it was: then it is over afterwards.
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

/// While it lives, this process and all that it starts go before the other programs of the machine.
#[derive(Debug)]
pub struct First {
    /// How its session was treated before.
    session: Option<String>,
}

/// Lets this process and all that it starts go before the other programs of the machine, which have
/// no part in what is measured. Called before there is a second thread. Nothing where that is not
/// permitted.
#[must_use]
pub fn go_first() -> Option<First> {
    let mut command = Command::new("renice");
    command.args(["-n", "-20", "-p", &std::process::id().to_string()]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    if !command.status().is_ok_and(|status| status.success()) {
        return None;
    }
    // Where sessions share the processors evenly, a process comes first only within its own.
    let session = std::fs::read_to_string(AUTOGROUP).ok();
    if session.is_some() {
        std::fs::write(AUTOGROUP, "-20").ok()?;
    }
    println!("what is measured goes before the other programs of the machine (nice -20)");
    Some(First { session })
}

impl Drop for First {
    fn drop(&mut self) {
        let nice = self.session.as_deref().and_then(|text| text.split_whitespace().last());
        if let Some(nice) = nice {
            // Whoever called this is left with a session that is too quick.
            let _ = std::fs::write(AUTOGROUP, nice);
        }
    }
}
