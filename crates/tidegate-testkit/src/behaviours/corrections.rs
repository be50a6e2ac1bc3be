//! Refunds, surcharges and debits.

use tidegate::clock::Now;
use tidegate::engine::algorithm::{Spec, ceiling};
use tidegate::engine::plan::Level;
use tidegate::engine::store::{Amendment, Change};
use tidegate::engine::units::{Amount, SECOND_US};

use super::world::{CAPACITY, FORGOTTEN_US, World, bucket, equal, name, places, units};
use super::{Shown, StoreUnderTest};

pub(super) async fn a_refund_gives_back_what_was_charged<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    for level in world.refundable_levels() {
        world.admit(&level).await?;
        let two = Level { cost: units(2), ..level };
        world.admit(&two).await?;
        let found = world.correct(&two, world.now(), Change::Refund(units(2))).await?;
        equal("found what to refund", found, true)?;
        world.available(&level, units(2)).await?;
        world.admit(&two).await?;
        world.refused(&level).await?;
    }
    Ok(())
}

pub(super) async fn a_refund_never_gives_more_than_the_limit<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    for level in world.refundable_levels() {
        world.admit(&level).await?;
        world.correct(&level, world.now(), Change::Refund(Amount::MAX)).await?;
        world.available(&level, CAPACITY).await?;
        world.fill(&level).await?;
        world.refused(&level).await?;
    }
    Ok(())
}

pub(super) async fn a_refund_is_void_after_the_window<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    let charged_at = world.now();
    let levels: Vec<Level> =
        world.refundable_levels().into_iter().filter(|level| !is_total(level)).collect();
    for level in &levels {
        world.fill(level).await?;
    }
    world.advance(FORGOTTEN_US).await;
    for level in &levels {
        world.admit(level).await?;
        world.correct(level, charged_at, Change::Refund(CAPACITY)).await?;
        world.available(level, units(2)).await?;
    }
    Ok(())
}

pub(super) async fn a_late_refund_is_whole_while_the_debt_lasts<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    let level = world.level(0, bucket(1, SECOND_US));
    let charged_at = world.now();
    world.fill(&level).await?;
    world.advance(SECOND_US).await;
    world.correct(&level, charged_at, Change::Refund(units(2))).await?;
    world.available(&level, units(3)).await
}

pub(super) async fn a_surcharge_owes_at_most_one_further_limit<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    for level in world.refundable_levels() {
        let charged_at = world.now();
        world.admit(&level).await?;
        let found = world.correct(&level, charged_at, Change::Surcharge(Amount::MAX)).await?;
        equal("found what to surcharge", found, true)?;
        world.refused(&Level { cost: Amount::ZERO, ..level }).await?;
        // Six are owed now: three given back leave the limit just full.
        world.correct(&level, charged_at, Change::Refund(CAPACITY)).await?;
        world.available(&level, Amount::ZERO).await?;
        world.correct(&level, charged_at, Change::Refund(units(1))).await?;
        world.available(&level, units(1)).await?;
    }
    Ok(())
}

pub(super) async fn a_surcharge_is_void_after_the_window<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    let charged_at = world.now();
    let levels: Vec<Level> =
        world.refundable_levels().into_iter().filter(|level| !is_total(level)).collect();
    for level in &levels {
        world.admit(level).await?;
    }
    world.advance(FORGOTTEN_US).await;
    for level in &levels {
        world.correct(level, charged_at, Change::Surcharge(CAPACITY)).await?;
        world.available(level, CAPACITY).await?;
    }
    Ok(())
}

pub(super) async fn a_debit_is_charged_whether_it_fits_or_not<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    let long_ago = Now { steady_us: 0, unix_us: 0 };
    for level in world.refundable_levels() {
        // Also to an unused key, and however long ago the charge was.
        let found = world.correct(&level, long_ago, Change::Debit(units(2))).await?;
        equal("found what to debit", found, true)?;
        world.available(&level, units(1)).await?;
        world.correct(&level, long_ago, Change::Debit(units(2))).await?;
        world.refused(&Level { cost: Amount::ZERO, ..level }).await?;
        // Four are owed now: two given back leave one.
        world.correct(&level, world.now(), Change::Refund(units(2))).await?;
        world.available(&level, units(1)).await?;
    }
    Ok(())
}

