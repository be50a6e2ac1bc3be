//! Values of keys in the short forms that the script answers with.

use tidegate::algorithm::{Spec, State, fixed_window, token_bucket};
use tidegate::plan::Level;

use super::Reader;

const TIGHT: u8 = 65;
const TIGHT_NEW: u8 = 73;
const WIDE: u8 = 81;
const WINDOW: u8 = 68;
/// Added where the end of the key is rounded up.
const ROUNDED: u8 = 32;
const UNIT: u64 = 1_000_000;

/// What a key holds, as far as it tells what is left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    is_bucket: bool,
    pub(super) charged_us: u64,
    /// What is owed to a bucket, or used of a window.
    spent: u64,
    remainder: u64,
}

impl Held {
    /// Reads a value; none where nobody has used the key, or plain asks left nothing of it.
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
    pub(super) fn before(&mut self, cost: u64) -> Option<()> {
        self.spent = self.spent.checked_sub(cost)?;
        if self.spent == 0 {
            self.remainder = 0;
        }
        Some(())
    }
}

/// The remainder, and what is owed, of which this is due: times the period, less the remainder.
fn owed(due: u64, period: u64, units: u64) -> Option<(u64, u64)> {
    let owed = due.checked_add(period)?.checked_sub(1)?.checked_div(period)?;
    let rest = owed.checked_mul(period)?.checked_sub(due)?;
    Some((rest.checked_mul(units)?.checked_mul(UNIT)?, owed))
}

/// The state of the level's key; `None` if it is another algorithm's.
pub(super) fn state(held: Option<&Held>, level: &Level) -> Option<State> {
    let held = match held {
        Some(held) => held,
        None => return level.spec.new_state(),
    };
    match &level.spec {
        Spec::TokenBucket(_) if held.is_bucket => Some(State::TokenBucket(token_bucket::State {
            owed_micros: held.spent,
            remainder: held.remainder,
            at_us: held.charged_us,
            ..token_bucket::State::default()
        })),
        Spec::FixedWindow(_) if !held.is_bucket => {
            let (at_us, used_micros) = (held.charged_us, held.spent);
            Some(State::FixedWindow(fixed_window::State { at_us, used_micros }))
        }
        _ => None,
    }
}
