//! Stores with one fault each.

use std::time::Duration;

use tidegate::Amount;
use tidegate::clock::Now;
use tidegate::engine::Key;
use tidegate::engine::algorithm::{Spec, Verdict};
use tidegate::engine::plan::{Enforcement, Level, Mode, PerLevel, Plan};
use tidegate::engine::store::{
    Amendment, AmendmentResults, Answer, Change, ImmediateStore, Memory, StoreError,
};

const MICROSECOND: Duration = Duration::from_micros(1);

/// A fault of a store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// Reads and then updates, level by level.
    ChargesLevelByLevel,
    PeeksCharge,
    /// A denied request postpones its own recovery.
    DenialsCharge,
    WarningsAreChargedWhileOver,
    RetriesAMicrosecondEarly,
    RetriesAMicrosecondLate,
    ResetsLate,
    ReadsBeforeTheCharge,
    RefundsWhatIsOver,
    RefundsNothing,
    SurchargesWithoutEnd,
    SurchargesNothing,
    ReleasesNothing,
    RenewsNothing,
    FindsEverything,
    ForgetsNothing,
    MixesKeys,
    MixesLimits,
    /// Keys contain the numbers, so that a reload starts anew.
    ForgetsOnChange,
    BelievesEveryClock,
    HoldsEightLevels,
}

/// Each fault, and a behaviour that must find it.
pub(crate) const ALL: [(Fault, &str); 21] = [
    (Fault::ChargesLevelByLevel, "a_denial_leaves_every_other_level_untouched"),
    (Fault::PeeksCharge, "a_peek_charges_nothing"),
    (Fault::DenialsCharge, "denied_is_free"),
    (Fault::WarningsAreChargedWhileOver, "warnings_and_shadows_are_not_charged_while_over"),
    (Fault::RetriesAMicrosecondEarly, "retry_after_is_exact"),
    (Fault::RetriesAMicrosecondLate, "retry_after_is_exact"),
    (Fault::ResetsLate, "reset_is_exact"),
    (Fault::ReadsBeforeTheCharge, "readings_are_those_after_the_charge"),
    (Fault::RefundsWhatIsOver, "a_refund_is_void_after_the_window"),
    (Fault::RefundsNothing, "a_refund_gives_back_what_was_charged"),
    (Fault::SurchargesWithoutEnd, "a_surcharge_owes_at_most_one_further_limit"),
    (Fault::SurchargesNothing, "a_surcharge_owes_at_most_one_further_limit"),
    (Fault::ReleasesNothing, "a_released_place_is_free_at_once"),
    (Fault::RenewsNothing, "a_renewed_place_is_kept_for_another_lease"),
    (Fault::FindsEverything, "corrections_of_unknown_keys_change_nothing"),
    (Fault::ForgetsNothing, "a_reset_forgets_one_key"),
    (Fault::MixesKeys, "keys_of_one_limit_are_independent"),
    (Fault::MixesLimits, "one_key_under_two_limits_is_two_states"),
    (Fault::ForgetsOnChange, "a_raised_limit_keeps_what_is_owed"),
    (Fault::BelievesEveryClock, "a_time_that_runs_backwards_does_no_harm"),
    (Fault::HoldsEightLevels, "as_many_levels_as_a_plan_can_hold_are_charged_together"),
];

pub(crate) struct FaultyStore {
    memory: Memory,
    fault: Fault,
}

impl FaultyStore {
    pub(crate) fn new(fault: Fault) -> Self {
        Self { memory: Memory::new(), fault }
    }

    /// The level as a broken store would see it.
    fn seen(&self, level: &Level) -> Level {
        let mut level = *level;
        match self.fault {
            Fault::MixesKeys => level.key = Key(level.key.0 & !1),
            Fault::MixesLimits => level.family = 7,
            Fault::ForgetsOnChange => {
                level.key = Key(level.key.0 ^ u128::from(level.spec.capacity().micros()));
            }
            _ => {}
        }
        level
    }

    fn charge(&self, plan: &Plan, level: Level) -> Result<Answer, StoreError> {
        let levels = PerLevel::from_iter([level]);
        self.memory.decide_now(&Plan { mode: Mode::Charge, levels, ..plan.clone() })
    }

    /// Pushes a level into debt, whatever its answer.
    fn overcharge(&self, plan: &Plan, level: Level) -> Result<(), StoreError> {
        let spec = larger(level.spec);
        self.charge(plan, Level { spec, enforcement: Enforcement::Reject, ..level }).map(|_| ())
    }

