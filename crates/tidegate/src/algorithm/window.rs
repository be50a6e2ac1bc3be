//! What fixed windows and quotas share: one counter for the window that now lies in.

use serde::{Deserialize, Serialize};

use super::{
    Amount, DENIED_FOR_GOOD, Reading, Verdict, debitable, denied_until, fits, rest, surchargeable,
};

/// What was used, and when last. The counter means something while that instant lies in the
/// present window, so a window of another length keeps what it can.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct State {
    /// The time of the last charge. Time never runs back behind it, or a clock that is set back
    /// would open an earlier window again.
    pub at_us: u64,
    /// What was used in the window of that instant.
    pub used_micros: u64,
}

/// The window that a time lies in.
#[derive(Clone, Copy)]
pub(super) struct Window {
    pub(super) start_us: u64,
    pub(super) end_us: u64,
}

impl Window {
    fn used(self, state: &State) -> u64 {
        if state.at_us >= self.start_us { state.used_micros } else { 0 }
    }

    pub(super) fn evaluate(
        self,
        state: &State,
        limit: Amount,
        now_us: u64,
        cost: Amount,
    ) -> Verdict {
        if fits(limit, self.used(state), cost) {
            Verdict::Allowed
        } else if cost > limit {
            DENIED_FOR_GOOD
        } else {
            denied_until(self.end_us, now_us)
        }
    }

    pub(super) fn charge(self, state: &mut State, now_us: u64, cost: Amount) {
        if !cost.is_zero() {
            let used_micros = self.used(state).saturating_add(cost.micros());
            let at_us = now_us.max(state.at_us).max(self.start_us);
            *state = State { at_us, used_micros };
        }
    }

    pub(super) fn debit(self, state: &mut State, limit: Amount, now_us: u64, amount: Amount) {
        self.charge(state, now_us, debitable(limit, self.used(state), amount));
    }

    pub(super) fn refund(self, state: &mut State, charged_at_us: u64, cost: Amount) {
        if charged_at_us >= self.start_us && state.at_us >= self.start_us {
            state.used_micros = state.used_micros.saturating_sub(cost.micros());
        }
    }

    pub(super) fn surcharge(
        self,
        state: &mut State,
        limit: Amount,
        charged_at_us: u64,
        extra: Amount,
    ) {
        let used = self.used(state);
        if charged_at_us >= self.start_us && used > 0 {
            state.used_micros = used.saturating_add(surchargeable(limit, used, extra));
        }
    }

    pub(super) fn reading(self, state: &State, limit: Amount, now_us: u64) -> Reading {
        let available = rest(limit, self.used(state));
        Reading { available, reset_us: Some(self.end_us.saturating_sub(now_us)) }
    }

    /// For the window of the last charge: its end, or that charge's own instant if it was all given
    /// back (before it the state still holds time in place).
    pub(super) fn meaningless_at_us(self, state: &State) -> u64 {
        if self.used(state) == 0 { state.at_us } else { self.end_us }
    }
}
