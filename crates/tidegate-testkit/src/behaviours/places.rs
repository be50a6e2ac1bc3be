//! Concurrency: places are held, renewed, given back and lost.

use tidegate::Amount;
use tidegate::engine::algorithm::Spec;
use tidegate::engine::plan::Level;
use tidegate::engine::store::Change;

use super::world::{World, equal, places, units};
use super::{Shown, StoreUnderTest};

fn lease_us(level: &Level) -> u64 {
    match level.spec {
        Spec::Concurrency(spec) => spec.lease_us,
        _ => 0,
    }
}

/// Two places, both held: by 1, and since a second later by 2.
async fn two_held<S: StoreUnderTest>(world: &World<S>) -> Result<Level, String> {
    let level = world.level(0, places(2));
    world.admit_as(&level, 1).await?;
    world.advance(1_000_000).await;
    world.admit_as(&level, 2).await?;
    Ok(level)
}

pub(super) async fn a_released_place_is_free_at_once<S: StoreUnderTest>(world: &World<S>) -> Shown {
    let level = two_held(world).await?;
    world.refused(&level).await?;
    equal("released", world.hold(&level, 1, Change::Release).await?, true)?;
    equal("released twice", world.hold(&level, 1, Change::Release).await?, false)?;
    world.available(&level, Amount::ONE).await?;
    world.admit_as(&level, 3).await?;
    world.refused(&level).await.map(|_| ())
}

pub(super) async fn a_silent_holder_loses_its_place<S: StoreUnderTest>(world: &World<S>) -> Shown {
    let level = two_held(world).await?;
    let wait_us = world.refused(&level).await?;
    equal("wait for the first to go", wait_us, Some(lease_us(&level) - 1_000_000))?;
    world.advance(lease_us(&level) - 1_000_001).await;
    equal("just before", world.refused(&level).await?, Some(1))?;
    world.advance(1).await;
    world.admit_as(&level, 3).await?;
    equal("wait for the second", world.refused(&level).await?, Some(1_000_000))
}

pub(super) async fn a_renewed_place_is_kept_for_another_lease<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    let level = two_held(world).await?;
    for _ in 0..5 {
        world.advance(lease_us(&level) - 1_000_001).await;
        equal("renewed by 1", world.hold(&level, 1, Change::Renew).await?, true)?;
        equal("renewed by 2", world.hold(&level, 2, Change::Renew).await?, true)?;
        equal("wait", world.refused(&level).await?, Some(lease_us(&level)))?;
    }
    world.advance(lease_us(&level)).await;
    world.available(&level, units(2)).await
}

pub(super) async fn a_lost_place_can_neither_be_renewed_nor_released<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    let level = two_held(world).await?;
    world.advance(lease_us(&level) - 1_000_000).await;
    equal("1 renews what it has lost", world.hold(&level, 1, Change::Renew).await?, false)?;
    world.admit_as(&level, 3).await?;
    equal("1 renews again", world.hold(&level, 1, Change::Renew).await?, false)?;
    world.refused(&level).await?;
    world.advance(1_000_000).await;
    equal("2 releases what it has lost", world.hold(&level, 2, Change::Release).await?, false)?;
    world.available(&level, Amount::ONE).await
}

pub(super) async fn holders_have_no_power_over_each_other<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    let level = two_held(world).await?;
    for change in [Change::Release, Change::Renew] {
        equal("a stranger", world.hold(&level, 9, change).await?, false)?;
    }
    let other = world.level(1, places(2));
    world.admit_as(&other, 5).await?;
    equal("a holder elsewhere", world.hold(&other, 1, Change::Release).await?, false)?;
    world.refused(&level).await?;
    // A holder of two places releases two.
    let three = world.level(2, places(3));
    world.admit_as(&Level { cost: units(2), ..three }, 6).await?;
    world.admit_as(&three, 7).await?;
    world.refused(&three).await?;
    equal("released", world.hold(&three, 6, Change::Release).await?, true)?;
    world.available(&three, units(2)).await
}