    /// Decides the plan, and spoils the answer.
    fn decide_and_spoil(&self, plan: &Plan) -> Result<Answer, StoreError> {
        let before = self.memory.decide_now(&Plan { mode: Mode::Peek, ..plan.clone() })?;
        let mut answer = self.memory.decide_now(plan)?;
        for (index, reply) in answer.replies.iter_mut().enumerate() {
            let level = plan.levels[index];
            let denied = reply.verdict != Verdict::Allowed;
            match (self.fault, &mut reply.verdict) {
                (Fault::DenialsCharge, _) if denied => self.overcharge(plan, level)?,
                (Fault::WarningsAreChargedWhileOver, _)
                    if denied && level.enforcement != Enforcement::Reject =>
                {
                    self.overcharge(plan, level)?;
                }
                (Fault::ReadsBeforeTheCharge, _) => reply.reading = before.replies[index].reading,
                (Fault::ResetsLate, _) => {
                    reply.reading.reset_us = reply.reading.reset_us.map(|us| us + 1);
                }
                (Fault::RetriesAMicrosecondEarly, Verdict::Denied { retry_after }) => {
                    *retry_after = retry_after.map(|wait| wait.max(2 * MICROSECOND) - MICROSECOND);
                }
                (Fault::RetriesAMicrosecondLate, Verdict::Denied { retry_after }) => {
                    *retry_after = retry_after.map(|wait| wait + MICROSECOND);
                }
                _ => {}
            }
        }
        Ok(answer)
    }
}

fn larger(mut spec: Spec) -> Spec {
    match &mut spec {
        Spec::TokenBucket(spec) => spec.burst = Amount::MAX,
        Spec::SlidingWindow(spec) => spec.limit = Amount::MAX,
        Spec::SlidingCounter(spec) => spec.limit = Amount::MAX,
        Spec::FixedWindow(spec) => spec.limit = Amount::MAX,
        Spec::Quota(spec) => spec.limit = Amount::MAX,
        Spec::Concurrency(spec) => spec.places = Amount::MAX,
        Spec::Total(spec) => spec.limit = Amount::MAX,
        Spec::Ceiling(_) => {}
    }
    spec
}

impl ImmediateStore for FaultyStore {
    fn decide_now(&self, plan: &Plan) -> Result<Answer, StoreError> {
        let mut plan = plan.clone();
        for level in &mut plan.levels {
            *level = self.seen(level);
        }
        match self.fault {
            Fault::PeeksCharge => plan.mode = Mode::Charge,
            Fault::HoldsEightLevels => plan.levels = plan.levels.iter().take(8).copied().collect(),
            Fault::BelievesEveryClock if plan.now.unix_us < 1_700_000_000_000_000 => {
                let levels = plan.levels.iter();
                let reset = |level: &Level| Amendment {
                    level: *level,
                    name: None,
                    charged_at_us: 0,
                    holder: 0,
                    change: Change::Reset,
                };
                self.memory.amend_now(plan.now, &levels.map(reset).collect::<Vec<_>>())?;
            }
            Fault::ChargesLevelByLevel => {
                let mut replies = PerLevel::new();
                for level in &plan.levels {
                    replies.extend(self.charge(&plan, *level)?.replies);
                }
                return Ok(Answer { now: plan.now, replies });
            }
            _ => {}
        }
        self.decide_and_spoil(&plan)
    }

    fn amend_now(
        &self,
        now: Now,
        amendments: &[Amendment],
    ) -> Result<AmendmentResults, StoreError> {
        let mut amended = AmendmentResults::new();
        for amendment in amendments {
            let mut amendment = amendment.clone();
            amendment.level = self.seen(&amendment.level);
            let dropped = match (self.fault, amendment.change) {
                (Fault::RefundsNothing, Change::Refund(_))
                | (Fault::SurchargesNothing, Change::Surcharge(_))
                | (Fault::ReleasesNothing, Change::Release)
                | (Fault::RenewsNothing, Change::Renew)
                | (Fault::ForgetsNothing, Change::Reset) => true,
                (Fault::RefundsWhatIsOver, Change::Refund(_)) => {
                    amendment.charged_at_us = amendment.level.time_us(now);
                    false
                }
                (Fault::SurchargesWithoutEnd, Change::Surcharge(_)) => {
                    amendment.level.spec = larger(amendment.level.spec);
                    false
                }
                _ => false,
            };
            let found = dropped || self.memory.amend_now(now, &[amendment])?[0];
            amended.push(found || self.fault == Fault::FindsEverything);
        }
        Ok(amended)
    }

    fn announce_now(&self, _families: &[u64]) {}
}
