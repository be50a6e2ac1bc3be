//! Asks with keys in several slots of a cluster, where no script can see them all.
//!
//! A request is first looked at everywhere. Only if all its limits allow is it charged, part by part,
//! the one with the least left first; and if another was quicker in between, what was charged before is
//! given back. So it never admits too many, and may for a moment admit too few.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use tidegate::plan::{LEVELS_MAX, Mode, Plan};
use tidegate::store::{Amended, Amendment, Answer};
use tokio::time::Instant;

use super::parts::{Part, assembled, part_of, refunds, tightest_first, verdicts};
use super::topology::Topology;
use crate::codec::{Ask, Told};
use crate::connection::{Failure, Remedy};

impl Topology {
    /// An ask whose keys lie in one slot.
    pub(super) async fn ask_one(
        self: &Arc<Self>,
        slot: u16,
        ask: Arc<Ask>,
        deadline: Instant,
    ) -> Result<Told, Failure> {
        let failure = match self.ask(slot, Arc::clone(&ask), deadline).await {
            Ok(told) => return Ok(told),
            Err(failure) => failure,
        };
        if failure.remedy != Remedy::TryAgain || ask.len() < 2 {
            return Err(failure);
        }
        let whole = Part { slot, places: (0..ask.len()).collect() };
        // Boxed, as is all that few need: every request has room for the rest.
        Box::pin(self.ask_several(&ask, &whole.divided(), deadline)).await
    }

    /// An ask in parts.
    pub(super) async fn ask_several(
        self: &Arc<Self>,
        ask: &Ask,
        parts: &[Part],
        deadline: Instant,
    ) -> Result<Told, Failure> {
        let plan = match ask {
            Ask::Decide(plan) => plan,
            Ask::Amend(amendments) => {
                return self.amend(amendments, parts, deadline).await.map(Told::Amended);
            }
            Ask::Lend(_) => return Err(Failure::unreadable("a loan of several keys")),
        };
        let decided = match self.decide(plan, parts, deadline).await {
            // What was charged is given back.
            Err(failure) if failure.remedy == Remedy::TryAgain => {
                let divided: Vec<Part> = parts.iter().flat_map(Part::divided).collect();
                self.decide(plan, &divided, deadline).await
            }
            decided => decided,
        };
        decided.map(Told::Decided)
    }

    async fn decide(
        self: &Arc<Self>,
        plan: &Plan,
        parts: &[Part],
        deadline: Instant,
    ) -> Result<Answer, Failure> {
        let looks = parts.iter().map(|part| self.decide_part(plan, part, Mode::Peek, deadline));
        let seen: Vec<Answer> = join_all(looks).await.into_iter().collect::<Result<_, _>>()?;
        let whole = assembled(plan, parts, &seen);
        if !plan.commits(&verdicts(&whole)) {
            return Ok(whole);
        }
        let mut answers = seen.clone();
        let mut charged: Vec<usize> = Vec::new();
        for at in tightest_first(plan, parts, &seen) {
            let answered = self.decide_part(plan, &parts[at], Mode::Charge, deadline).await;
            let lost = match &answered {
                Ok(answer) => !part_of(plan, &parts[at], Mode::Charge).commits(&verdicts(answer)),
                Err(_) => true,
            };
            if lost {
                self.give_back(plan, parts, &answers, &charged);
                let mut left = seen;
                left[at] = answered?;
                return Ok(assembled(plan, parts, &left));
            }
            answers[at] = answered?;
            charged.push(at);
        }
        Ok(assembled(plan, parts, &answers))
    }

    async fn decide_part(
        &self,
        plan: &Plan,
        part: &Part,
        mode: Mode,
        deadline: Instant,
    ) -> Result<Answer, Failure> {
        let ask = Ask::Decide(part_of(plan, part, mode));
        match self.ask(part.slot, Arc::new(ask), deadline).await? {
            Told::Decided(answer) => Ok(answer),
            _ => Err(Failure::unreadable("an answer to something else")),
        }
    }

