//! The fragments of a command or a batch that lie in one slot each, and how their answers become one.

use tidegate::clock::Now;
use tidegate::engine::algorithm::{Spec, Verdict};
use tidegate::engine::plan::{Enforcement, Mode, PerLevel, Plan};
use tidegate::engine::store::{Amendment, Answer, Change, Reply};

/// What lies in one slot: levels or amendments of a command, or commands of a batch, by their indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fragment {
    pub(super) slot: u16,
    pub(super) indices: Vec<usize>,
}

/// Groups by slot. What has no slot joins the first fragment. A linear search does: there are few slots.
pub(super) fn group_by_slot(slots: &[Option<u16>]) -> Vec<Fragment> {
    let first = slots.iter().flatten().next().copied().unwrap_or_default();
    let mut fragments: Vec<Fragment> = vec![Fragment { slot: first, indices: Vec::new() }];
    for (index, slot) in slots.iter().enumerate() {
        let slot = slot.unwrap_or(first);
        match fragments.iter_mut().find(|fragment| fragment.slot == slot) {
            Some(fragment) => fragment.indices.push(index),
            None => fragments.push(Fragment { slot, indices: vec![index] }),
        }
    }
    fragments
}

impl Fragment {
    /// One fragment per key: while a slot moves, its keys are on two servers.
    pub(super) fn split(&self) -> Vec<Self> {
        let single = |index: &usize| Self { slot: self.slot, indices: vec![*index] };
        self.indices.iter().map(single).collect()
    }

    /// The plan of these levels alone.
    pub(super) fn plan(&self, plan: &Plan, mode: Mode) -> Plan {
        let indices = || self.indices.iter().copied();
        Plan {
            mode,
            levels: indices().map(|index| plan.levels[index]).collect(),
            names: indices().filter_map(|index| plan.names.get(index).cloned()).collect(),
            ..*plan
        }
    }
}

pub(super) fn verdicts(answer: &Answer) -> Vec<Verdict> {
    answer.replies.iter().map(|reply| reply.verdict).collect()
}

/// The answers to all fragments as one, at the latest of their times.
pub(super) fn join_answers(plan: &Plan, fragments: &[Fragment], answers: &[Answer]) -> Answer {
    let mut replies: Vec<Option<Reply>> = vec![None; plan.levels.len()];
    for (fragment, answer) in fragments.iter().zip(answers) {
        for (index, reply) in fragment.indices.iter().zip(&answer.replies) {
            replies[*index] = Some(*reply);
        }
    }
    let now_us = answers.iter().map(|answer| answer.now.unix_us).max().unwrap_or_default();
    // Every level is in one fragment, and every fragment has a reply to each of its levels.
    let replies: PerLevel<Reply> = replies.into_iter().flatten().collect();
    Answer { now: Now { steady_us: now_us, unix_us: now_us }, replies }
}

/// The fragments in the order in which they are charged: those that another request is most likely to
/// exhaust come first.
pub(super) fn tightest_first(plan: &Plan, fragments: &[Fragment], peeked: &[Answer]) -> Vec<usize> {
    let share_left = |at: &usize| {
        let levels = fragments[*at].indices.iter().zip(&peeked[*at].replies);
        let enforced = levels
            .map(|(index, reply)| (&plan.levels[*index], reply))
            .filter(|(level, _)| level.enforcement == Enforcement::Reject);
        let share = enforced.map(|(level, reply)| {
            let capacity = u128::from(level.spec.capacity().micros().max(1));
            u128::from(reply.reading.available.micros()) * 1_000_000 / capacity
        });
        share.min().unwrap_or(u128::MAX)
    };
    let mut order: Vec<usize> = (0..fragments.len()).collect();
    order.sort_by_key(share_left);
    order
}

