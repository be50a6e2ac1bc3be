//! What the page shows of the state directory.

use super::text::{Kind, Page};
use crate::state::StatePresent;

/// Writes how the saving goes; without a state directory there is nothing to save.
pub(super) fn write(page: &mut Page, state: Option<&StatePresent>) {
    let Some(state) = state else { return };
    let name = "tidegate_state_failing";
    let help = "1 while what changes cannot be saved to the state directory, else 0.";
    page.single(name, Kind::Gauge, help, u8::from(!state.failures.is_empty()));
    let name = "tidegate_state_saved_timestamp_seconds";
    let help = "All that was counted until then is in the state directory, in Unix time.";
    page.single(name, Kind::Gauge, help, state.saved_unix_us.unwrap_or_default() / 1_000_000);
    let name = "tidegate_state_written_bytes_total";
    let help = "Bytes that were written to the state directory.";
    page.single(name, Kind::Counter, help, state.written_bytes);
}
