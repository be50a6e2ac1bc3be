//! Waiting for a condition.

use std::io;
use std::thread;
use std::time::Duration;

use tidegate::clock::SystemClock;

const PAUSE: Duration = Duration::from_millis(5);

/// Waits until a condition holds. An error counts as "not yet"; a timeout reports the last error.
///
/// # Errors
/// The condition did not hold within this time.
pub fn until(
    what: &str,
    within: Duration,
    mut ready: impl FnMut() -> io::Result<bool>,
) -> io::Result<()> {
    let clock = SystemClock::new();
    let started_us = clock.steady_us();
    loop {
        let seen = ready();
        if matches!(seen, Ok(true)) {
            return Ok(());
        }
        if u128::from(clock.steady_us() - started_us) > within.as_micros() {
            let why = seen.err().map_or(String::new(), |error| format!(": {error}"));
            let detail = format!("not within {within:?}: {what}{why}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, detail));
        }
        thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_never_holds_is_named_with_its_last_error() {
        let never = || Err(io::Error::other("still away"));
        let error = until("it is there", Duration::from_millis(1), never).unwrap_err();
        assert_eq!(error.to_string(), "not within 1ms: it is there: still away");
    }
}