    /// Gives back what some parts were charged, in the background: whoever lost the race need not wait
    /// for it. It is sent once, as a second time would admit too many.
    fn give_back(
        self: &Arc<Self>,
        plan: &Plan,
        parts: &[Part],
        answers: &[Answer],
        charged: &[usize],
    ) {
        for at in charged {
            let amendments = refunds(&part_of(plan, &parts[*at], Mode::Charge), &answers[*at]);
            if amendments.is_empty() {
                continue;
            }
            let (topology, slot) = (Arc::clone(self), parts[*at].slot);
            tokio::spawn(async move { topology.refund(slot, amendments).await });
        }
    }

    async fn refund(&self, slot: u16, amendments: Vec<Amendment>) {
        let (deadline, count) = (Instant::now() + self.common.timeout, amendments.len());
        let ask = Arc::new(Ask::Amend(amendments));
        if let Err(failure) = self.ask(slot, Arc::clone(&ask), deadline).await {
            self.lost_refunds
                .fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
            let error = &failure.error;
            tracing::warn!(event = "refund_lost", %error, count, "a charge stays that should have been given back");
        }
        // Whether it was answered or not: it may have been carried out.
        if let (Ask::Amend(amendments), Some(refunded)) = (&*ask, self.refunded.get()) {
            refunded(amendments);
        }
    }

    async fn amend(
        &self,
        amendments: &[Amendment],
        parts: &[Part],
        deadline: Instant,
    ) -> Result<Amended, Failure> {
        let told =
            join_all(parts.iter().map(|part| self.amend_part(amendments, part, deadline))).await;
        let mut amended: Vec<bool> = vec![false; amendments.len()];
        for (part, told) in parts.iter().zip(together(told)?) {
            for (place, found) in part.places.iter().zip(told) {
                amended[*place] = found;
            }
        }
        Ok(amended.into_iter().take(LEVELS_MAX).collect())
    }

    async fn amend_part(
        &self,
        amendments: &[Amendment],
        part: &Part,
        deadline: Instant,
    ) -> Result<Vec<bool>, Failure> {
        match self.amend_together(amendments, part, deadline).await {
            Err(failure) if failure.remedy == Remedy::TryAgain => {
                let divided = part.divided();
                let each = |part| self.amend_together(amendments, part, deadline);
                let told = join_all(divided.iter().map(each)).await;
                Ok(together(told)?.concat())
            }
            told => told,
        }
    }

    async fn amend_together(
        &self,
        amendments: &[Amendment],
        part: &Part,
        deadline: Instant,
    ) -> Result<Vec<bool>, Failure> {
        let own = part.places.iter().map(|place| amendments[*place].clone()).collect();
        match self.ask(part.slot, Arc::new(Ask::Amend(own)), deadline).await? {
            Told::Amended(found) => Ok(found.to_vec()),
            _ => Err(Failure::unreadable("an answer to something else")),
        }
    }
}

impl Ask {
    fn len(&self) -> usize {
        match self {
            Self::Decide(plan) => plan.levels.len(),
            Self::Amend(amendments) => amendments.len(),
            Self::Lend(_) => 1,
        }
    }
}

/// What was told of all parts. Where one of them failed and another may have been carried out, it does
/// not look as if nothing was sent: a refund that is sent again would be made twice.
fn together<T>(told: Vec<Result<T, Failure>>) -> Result<Vec<T>, Failure> {
    let unsent = |told: &Result<T, Failure>| told.as_ref().is_err_and(Failure::is_unsent);
    let partly = !told.iter().all(unsent);
    let of_all = |failure: Failure| if partly { failure.in_part() } else { failure };
    told.into_iter().map(|told| told.map_err(of_all)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Reason;

    #[test]
    fn what_was_sent_in_part_does_not_look_unsent() {
        let open = || Failure::new(Reason::Open, true, "it failed before");
        assert_eq!(together(vec![Ok(1), Ok(2)]), Ok(vec![1, 2]));
        assert!(together::<()>(vec![Err(open()), Err(open())]).unwrap_err().is_unsent());
        for other in [Ok(()), Err(Failure::timeout())] {
            assert!(!together(vec![Err(open()), other.clone()]).unwrap_err().is_unsent());
            assert!(!together(vec![other, Err(open())]).unwrap_err().is_unsent());
        }
    }
}
