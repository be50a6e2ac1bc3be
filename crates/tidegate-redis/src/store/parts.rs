//! The parts of an ask that has keys in several places, and what is made of their answers.

use tidegate::algorithm::{Spec, Verdict};
use tidegate::clock::Now;
use tidegate::plan::{Enforcement, Mode, PerLevel, Plan};
use tidegate::store::{Amendment, Answer, Change, Reply};

/// What lies together: levels or amendments, by their places in the ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) slot: u16,
    pub(super) places: Vec<usize>,
}

/// The parts of an ask; what lies nowhere goes with the first.
pub(super) fn parts(slots: &[Option<u16>]) -> Vec<Part> {
    let first = slots.iter().flatten().next().copied().unwrap_or_default();
    let mut parts: Vec<Part> = vec![Part { slot: first, places: Vec::new() }];
    for (place, slot) in slots.iter().enumerate() {
        let slot = slot.unwrap_or(first);
        match parts.iter_mut().find(|part| part.slot == slot) {
            Some(part) => part.places.push(place),
            None => parts.push(Part { slot, places: vec![place] }),
        }
    }
    parts
}

impl Part {
    /// Each by itself: while a slot is moved, some of it is here and some there.
    pub(super) fn divided(&self) -> Vec<Self> {
        let each = |place: &usize| Self { slot: self.slot, places: vec![*place] };
        self.places.iter().map(each).collect()
    }
}

pub(super) fn part_of(plan: &Plan, part: &Part, mode: Mode) -> Plan {
    let places = || part.places.iter().copied();
    Plan {
        mode,
        levels: places().map(|place| plan.levels[place]).collect(),
        names: places().filter_map(|place| plan.names.get(place).cloned()).collect(),
        ..*plan
    }
}

pub(super) fn verdicts(answer: &Answer) -> Vec<Verdict> {
    answer.replies.iter().map(|reply| reply.verdict).collect()
}

/// The answers to all parts as one, at the latest of their times.
pub(super) fn assembled(plan: &Plan, parts: &[Part], answers: &[Answer]) -> Answer {
    let mut replies: Vec<Option<Reply>> = vec![None; plan.levels.len()];
    for (part, answer) in parts.iter().zip(answers) {
        for (place, reply) in part.places.iter().zip(&answer.replies) {
            replies[*place] = Some(*reply);
        }
    }
    let now_us = answers.iter().map(|answer| answer.now.unix_us).max().unwrap_or_default();
    // Every level is in one part, and every part has a reply to each of its levels.
    let replies: PerLevel<Reply> = replies.into_iter().flatten().collect();
    Answer { now: Now { steady_us: now_us, unix_us: now_us }, replies }
}

/// The parts in the order in which they are charged: where another may be quicker, first.
pub(super) fn tightest_first(plan: &Plan, parts: &[Part], seen: &[Answer]) -> Vec<usize> {
    let left = |at: &usize| {
        let levels = parts[*at].places.iter().zip(&seen[*at].replies);
        let enforced = levels
            .map(|(place, reply)| (&plan.levels[*place], reply))
            .filter(|(level, _)| level.enforcement == Enforcement::Reject);
        let share = enforced.map(|(level, reply)| {
            let capacity = u128::from(level.spec.capacity().micros().max(1));
            u128::from(reply.reading.available.micros()) * 1_000_000 / capacity
        });
        share.min().unwrap_or(u128::MAX)
    };
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(left);
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
    use tidegate::Key;
    use tidegate::algorithm::{Reading, total};
    use tidegate::plan::Level;
    use tidegate::policy::OnStoreFailure;
    use tidegate::units::Amount;

    use super::*;

    #[test]
    fn what_lies_together_is_one_part() {
        let part = |slot, places: &[usize]| Part { slot, places: places.to_vec() };
        let found = parts(&[None, Some(7), Some(3), Some(7), None]);
        assert_eq!(found, [part(7, &[0, 1, 3, 4]), part(3, &[2])]);
        assert_eq!(found[1].divided(), [part(3, &[2])]);
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
    fn the_part_with_the_least_left_in_proportion_is_charged_first() {
        let plan = plan(&[
            level(10, Enforcement::Shadow),
            level(100, Enforcement::Reject),
            level(10, Enforcement::Reject),
        ]);
        let parts = parts(&[Some(1), Some(2), Some(3)]);
        let seen = [answer(0, 3), answer(20, 9), answer(5, 4)];
        assert_eq!(tightest_first(&plan, &parts, &seen), [1, 2, 0]);
        let whole = assembled(&plan, &parts, &seen);
        assert_eq!(whole.now.unix_us, 9);
        let left: Vec<u64> =
            whole.replies.iter().map(|reply| reply.reading.available.whole()).collect();
        assert_eq!(left, [0, 20, 5]);
    }

    #[test]
    fn only_what_was_charged_is_given_back() {
        let plan = plan(&[level(10, Enforcement::Reject), level(10, Enforcement::Reject)]);
        let parts = parts(&[Some(1), Some(2)]);
        let refunds_of =
            |part, left| refunds(&part_of(&plan, part, Mode::Charge), &answer(left, 5));
        assert_eq!(refunds_of(&parts[0], 10), []);
        let refund = &refunds_of(&parts[1], 9)[0];
        assert_eq!(refund.name.as_deref(), Some("b"));
        assert_eq!(refund.change, Change::Refund(Amount::ONE));
        assert_eq!((refund.charged_at_us, refund.holder), (5, 7));
    }
}
