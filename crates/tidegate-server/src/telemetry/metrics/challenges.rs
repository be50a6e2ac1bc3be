//! What became of challenges, by their kind.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::policy::ChallengeKind;

use super::text::{Kind, Page};

/// What became of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Challenged {
    /// A client was given it.
    Issued,
    /// It earned a pass.
    Solved,
    /// What came back was wrong, forged, another client's or used before.
    Failed,
    /// It came too late, or nobody could judge it.
    Void,
}

/// The values of the label `kind`.
const KINDS: [&str; 2] = ["proof_of_work", "captcha"];
/// The values of the label `result`, in the order of [`Challenged`].
const RESULTS: [&str; 4] = ["issued", "solved", "failed", "void"];

/// Counters of all of them.
#[derive(Debug, Default)]
pub(super) struct Challenges([[AtomicU64; RESULTS.len()]; KINDS.len()]);

impl Challenges {
    pub(super) fn count(&self, kind: &ChallengeKind, result: Challenged) {
        let kind = match kind {
            ChallengeKind::ProofOfWork { .. } => 0,
            ChallengeKind::Captcha { .. } => 1,
        };
        self.0[kind][result as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn write(&self, page: &mut Page) {
        let name = "tidegate_challenges_total";
        let help = "Challenges by kind: issued, solved, failed (a wrong, forged or used solution), \
                    void (too late, or nobody could judge it).";
        page.family(name, Kind::Counter, help);
        for (kind, counters) in KINDS.iter().zip(&self.0) {
            for (result, counter) in RESULTS.iter().zip(counters) {
                let labels = [("kind", *kind), ("result", *result)];
                page.sample(name, &labels, counter.load(Ordering::Relaxed));
            }
        }
    }
}
