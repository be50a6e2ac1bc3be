use proptest::prelude::*;

use super::*;

fn units(units: u64) -> Amount {
    Amount::from_units(units).unwrap()
}

#[test]
fn a_product_is_exact_where_its_factors_are() {
    let times = Multiplier::ONE.and(700_000).and(300_000);
    assert_eq!((times.of(units(100)), times.ppm()), (units(21), 210_000));
    assert_eq!(Multiplier::ONE.and(100_000).and(10_000_000).of(units(7)), units(7));
}

#[test]
fn however_small_or_large_a_factor_there_is_one_and_no_overflow() {
    assert_eq!(Multiplier::ONE.and(0).of(units(1_000)), Amount::ONE);
    let huge = (0..9).fold(Multiplier::ONE, |times, _| times.and(u64::MAX));
    assert_eq!(huge.of(Amount::MAX), Amount::MAX);
    assert_eq!(Multiplier::ONE.and(1_000).of(Amount::MAX), units(4_000_000));
}

#[test]
fn nothing_of_nothing_is_a_share_of_zero() {
    assert!(Comparison::Below.holds(Amount::ZERO, Amount::ZERO, 50_000));
    assert!(!Comparison::AtLeast.holds(Amount::ZERO, Amount::ZERO, 50_000));
    assert!(Comparison::Above.holds(Amount::ONE, Amount::ZERO, 50_000));
}

proptest! {
    /// Against the rule as it is written, for one factor and for two.
    #[test]
    fn scaled_is_floor_of_the_product_and_at_least_one(
        n in 1..4_000_000_u64, first in 1..20_000_000_u64, second in 1..20_000_000_u64
    ) {
        let one = u128::from(n) * u128::from(first) / 1_000_000;
        prop_assert_eq!(u128::from(Multiplier::ONE.and(first).of(units(n)).whole()), one.clamp(1, 4_000_000_000));
        let both = u128::from(n) * u128::from(first) * u128::from(second) / 1_000_000_000_000;
        let times = Multiplier::ONE.and(first).and(second);
        prop_assert_eq!(u128::from(times.of(units(n)).whole()), both.clamp(1, 4_000_000_000));
    }

    /// A behaviour's factor never leaves its range, and one step moves it by one step at most.
    #[test]
    fn steps_stay_within_the_range(steps in proptest::collection::vec(any::<bool>(), 0..60)) {
        let behaviour = Behaviour {
            by: Vec::new(),
            good: Vec::new(),
            step_ppm: 150_000,
            every_us: 1,
            lowest_ppm: 500_000,
            highest_ppm: 2_000_000,
        };
        let mut ppm = PPM;
        for good in steps {
            let next = behaviour.moved(ppm, good);
            prop_assert!((500_000..=2_000_000).contains(&next));
            prop_assert!(next.abs_diff(ppm) <= 150_000);
            prop_assert_eq!(next.max(ppm), [ppm, next][usize::from(good)]);
            ppm = next;
        }
    }
}
