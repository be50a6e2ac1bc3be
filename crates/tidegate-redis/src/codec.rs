//! Asks and answers as strings of bytes, as the script packs and unpacks them.
//!
//! All numbers are little-endian. The first of the arguments that [`encode`] makes says how many
//! patterns there are, and then of each ask in a byte which pattern it is, or zero for none, and in a
//! byte each where the keys of a pattern are. A pattern is what a plain plan says, its keys aside, and
//! is there once for all plans that say the same; it, and each ask that is none, has an argument.
//!
//! Those begin with their kind (0 plain: only buckets and fixed windows, each on a key of its own; 1
//! decides, 2 amends, 3 lends), how many keys they have and, but for patterns, the keys' places in two
//! bytes each. To decide: whether to charge, how many levels, the holder, and for each level its
//! algorithm, whether it is enforced, the cost and the spec. To amend: how many amendments, and for
//! each its algorithm, the change, the amount, when it was charged, the holder and the spec. To lend:
//! the spec of the bucket, the wish, its bounds, and the reports on earlier loans.
//!
//! The reply is the store's time; for each level of a plain plan what became of it; for each key what
//! such plans left it with, which says all the rest; and the other answers. Those begin with 0 and the
//! store's time, followed by what became of each level or amendment; or with 1, followed by why there
//! is none.

mod batch;
mod reader;
mod replies;
mod state;
mod writer;

use tidegate::plan::Plan;
use tidegate::store::{Amended, Amendment, Answer};

use crate::leases::{Lent, Loan};
pub(crate) use batch::{Layout, Packed, encode};
pub(crate) use reader::Reader;
pub(crate) use replies::decode;

/// What a batch asks of the script; it waits in a queue, so it owns what it says.
#[allow(clippy::large_enum_variant, reason = "nearly all are decisions: a box would help none")]
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// Decide a plan.
    Decide(Plan),
    /// Make corrections.
    Amend(Vec<Amendment>),
    /// Lend tokens of a bucket, and hear of those lent before.
    Lend(Loan),
}

/// What the script said to an ask.
#[allow(clippy::large_enum_variant, reason = "nearly all are decisions: a box would help none")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Told {
    /// To a plan.
    Decided(Answer),
    /// To corrections.
    Amended(Amended),
    /// To a loan.
    Lent(Lent),
}

#[cfg(test)]
mod tests;
