//! What every store must do, as one list.
//!
//! A store's tests implement [`StoreUnderTest`] for it and run [`every_behaviour`]. Each behaviour gets a
//! subject of its own, and says what it expected and what it found.

mod changes;
mod corrections;
mod keys;
mod places;
mod together;
mod waiting;
mod world;

use std::fmt;
use std::future::Future;
use std::time::Duration;

use tidegate::clock::{Clock, FakeClock, Now};
use tidegate::engine::store::Store;

use world::World;

/// A store under test, on a clock that stands still between calls of [`advance`](Self::advance).
///
/// Behaviours are exact to the microsecond, so a store that reads a clock of its own must let its
/// tests set that clock.
pub trait StoreUnderTest {
    /// The store's type.
    type Store: Store;

    /// The store.
    fn store(&self) -> &Self::Store;

    /// The time of the store's clock.
    fn now(&self) -> Now;

    /// Moves that clock forward.
    fn advance(&self, us: u64) -> impl Future<Output = ()>;
}

/// A store that uses the time in its plans, on a clock that the behaviours set.
#[derive(Debug)]
pub struct OnPlanTime<S> {
    store: S,
    clock: FakeClock,
}

impl<S> OnPlanTime<S> {
    /// On a clock that stands somewhere in 2026, in the middle of everything.
    pub fn new(store: S) -> Self {
        Self { store, clock: FakeClock::at_unix(Duration::from_micros(1_767_603_612_345_678)) }
    }
}

impl<S: Store> StoreUnderTest for OnPlanTime<S> {
    type Store = S;

    fn store(&self) -> &S {
        &self.store
    }

    fn now(&self) -> Now {
        self.clock.now()
    }

    async fn advance(&self, us: u64) {
        self.clock.advance(Duration::from_micros(us));
    }
}

/// A behaviour that a store does not show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which one.
    pub behaviour: &'static str,
    /// What was expected and what was found.
    pub detail: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.behaviour, self.detail)
    }
}

/// All behaviours that a store does not show; never none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failures(pub Vec<Failure>);

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|failure| writeln!(f, "{failure}"))
    }
}

impl std::error::Error for Failures {}

/// What a behaviour expected and did not find.
type Shown = Result<(), String>;

macro_rules! behaviours {
    ($($module:ident: $($name:ident),+;)+) => {
        /// The names of all behaviours.
        pub const BEHAVIOURS: &[&str] = &[$($(stringify!($name)),+),+];

        /// Runs every behaviour, each on a subject of its own.
        ///
        /// # Errors
        /// All that failed.
        pub async fn every_behaviour<S: StoreUnderTest>(make: impl AsyncFn() -> S) -> Result<(), Failures> {
            let mut failures = Vec::new();
            $($({
                let behaviour = stringify!($name);
                let world = World::new(make().await, behaviour);
                if let Err(detail) = $module::$name(&world).await {
                    failures.push(Failure { behaviour, detail });
                }
            })+)+
            if failures.is_empty() { Ok(()) } else { Err(Failures(failures)) }
        }
    };
}

behaviours! {
    together:
        all_levels_are_charged_or_none,
        a_denial_leaves_every_other_level_untouched,
        a_peek_charges_nothing,
        a_cost_of_zero_peeks,
        warnings_and_shadows_are_not_charged_while_over,
        warnings_and_shadows_are_not_charged_when_another_level_refuses,
        as_many_levels_as_a_plan_can_hold_are_charged_together;
    waiting:
        retry_after_is_exact,
        no_waiting_helps_a_cost_above_the_capacity,
        denied_is_free,
        reset_is_exact,
        readings_are_those_after_the_charge,
        fractions_are_exact;
    corrections:
        a_refund_gives_back_what_was_charged,
        a_refund_never_gives_more_than_the_limit,
        a_refund_is_void_after_the_window,
        a_late_refund_is_whole_while_the_debt_lasts,
        a_surcharge_owes_at_most_one_further_limit,
        a_surcharge_is_void_after_the_window,
        a_debit_is_charged_whether_it_fits_or_not,
        a_debit_owes_at_most_one_further_limit,
        a_debit_fades_as_a_charge_does,
        places_and_ceilings_know_no_debits,
        a_total_never_resets_and_refunds_lower_it,
        corrections_of_unknown_keys_change_nothing,
        each_correction_stands_by_itself;
    places:
        a_released_place_is_free_at_once,
        a_silent_holder_loses_its_place,
        a_renewed_place_is_kept_for_another_lease,
        a_lost_place_can_neither_be_renewed_nor_released,
        holders_have_no_power_over_each_other;
    keys:
        keys_of_one_limit_are_independent,
        one_key_under_two_limits_is_two_states,
        a_reset_forgets_one_key,
        ceilings_keep_no_state,
        a_time_that_runs_backwards_does_no_harm;
    changes:
        a_raised_limit_keeps_what_is_owed,
        a_lowered_limit_keeps_what_is_owed,
        a_slower_limit_keeps_what_is_owed,
        a_slower_limit_is_remembered_beyond_the_old_window,
        a_faster_limit_in_between_pays_nothing_back;
}