/// The amendments that undo a plan's charges.
#[must_use]
pub fn refunds(plan: &Plan, answer: &Answer) -> Vec<Amendment> {
    let levels = plan.levels.iter().zip(&answer.replies).enumerate();
    let charged = levels.filter(|(_, (_, reply))| reply.charged);
    let refund = charged.map(|(at, (level, reply))| Amendment {
        level: *level,
        name: plan.names.get(at).cloned(),
        charged_at_us: reply.charged_at_us,
        holder: plan.holder,
        change: match level.spec {
            Spec::Concurrency(_) => Change::Release,
            _ => Change::Refund(level.cost),
        },
    });
    refund.collect()
}

#[cfg(test)]
mod tests {
    use tidegate::Amount;
    use tidegate::engine::Key;
    use tidegate::engine::algorithm::{Reading, total};
    use tidegate::engine::plan::Level;
    use tidegate::engine::policy::OnStoreFailure;

    use super::*;

    #[test]
    fn what_lies_in_one_slot_is_one_fragment() {
        let fragment = |slot, indices: &[usize]| Fragment { slot, indices: indices.to_vec() };
        let found = group_by_slot(&[None, Some(7), Some(3), Some(7), None]);
        assert_eq!(found, [fragment(7, &[0, 1, 3, 4]), fragment(3, &[2])]);
        assert_eq!(found[1].split(), [fragment(3, &[2])]);
    }

    fn units(units: u64) -> Amount {
        Amount::from_units(units).unwrap()
    }

    fn level(limit: u64, enforcement: Enforcement) -> Level {
        Level {
            limit: 0,
            family: 1,
            key: Key(1),
            spec: Spec::Total(total::Spec { limit: units(limit) }),
            cost: Amount::ONE,
            refundable: false,
            reserved: false,
            leased: false,
            enforcement,
            on_store_failure: OnStoreFailure::Local,
        }
    }

    /// What is left of one level, at a time.
    fn answer(left: u64, at_us: u64) -> Answer {
        let reading = Reading { available: units(left), reset_us: None };
        let reply =
            Reply { verdict: Verdict::Allowed, charged: left < 10, charged_at_us: at_us, reading };
        let now = Now { steady_us: at_us, unix_us: at_us };
        Answer { now, replies: [reply].into_iter().collect() }
    }

    fn plan(levels: &[Level]) -> Plan {
        Plan {
            mode: Mode::Charge,
            now: Now { steady_us: 0, unix_us: 0 },
            holder: 7,
            levels: levels.iter().copied().collect(),
            names: vec!["a".into(), "b".into(), "c".into()],
        }
    }

    #[test]
    fn the_fragment_with_the_least_left_in_proportion_is_charged_first() {
        let plan = plan(&[
            level(10, Enforcement::Shadow),
            level(100, Enforcement::Reject),
            level(10, Enforcement::Reject),
        ]);
        let fragments = group_by_slot(&[Some(1), Some(2), Some(3)]);
        let seen = [answer(0, 3), answer(20, 9), answer(5, 4)];
        assert_eq!(tightest_first(&plan, &fragments, &seen), [1, 2, 0]);
        let whole = join_answers(&plan, &fragments, &seen);
        assert_eq!(whole.now.unix_us, 9);
        let left: Vec<u64> =
            whole.replies.iter().map(|reply| reply.reading.available.whole()).collect();
        assert_eq!(left, [0, 20, 5]);
    }

    #[test]
    fn only_what_was_charged_is_given_back() {
        let plan = plan(&[level(10, Enforcement::Reject), level(10, Enforcement::Reject)]);
        let fragments = group_by_slot(&[Some(1), Some(2)]);
        let refunds_of = |fragment: &Fragment, left| {
            refunds(&fragment.plan(&plan, Mode::Charge), &answer(left, 5))
        };
        assert_eq!(refunds_of(&fragments[0], 10), []);
        let refund = &refunds_of(&fragments[1], 9)[0];
        assert_eq!(refund.name.as_deref(), Some("b"));
        assert_eq!(refund.change, Change::Refund(Amount::ONE));
        assert_eq!((refund.charged_at_us, refund.holder), (5, 7));
    }
}