pub(super) async fn a_debit_owes_at_most_one_further_limit<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    for level in world.refundable_levels() {
        world.admit(&level).await?;
        for _ in 0..2 {
            world.correct(&level, world.now(), Change::Debit(Amount::MAX)).await?;
        }
        // Six are owed now: three given back leave the limit just full.
        world.correct(&level, world.now(), Change::Refund(CAPACITY)).await?;
        world.available(&level, Amount::ZERO).await?;
        world.correct(&level, world.now(), Change::Refund(units(1))).await?;
        world.available(&level, units(1)).await?;
    }
    Ok(())
}

pub(super) async fn a_debit_fades_as_a_charge_does<S: StoreUnderTest>(world: &World<S>) -> Shown {
    let levels: Vec<Level> =
        world.refundable_levels().into_iter().filter(|level| !is_total(level)).collect();
    for level in &levels {
        world.correct(level, world.now(), Change::Debit(CAPACITY)).await?;
        world.refused(level).await?;
    }
    world.advance(FORGOTTEN_US).await;
    for level in &levels {
        world.available(level, CAPACITY).await?;
    }
    Ok(())
}

pub(super) async fn a_total_never_resets_and_refunds_lower_it<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    let Some(level) = world.levels().into_iter().find(is_total) else { return Ok(()) };
    let charged_at = world.now();
    world.fill(&level).await?;
    world.advance(1_000 * 86_400 * SECOND_US).await;
    equal("waiting for a total", world.refused(&level).await?, None)?;
    world.correct(&level, charged_at, Change::Refund(units(1))).await?;
    world.admit(&level).await?;
    world.refused(&level).await.map(|_| ())
}

pub(super) async fn corrections_of_unknown_keys_change_nothing<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    let changes = [
        Change::Refund(units(1)),
        Change::Surcharge(units(1)),
        Change::Release,
        Change::Renew,
        Change::Reset,
    ];
    for level in world.levels() {
        for change in changes {
            let found = world.correct(&level, world.now(), change).await?;
            equal(&format!("`{}`, {change:?} of an unknown key", level.spec), found, false)?;
            world.available(&level, CAPACITY).await?;
        }
    }
    Ok(())
}

pub(super) async fn places_and_ceilings_know_no_debits<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    let ceiling = Spec::Ceiling(ceiling::Spec { limit: CAPACITY });
    let places = world.level(0, places(3));
    for level in [places, world.level(1, ceiling)] {
        let found = world.correct(&level, world.now(), Change::Debit(units(1))).await?;
        equal(&format!("found what to debit on `{}`", level.spec), found, false)?;
    }
    world.available(&places, CAPACITY).await?;
    let bucket = world.level(2, bucket(3, SECOND_US));
    let found = world.correct(&bucket, world.now(), Change::Debit(Amount::ZERO)).await?;
    equal("found something in a debit of nothing", found, false)
}

pub(super) async fn each_correction_stands_by_itself<S: StoreUnderTest>(world: &World<S>) -> Shown {
    let [unknown, first, second] = [0, 1, 2].map(|limit| world.level(limit, bucket(3, SECOND_US)));
    world.fill(&first).await?;
    world.fill(&second).await?;
    let amendment = |level: Level, units_back| Amendment {
        level,
        name: Some(name(&level)),
        charged_at_us: level.time_us(world.now()),
        holder: 1,
        change: Change::Refund(units(units_back)),
    };
    let corrections = [amendment(first, 1), amendment(unknown, 1), amendment(second, 2)];
    equal("found", world.amend(&corrections).await?, vec![true, false, true])?;
    world.available(&first, units(1)).await?;
    world.available(&second, units(2)).await?;
    world.available(&unknown, CAPACITY).await
}

fn is_total(level: &Level) -> bool {
    matches!(level.spec, Spec::Total(_))
}
