use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const START_US: u64 = 1_767_603_612_345_678;

/// A breaker, and the time that its tests give it.
struct Scene {
    breaker: Breaker,
    now_us: u64,
}

impl Scene {
    fn new() -> Self {
        Self { breaker: Breaker::new(START_US), now_us: START_US }
    }

    fn healthy() -> Self {
        let mut scene = Self::new();
        scene.recover();
        scene
    }

    fn state(&self) -> BreakerState {
        self.breaker.state()
    }

    fn call(&mut self, answered: bool) {
        let permit = self.breaker.permit().unwrap();
        self.breaker.called(permit, answered, self.now_us, 0);
    }

    fn calls(&mut self, count: usize, answered: bool) {
        (0..count).for_each(|_| self.call(answered));
    }

    fn probe(&mut self, answered: bool) {
        self.now_us = self.now_us.max(self.breaker.probe_at_us().unwrap());
        assert!(self.breaker.start_probe(self.now_us));
        self.breaker.probed(answered, self.now_us, 0);
    }

    fn recover(&mut self) {
        self.probe(true);
        self.calls(3, true);
        assert_eq!(self.state(), BreakerState::Healthy);
    }

    fn wait_us(&self) -> u64 {
        self.breaker.probe_at_us().unwrap() - self.now_us
    }
}

#[test]
fn a_new_one_is_open_and_its_probe_is_due() {
    let mut scene = Scene::new();
    assert_eq!((scene.state(), scene.breaker.permit()), (BreakerState::Open, None));
    assert!(scene.breaker.start_probe(START_US));
    assert_eq!(scene.state(), BreakerState::HalfOpen);
}

#[test]
fn a_store_that_is_not_there_at_the_start_is_probed_after_one_second() {
    let mut scene = Scene::new();
    scene.probe(false);
    assert_eq!((scene.state(), scene.wait_us()), (BreakerState::Open, SECOND_US));
}

#[test]
fn one_failure_makes_it_suspect_and_one_success_healthy() {
    let mut scene = Scene::healthy();
    scene.call(false);
    assert_eq!(scene.state(), BreakerState::Suspect);
    assert!(scene.breaker.permit().is_some());
    scene.call(true);
    assert_eq!(scene.state(), BreakerState::Healthy);
}

#[test]
fn five_failures_in_a_row_open_it_and_four_do_not() {
    let mut scene = Scene::healthy();
    scene.calls(4, false);
    scene.call(true);
    scene.calls(4, false);
    assert_eq!(scene.state(), BreakerState::Suspect);
    scene.call(false);
    assert_eq!((scene.state(), scene.breaker.permit()), (BreakerState::Open, None));
}

/// Never five failures in a row.
fn alternate(scene: &mut Scene, count: usize) {
    (0..count).for_each(|turn| scene.call(turn % 2 == 0));
}

#[test]
fn half_of_twenty_recent_calls_failing_opens_it() {
    // The three successes of the recovery count too.
    let mut scene = Scene::healthy();
    scene.calls(3, false);
    alternate(&mut scene, 13);
    assert_eq!(scene.state(), BreakerState::Healthy, "19 calls");
    scene.call(false);
    assert_eq!(scene.state(), BreakerState::Open, "20 calls, 10 of them failures");
}

#[test]
fn fewer_than_half_of_the_recent_calls_failing_does_not() {
    let mut scene = Scene::healthy();
    alternate(&mut scene, 400);
    assert_eq!(scene.state(), BreakerState::Suspect);
}

#[test]
fn failures_of_more_than_ten_seconds_ago_do_not_count() {
    let mut scene = Scene::healthy();
    scene.calls(3, false);
    alternate(&mut scene, 13);
    scene.now_us += 10 * SECOND_US;
    scene.call(false);
    assert_eq!(scene.state(), BreakerState::Suspect);
}

#[test]
fn failures_of_nine_seconds_ago_do() {
    let mut scene = Scene::healthy();
    scene.calls(3, false);
    alternate(&mut scene, 13);
    scene.now_us += 9 * SECOND_US;
    scene.call(false);
    assert_eq!(scene.state(), BreakerState::Open);
}

#[test]
fn it_stays_open_for_one_second_and_then_lets_one_probe_through() {
    let mut scene = Scene::healthy();
    scene.calls(5, false);
    assert!(!scene.breaker.start_probe(scene.now_us + SECOND_US - 1));
    assert!(scene.breaker.start_probe(scene.now_us + SECOND_US));
    assert!(!scene.breaker.start_probe(scene.now_us + SECOND_US), "a second probe");
    assert_eq!((scene.state(), scene.breaker.permit()), (BreakerState::HalfOpen, None));
}

#[test]
fn a_server_that_can_be_reached_again_is_probed_at_once_and_once() {
    let mut scene = Scene::healthy();
    scene.calls(5, false);
    scene.now_us += 1000;
    scene.breaker.hurry(scene.now_us);
    assert_eq!(scene.wait_us(), 0);
    scene.probe(false);
    assert!(scene.wait_us() >= WAIT_FIRST_US, "it waits again");
    let mut scene = Scene::healthy();
    scene.breaker.hurry(scene.now_us);
    assert_eq!(scene.state(), BreakerState::Healthy);
}

