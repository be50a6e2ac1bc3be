//! Commands with keys in several slots of a cluster, where one script call cannot reach them all.
//!
//! A plan is first peeked at in every slot. Only if all its limits allow is it charged, slot by slot,
//! the one with the least left first. If another request was quicker in between, what was charged is
//! given back. So the limits never admit too many, and may admit too few for a moment.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use tidegate::engine::plan::{LEVELS_MAX, Mode, Plan};
use tidegate::engine::store::{Amendment, AmendmentResults, Answer};
use tokio::time::Instant;

use super::fragments::{Fragment, join_answers, refunds, tightest_first, verdicts};
use super::topology::Topology;
use crate::codec::{Command, Response};
use crate::connection::{Failure, Remedy};

impl Topology {
    /// Sends a command fragment by fragment.
    pub(super) async fn send_cross_slot(
        self: &Arc<Self>,
        command: &Command,
        fragments: &[Fragment],
        deadline: Instant,
    ) -> Result<Response, Failure> {
        let plan = match command {
            Command::Decide(plan) => plan,
            Command::Amend(amendments) => {
                return self
                    .amend(amendments, fragments, deadline)
                    .await
                    .map(Response::AmendmentResults);
            }
            Command::Lend(_) => return Err(Failure::unreadable("a loan of several keys")),
        };
        let decided = match self.decide(plan, fragments, deadline).await {
            // A slot is moving. What was charged is given back; now each key goes by itself.
            Err(failure) if failure.remedy == Remedy::TryAgain => {
                let split: Vec<Fragment> = fragments.iter().flat_map(Fragment::split).collect();
                self.decide(plan, &split, deadline).await
            }
            decided => decided,
        };
        decided.map(Response::Decided)
    }

    async fn decide(
        self: &Arc<Self>,
        plan: &Plan,
        fragments: &[Fragment],
        deadline: Instant,
    ) -> Result<Answer, Failure> {
        let peeks =
            fragments.iter().map(|one| self.decide_fragment(plan, one, Mode::Peek, deadline));
        let peeked: Vec<Answer> = join_all(peeks).await.into_iter().collect::<Result<_, _>>()?;
        let joined = join_answers(plan, fragments, &peeked);
        if !plan.commits(&verdicts(&joined)) {
            return Ok(joined);
        }
        let (mut answers, mut charged) = (peeked.clone(), Vec::new());
        for index in tightest_first(plan, fragments, &peeked) {
            let fragment = &fragments[index];
            let part = fragment.plan(plan, Mode::Charge);
            let answered = self.decide_fragment(plan, fragment, Mode::Charge, deadline).await;
            let is_committed =
                answered.as_ref().is_ok_and(|answer| part.commits(&verdicts(answer)));
            if !is_committed {
                self.give_back(charged);
                let mut answers = peeked;
                answers[index] = answered?;
                return Ok(join_answers(plan, fragments, &answers));
            }
            answers[index] = answered?;
            charged.push((fragment.slot, refunds(&part, &answers[index])));
        }
        Ok(join_answers(plan, fragments, &answers))
    }

    async fn decide_fragment(
        &self,
        plan: &Plan,
        fragment: &Fragment,
        mode: Mode,
        deadline: Instant,
    ) -> Result<Answer, Failure> {
        let command = Command::Decide(Arc::new(fragment.plan(plan, mode)));
        self.send(fragment.slot, command, deadline).await?.into_answer()
    }

    /// Gives back charges, in the background: the request that lost the race does not wait. Refunds are
    /// sent once, as a repeated one would admit too many.
    fn give_back(self: &Arc<Self>, charged: Vec<(u16, Vec<Amendment>)>) {
        for (slot, amendments) in charged {
            if !amendments.is_empty() {
                let topology = Arc::clone(self);
                tokio::spawn(async move { topology.refund(slot, amendments.into()).await });
            }
        }
    }

    async fn refund(&self, slot: u16, amendments: Arc<[Amendment]>) {
        let (deadline, count) = (Instant::now() + self.deployment.timeout, amendments.len());
        let sent = self.send(slot, Command::Amend(Arc::clone(&amendments)), deadline).await;
        if let Err(failure) = sent {
            let lost = u64::try_from(count).unwrap_or(u64::MAX);
            self.lost_refunds.fetch_add(lost, Ordering::Relaxed);
            let error = &failure.error;
            tracing::warn!(event = "refund_lost", %error, count, "a charge stays that should have been given back");
        }
        // The store may have made them without an answer.
        self.deployment.cache.invalidate_amended(&amendments);
    }

    async fn amend(
        &self,
        amendments: &[Amendment],
        fragments: &[Fragment],
        deadline: Instant,
    ) -> Result<AmendmentResults, Failure> {
        let each = |fragment| self.amend_fragment(amendments, fragment, deadline);
        let amended = join_results(join_all(fragments.iter().map(each)).await)?;
        let mut results = vec![false; amendments.len()];
        for (fragment, amended) in fragments.iter().zip(amended) {
            for (index, was_amended) in fragment.indices.iter().zip(amended) {
                results[*index] = was_amended;
            }
        }
        Ok(results.into_iter().take(LEVELS_MAX).collect())
    }

    async fn amend_fragment(
        &self,
        amendments: &[Amendment],
        fragment: &Fragment,
        deadline: Instant,
    ) -> Result<Vec<bool>, Failure> {
        let send = async |fragment: &Fragment| {
            let part = fragment.indices.iter().map(|index| amendments[*index].clone()).collect();
            let response = self.send(fragment.slot, Command::Amend(part), deadline).await?;
            Ok(response.into_amended()?.to_vec())
        };
        match send(fragment).await {
            Err(Failure { remedy: Remedy::TryAgain, .. }) => {
                Ok(join_results(join_all(fragment.split().iter().map(&send)).await)?.concat())
            }
            amended => amended,
        }
    }
}

/// The results of all fragments. If one failed and another may have been carried out, the failure must
/// not look unsent: a refund that is sent again would be made twice.
fn join_results<T>(results: Vec<Result<T, Failure>>) -> Result<Vec<T>, Failure> {
    let is_unsent = |result: &Result<T, Failure>| result.as_ref().is_err_and(Failure::is_unsent);
    let is_partly_sent = !results.iter().all(is_unsent);
    let adjust =
        |failure: Failure| if is_partly_sent { failure.into_partly_sent() } else { failure };
    results.into_iter().map(|result| result.map_err(adjust)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Reason;

    #[test]
    fn what_was_sent_in_part_does_not_look_unsent() {
        let open = || Failure::new(Reason::Open, true, "it failed before");
        assert_eq!(join_results(vec![Ok(1), Ok(2)]), Ok(vec![1, 2]));
        assert!(join_results::<()>(vec![Err(open()), Err(open())]).unwrap_err().is_unsent());
        for other in [Ok(()), Err(Failure::timeout())] {
            assert!(!join_results(vec![Err(open()), other.clone()]).unwrap_err().is_unsent());
            assert!(!join_results(vec![other, Err(open())]).unwrap_err().is_unsent());
        }
    }
}
