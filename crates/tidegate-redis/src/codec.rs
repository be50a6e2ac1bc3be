//! Commands and responses as strings of bytes, in the script's format.
//!
//! All numbers are little-endian. [`encode`] makes the arguments behind the header. The first of them is
//! the number of patterns, followed by each command: a byte with the number of its pattern and a byte per
//! key with the key's index among KEYS; or a zero byte for a command with an argument of its own. A
//! pattern is what a plain plan says apart from its own keys. Plans that say the same share it. Patterns
//! come next, then the other commands, each in an argument.
//!
//! Both begin with their kind (0 plain: only buckets and fixed windows, each on a key of its own; 1
//! decides, 2 amends, 3 lends), the number of their keys and, but for patterns, the keys' indices in two
//! bytes each. To decide: whether to charge, the number of levels, the holder, and for each level its
//! algorithm, whether it is enforced, the cost and the spec. To amend: the number of amendments, and for
//! each its algorithm, the change, the amount, when it was charged, the holder and the spec. To lend: the
//! spec of the bucket, the wish, its bounds, and the reports on earlier loans.
//!
//! The reply is the store's time; the status of each level of a plain plan; for each key the value that
//! plain plans left, from which the client computes their readings, because nodes have more cores than
//! Redis; and the other responses. Those begin with 0 and the store's time, followed by the result of each
//! level or amendment; or with 1, followed by an error.

mod decode;
mod encode;
mod reader;
mod value;
mod writer;

use std::sync::Arc;

use tidegate::engine::plan::{Level, Plan};
use tidegate::engine::store::{Amendment, AmendmentResults, Answer};

use crate::connection::Failure;
use crate::loans::{LoanReply, LoanRequest};
pub(crate) use decode::decode;
pub(crate) use encode::{BatchLayout, EncodedBatch, encode};
pub(crate) use reader::Reader;

/// A command to the script. It waits in a queue, so it shares what it says; clones are cheap.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    /// Decides a plan.
    Decide(Arc<Plan>),
    /// Makes corrections.
    Amend(Arc<[Amendment]>),
    /// Lends tokens of a bucket, and reports on earlier loans.
    Lend(Arc<LoanRequest>),
}

impl Command {
    /// How many levels, amendments or loans it has.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Decide(plan) => plan.levels.len(),
            Self::Amend(amendments) => amendments.len(),
            Self::Lend(_) => 1,
        }
    }

    /// The names and levels of all states that it is about.
    pub(crate) fn states(&self) -> impl Iterator<Item = (Option<&Arc<str>>, &Level)> {
        (0..).map_while(|at| match self {
            Self::Decide(plan) => plan.levels.get(at).map(|level| (plan.names.get(at), level)),
            Self::Amend(amendments) => {
                amendments.get(at).map(|amendment| (amendment.name.as_ref(), &amendment.level))
            }
            Self::Lend(request) => (at == 0).then(|| (request.name.as_ref(), &request.level)),
        })
    }
}

/// The script's response to a command.
#[allow(clippy::large_enum_variant, reason = "nearly all are decisions: a box would help none")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Response {
    /// To a plan.
    Decided(Answer),
    /// To corrections.
    AmendmentResults(AmendmentResults),
    /// To a loan request.
    Lent(LoanReply),
}

impl Response {
    pub(crate) fn into_answer(self) -> Result<Answer, Failure> {
        if let Self::Decided(answer) = self { Ok(answer) } else { Err(mismatch()) }
    }

    pub(crate) fn into_amended(self) -> Result<AmendmentResults, Failure> {
        if let Self::AmendmentResults(amended) = self { Ok(amended) } else { Err(mismatch()) }
    }

    pub(crate) fn into_loan_reply(self) -> Result<LoanReply, Failure> {
        if let Self::Lent(reply) = self { Ok(reply) } else { Err(mismatch()) }
    }
}

fn mismatch() -> Failure {
    Failure::unreadable("an answer to something else")
}

#[cfg(test)]
mod tests;
