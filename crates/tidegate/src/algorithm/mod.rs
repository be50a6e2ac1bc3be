//! The algorithms, as pure integer functions over (state, spec, now, cost).
//!
//! Each file has the same functions, so that a reader who knows one knows all:
//!
//! - `evaluate`: would this cost fit now, and if not, when? Changes nothing.
//! - `charge`: takes the cost, unconditionally; the store calls it once all levels fit.
//! - `refund`, `surcharge`: corrects a charge made earlier (`charged_at_us`), void once that charge
//!   has no effect any more; a surcharge may go into debt of at most one further limit.
//! - `reading`: what could be spent now, and when nothing will be owed any more.
//! - `meaningless_at_us`: the instant from which the state equals a new one.
//!
//! Times are microseconds; a time that runs backwards is taken as the latest one seen. States hold
//! what is owed, not what is left, so that a changed spec keeps it (rule 5).

use crate::units::Amount;

/// Whether a cost fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It fits now.
    Allowed,
    /// It does not.
    Denied {
        /// Microseconds until the same cost would fit if nobody else came; `None` where no waiting
        /// helps.
        retry_after_us: Option<u64>,
    },
}

/// What a limit shows of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// How much could be spent now.
    pub available: Amount,
    /// Microseconds until nothing is owed any more (bucket full, newest entry gone, window over);
    /// `None` where that never happens by itself.
    pub reset_us: Option<u64>,
}