#[test]
fn each_failed_probe_doubles_the_wait_up_to_thirty_seconds() {
    let mut scene = Scene::healthy();
    scene.calls(5, false);
    let mut waits = Vec::new();
    for _ in 0..7 {
        waits.push(scene.wait_us() / SECOND_US);
        scene.probe(false);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
}

#[test]
fn an_answered_probe_and_three_successes_make_it_healthy() {
    let mut scene = Scene::healthy();
    scene.calls(5, false);
    scene.probe(true);
    scene.calls(2, true);
    assert_eq!(scene.state(), BreakerState::Merging);
    scene.call(true);
    assert_eq!(scene.state(), BreakerState::Healthy);
}

#[test]
fn one_failure_while_merging_opens_it_for_longer() {
    let mut scene = Scene::healthy();
    scene.calls(5, false);
    scene.probe(true);
    scene.calls(2, true);
    scene.call(false);
    assert_eq!((scene.state(), scene.wait_us()), (BreakerState::Open, 2 * SECOND_US));
}

#[test]
fn after_a_recovery_the_wait_is_short_again() {
    let mut scene = Scene::healthy();
    scene.calls(5, false);
    (0..4).for_each(|_| scene.probe(false));
    scene.recover();
    scene.calls(5, false);
    assert_eq!(scene.wait_us(), SECOND_US);
}

#[test]
fn a_call_from_before_it_opened_says_nothing() {
    let mut scene = Scene::healthy();
    let old = scene.breaker.permit().unwrap();
    scene.calls(5, false);
    for answered in [true, false] {
        let mut later = scene.breaker.clone();
        later.called(old, answered, scene.now_us, 0);
        assert_eq!(later.state(), BreakerState::Open);
        assert!(later.start_probe(scene.now_us + SECOND_US));
        later.called(old, answered, scene.now_us + SECOND_US, 0);
        assert_eq!(later.state(), BreakerState::HalfOpen);
        later.probed(true, scene.now_us + SECOND_US, 0);
        (0..3).for_each(|_| later.called(old, answered, scene.now_us + SECOND_US, 0));
        assert_eq!(later.state(), BreakerState::Merging);
    }
}

#[test]
fn an_outcome_of_a_probe_that_was_not_made_says_nothing() {
    for answered in [true, false] {
        let mut scene = Scene::healthy();
        scene.breaker.probed(answered, scene.now_us, 0);
        assert_eq!(scene.state(), BreakerState::Healthy);
    }
}

#[test]
fn since_is_when_the_state_changed() {
    let mut scene = Scene::healthy();
    scene.now_us += 7;
    scene.call(true);
    assert_eq!(scene.breaker.since_us(), START_US);
    scene.call(false);
    assert_eq!(scene.breaker.since_us(), START_US + 7);
}

/// What the machine may do in one step.
fn may_follow(before: BreakerState, after: BreakerState) -> bool {
    use BreakerState::{HalfOpen, Healthy, Merging, Open, Suspect};
    before == after
        || matches!(
            (before, after),
            (Healthy, Suspect | Open)
                | (Suspect, Healthy | Open)
                | (Open, HalfOpen)
                | (HalfOpen, Merging | Open)
                | (Merging, Healthy | Open)
        )
}

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Call(bool),
    Probe,
    Probed(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..40 * SECOND_US).prop_map(Step::Wait),
        any::<bool>().prop_map(Step::Call),
        Just(Step::Probe),
        any::<bool>().prop_map(Step::Probed),
    ]
}

proptest! {
    #[test]
    fn only_the_drawn_steps_are_taken_and_waits_stay_bounded(
        steps in vec((step(), any::<u64>()), 0..200),
    ) {
        let (mut breaker, mut now_us) = (Breaker::new(START_US), START_US);
        for (step, random) in steps {
            let before = breaker.state();
            match step {
                Step::Wait(us) => now_us += us,
                Step::Call(answered) => {
                    if let Some(permit) = breaker.permit() {
                        breaker.called(permit, answered, now_us, random);
                    }
                }
                Step::Probe => _ = breaker.start_probe(now_us),
                Step::Probed(answered) => breaker.probed(answered, now_us, random),
            }
            let after = breaker.state();
            prop_assert!(may_follow(before, after), "{before} → {after}");
            prop_assert_eq!(breaker.permit().is_some(), after.allows_calls());
            if before != BreakerState::Open && after == BreakerState::Open {
                let wait_us = breaker.probe_at_us().unwrap() - now_us;
                prop_assert!(wait_us > WAIT_FIRST_US * 3 / 4 && wait_us <= WAIT_MAX_US);
            }
        }
    }

    #[test]
    fn a_store_that_answers_again_is_always_found_again(
        outcomes in vec(any::<bool>(), 0..100),
    ) {
        let mut scene = Scene::new();
        for answered in outcomes {
            if scene.breaker.permit().is_some() { scene.call(answered) } else { scene.probe(answered) }
        }
        for _ in 0..5 {
            if scene.breaker.permit().is_some() { scene.call(true) } else { scene.probe(true) }
        }
        prop_assert_eq!(scene.state(), BreakerState::Healthy);
    }
}
