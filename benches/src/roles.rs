//! What a benchmark plays when it has started itself once more, and the precedence of its parts.

use std::process::{Command, Stdio};

use crate::{bare, witness};

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

/// Lets this process and all that it starts go before the other programs of the machine, which have
/// no part in what is measured. Called before there is a second thread. Whether it could.
#[must_use]
pub fn go_first() -> bool {
    let mut command = Command::new("renice");
    command.args(["-n", "-20", "-p", &std::process::id().to_string()]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
