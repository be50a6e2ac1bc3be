//! The values of keys, in the short forms that the script replies with.

use tidegate::engine::algorithm::{Spec, State, fixed_window, token_bucket};
use tidegate::engine::plan::Level;

use super::Reader;

const TIGHT: u8 = 65;
const TIGHT_NEW: u8 = 73;
const WIDE: u8 = 81;
const WINDOW: u8 = 68;
/// Added where the expiry of the key is rounded up.
const ROUNDED: u8 = 32;
const UNIT: u64 = 1_000_000;

/// The state of a key, as far as readings need it.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyState {
    is_bucket: bool,
    pub(super) charged_us: u64,
    /// What a bucket is owed, or what a window has used.
    spent: u64,
    remainder: u64,
}

impl KeyState {
    /// Reads a value; `Some(None)` where the key is unused, or plain commands left nothing of it.
    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Option<Self>> {
        let form = reader.byte()?;
        let form = if form > 64 + ROUNDED { form - ROUNDED } else { form };
        match form {
            0 => return Some(None),
            TIGHT | TIGHT_NEW | WIDE | WINDOW => {}
            _ => return None,
        }
        let spec = if form == WINDOW { 0 } else { reader.short(5)? };
        let charged_us = reader.short(7)?;
        reader.short(5)?;
        let (remainder, spent) = match form {
            WINDOW => {
                reader.short(8)?;
                (0, reader.short(6)?)
            }
            WIDE => {
                reader.short(5)?;
                let period = reader.short(6)? >> 24;
                let owed = owed(reader.short(7)?, period, spec & 0xffff)?;
                reader.short(6)?;
                owed
            }
            _ => {
                let owed = owed(reader.short(6)?, spec >> 14 & 0xffff, spec >> 30)?;
                reader.short(4)?;
                owed
            }
        };
        Some(Some(Self { is_bucket: form != WINDOW, charged_us, spent, remainder }))
    }

    /// Takes back a charge of this batch.
    pub(super) fn undo_charge(&mut self, cost: u64) -> Option<()> {
        self.spent = self.spent.checked_sub(cost)?;
        if self.spent == 0 {
            self.remainder = 0;
        }
        Some(())
    }
}

/// The remainder, and what is owed. `due` is what is owed times the period, less the remainder.
fn owed(due: u64, period: u64, units: u64) -> Option<(u64, u64)> {
    let owed = due.checked_add(period)?.checked_sub(1)?.checked_div(period)?;
    let rest = owed.checked_mul(period)?.checked_sub(due)?;
    Some((rest.checked_mul(units)?.checked_mul(UNIT)?, owed))
}

/// The state of the level's key; `None` if it belongs to another algorithm.
pub(super) fn algorithm_state(key: Option<&KeyState>, level: &Level) -> Option<State> {
    let Some(key) = key else { return level.spec.new_state() };
    match &level.spec {
        Spec::TokenBucket(_) if key.is_bucket => Some(State::TokenBucket(token_bucket::State {
            owed_micros: key.spent,
            remainder: key.remainder,
            at_us: key.charged_us,
            ..token_bucket::State::default()
        })),
        Spec::FixedWindow(_) if !key.is_bucket => {
            let (at_us, used_micros) = (key.charged_us, key.spent);
            Some(State::FixedWindow(fixed_window::State { at_us, used_micros }))
        }
        _ => None,
    }
}
