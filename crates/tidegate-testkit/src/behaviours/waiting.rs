//! Waiting, resetting and reading are exact (rules 1 and 4).

use tidegate::Amount;
use tidegate::engine::algorithm::{Spec, Verdict};
use tidegate::engine::plan::Level;

use super::world::{CAPACITY, World, bucket, equal, units};
use super::{Shown, StoreUnderTest};

pub(super) async fn retry_after_is_exact<S: StoreUnderTest>(world: &World<S>) -> Shown {
    for (level, other) in world.passing_levels().into_iter().zip(20..) {
        for (cost, limit) in [(units(1), level.limit), (units(2), other), (CAPACITY, 20 + other)] {
            let level = Level { cost, ..world.level(limit, level.spec) };
            let level = world.at_window_start(&level).await;
            // Spent at two instants, so that the parts come free one after the other.
            let first = Level { cost: Amount::ONE, ..level };
            world.admit_as(&first, 1).await?;
            world.advance(1_234_567).await;
            world.admit_as(&Level { cost: units(2), ..level }, 2).await?;
            let Some(wait_us) = world.refused(&level).await? else {
                return Err(format!("`{}` gave no instant", level.spec));
            };
            world.advance(wait_us - 1).await;
            equal(&format!("`{}` just before", level.spec), world.refused(&level).await?, Some(1))?;
            world.advance(1).await;
            equal(
                &format!("`{}` then", level.spec),
                world.peek(&level).await?.verdict,
                Verdict::Allowed,
            )?;
            world.admit_as(&level, 3).await?;
        }
    }
    Ok(())
}

pub(super) async fn no_waiting_helps_a_cost_above_the_capacity<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    for level in world.levels() {
        let cost = CAPACITY.saturating_add(units(1));
        equal(&level.spec.to_string(), world.refused(&Level { cost, ..level }).await?, None)?;
        world.available(&level, CAPACITY).await?;
    }
    Ok(())
}

pub(super) async fn denied_is_free<S: StoreUnderTest>(world: &World<S>) -> Shown {
    for level in world.passing_levels() {
        let level = world.at_window_start(&level).await;
        world.fill(&level).await?;
        let Some(wait_us) = world.refused(&level).await? else {
            return Err(format!("`{}` gave no instant", level.spec));
        };
        let step_us = wait_us / 50;
        for step in 1..50 {
            world.advance(step_us).await;
            let left = world.refused(&level).await?;
            equal(
                &format!("`{}` under a storm", level.spec),
                left,
                Some(wait_us - step * step_us),
            )?;
        }
        world.advance(wait_us - 49 * step_us).await;
        world.admit_as(&level, 2).await?;
    }
    Ok(())
}

pub(super) async fn reset_is_exact<S: StoreUnderTest>(world: &World<S>) -> Shown {
    for level in world.passing_levels() {
        let level = world.at_window_start(&level).await;
        world.admit_as(&level, 1).await?;
        world.advance(777).await;
        world.admit_as(&level, 2).await?;
        let name = level.spec.to_string();
        let Some(reset_us) = world.reading(&level).await?.reset_us else {
            return Err(format!("`{name}` gave no reset"));
        };
        world.advance(reset_us - 1).await;
        let before = world.reading(&level).await?;
        equal(&format!("reset of `{name}` just before"), before.reset_us, Some(1))?;
        equal(&format!("`{name}` owes just before"), before.available < CAPACITY, true)?;
        world.advance(1).await;
        world.available(&level, CAPACITY).await?;
    }
    let total = world.levels().into_iter().find(|level| matches!(level.spec, Spec::Total(_)));
    let reset_us = match total {
        Some(level) => world.take(&level).await?.reading.reset_us,
        None => None,
    };
    equal("reset of a total", reset_us, None)
}

pub(super) async fn readings_are_those_after_the_charge<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    for level in world.levels() {
        for (holder, left) in [(1, units(2)), (2, units(1)), (3, Amount::ZERO)] {
            let reply = world.take_as(&level, holder).await?;
            equal(&format!("`{}` after a charge", level.spec), reply.reading.available, left)?;
            equal("a peek after it", world.reading(&level).await?, reply.reading)?;
        }
        let denied = world.take_as(&level, 4).await?;
        equal("available when denied", denied.reading.available, Amount::ZERO)?;
    }
    Ok(())
}

pub(super) async fn fractions_are_exact<S: StoreUnderTest>(world: &World<S>) -> Shown {
    let millionths = |micros| Amount::from_micros(micros).unwrap_or(Amount::MAX);
    for level in world.refundable_levels() {
        world.admit(&Level { cost: millionths(2_999_999), ..level }).await?;
        world.available(&level, millionths(1)).await?;
        world.refused(&Level { cost: millionths(2), ..level }).await?;
        world.admit(&Level { cost: millionths(1), ..level }).await?;
        world.available(&level, Amount::ZERO).await?;
    }
    // A third of a millionth each microsecond: the remainder must not be lost.
    let slow = world.level(30, bucket(1, 3_000_000));
    world.fill(&slow).await?;
    for step in 1..=9_u64 {
        world.advance(1).await;
        world.available(&slow, millionths(step / 3)).await?;
    }
    Ok(())
}
