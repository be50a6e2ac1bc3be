//! Asks and answers as strings of bytes, as the script packs and unpacks them.
//!
//! All numbers are little-endian. An ask begins with its kind (1 decides, 0 too if it is plain: only
//! buckets and fixed windows, each on a key of its own; 2 amends, 3 lends) and how many keys it has. To
//! decide: whether to charge, how many levels, the holder, and for each level its algorithm, whether it
//! is enforced, the cost and the spec. To amend: how many amendments, and for each its algorithm, the
//! change, the amount, when it was charged, the holder and the spec. To lend: the spec of the bucket,
//! the wish, its bounds, and the reports on earlier loans.
//!
//! A reply begins with 0 and the store's time, followed by what became of each level or amendment;
//! or with 1, followed by why there is none.

mod reader;
mod writer;

use tidegate::algorithm::{Reading, Verdict};
use tidegate::clock::Now;
use tidegate::plan::{PerLevel, Plan};
use tidegate::store::{Amended, Amendment, Answer, Reply, StoreError};
use tidegate::units::Amount;

use crate::leases::{Lent, Loan};
pub(crate) use reader::Reader;
use writer::Writer;

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

/// Appends the Redis keys of one ask to `keys`, and returns the packed argument that goes with them.
pub(crate) fn encode(ask: &Ask, prefix: &str, keys: &mut Vec<Vec<u8>>) -> Vec<u8> {
    let mut writer = Writer::new(prefix, keys);
    match ask {
        Ask::Decide(plan) => writer.plan(plan),
        Ask::Amend(amendments) => writer.amendments(amendments),
        Ask::Lend(loan) => writer.loan(loan),
    }
    writer.finish()
}

/// Reads the packed reply to one ask.
pub(crate) fn decode(ask: &Ask, reply: &[u8]) -> Result<Told, StoreError> {
    let mut reader = Reader::new(reply);
    match reader.byte() {
        Some(0) => read(ask, &mut reader).ok_or_else(|| refused("a reply of another format")),
        Some(1) => Err(refused(&reader.text())),
        _ => Err(refused("a reply of another format")),
    }
}

fn read(ask: &Ask, reader: &mut Reader<'_>) -> Option<Told> {
    let now_us = reader.number()?;
    let told = match ask {
        Ask::Decide(plan) => {
            let replies = plan.levels.iter().map(|_| read_reply(reader));
            let replies = replies.collect::<Option<PerLevel<Reply>>>()?;
            Told::Decided(Answer { now: Now { steady_us: now_us, unix_us: now_us }, replies })
        }
        Ask::Amend(amendments) => {
            let mut amended = Amended::new();
            for _ in amendments.iter().take(amended.capacity()) {
                amended.push(reader.flag()?);
            }
            Told::Amended(amended)
        }
        Ask::Lend(_) => Told::Lent(Lent {
            now_us,
            granted: reader.number()?,
            epoch: reader.number()?,
            lasts_us: reader.number()?,
            available: reader.number()?,
            outstanding: reader.number()?,
        }),
    };
    reader.is_over().then_some(told)
}

fn read_reply(reader: &mut Reader<'_>) -> Option<Reply> {
    let code = reader.byte()?;
    let retry_after_us = reader.optional()?;
    let verdict = match code {
        0 | 1 => Verdict::Allowed,
        2 => Verdict::Denied { retry_after_us },
        _ => return None,
    };
    let charged_at_us = reader.number()?;
    let available = Amount::from_micros(reader.number()?)?;
    let reading = Reading { available, reset_us: reader.optional()? };
    Some(Reply { verdict, charged: code == 1, charged_at_us, reading })
}

/// An answer that no repetition makes better.
fn refused(detail: &str) -> StoreError {
    StoreError { transient: false, detail: detail.to_owned() }
}

#[cfg(test)]
mod tests;
