//! Keys have separate states, and time affects each state correctly.

use tidegate::clock::Now;
use tidegate::engine::Key;
use tidegate::engine::algorithm::{Spec, Verdict, ceiling};
use tidegate::engine::plan::{Level, Mode};
use tidegate::engine::store::Change;
use tidegate::engine::units::SECOND_US;

use super::world::{CAPACITY, FORGOTTEN_US, World, bucket, equal, units};
use super::{Shown, StoreUnderTest};

pub(super) async fn keys_of_one_limit_are_independent<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    for level in world.levels() {
        // They differ in one bit, high or low.
        for bit in [0, 64, 127] {
            let other = Level { key: Key(level.key.0 ^ 1 << bit), ..level };
            world.admit(&other).await?;
            world.available(&other, units(2)).await?;
            world.available(&level, CAPACITY).await?;
        }
        world.fill(&level).await?;
        world.admit_as(&Level { key: Key(level.key.0 ^ 1), ..level }, 2).await?;
    }
    Ok(())
}

pub(super) async fn one_key_under_two_limits_is_two_states<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    for (level, other) in world.levels().into_iter().zip(20..) {
        let other = Level { key: level.key, ..world.level(other, level.spec) };
        world.fill(&level).await?;
        world.available(&other, CAPACITY).await?;
        world.fill(&other).await?;
        world.correct(&other, world.now(), Change::Reset).await?;
        world.refused(&level).await?;
    }
    Ok(())
}

pub(super) async fn a_reset_forgets_one_key<S: StoreUnderTest>(world: &World<S>) -> Shown {
    for level in world.levels() {
        let other = Level { key: Key(level.key.0 ^ 1), ..level };
        world.fill(&level).await?;
        world.fill(&other).await?;
        let reset = || world.correct(&level, world.now(), Change::Reset);
        equal(&format!("found `{}`", level.spec), reset().await?, true)?;
        equal(&format!("found `{}` again", level.spec), reset().await?, false)?;
        world.available(&level, CAPACITY).await?;
        world.refused(&other).await?;
        world.fill(&level).await?;
    }
    Ok(())
}

pub(super) async fn ceilings_keep_no_state<S: StoreUnderTest>(world: &World<S>) -> Shown {
    let spec = Spec::Ceiling(ceiling::Spec { limit: CAPACITY });
    let at = Level { cost: CAPACITY, ..world.level(0, spec) };
    let above = Level { cost: units(4), ..at };
    let bucket = world.level(1, bucket(3, SECOND_US));
    for _ in 0..3 {
        let replies = world.charge(&[at, bucket], 1).await?.replies;
        equal("at the ceiling", replies[0].verdict, Verdict::Allowed)?;
        equal("charged beside it", replies[1].charged, true)?;
        equal("above it", world.refused(&above).await?, None)?;
    }
    equal("forgotten", world.correct(&at, world.now(), Change::Reset).await?, false)?;
    world.correct(&bucket, world.now(), Change::Reset).await?;
    let replies = world.charge(&[above, bucket], 1).await?.replies;
    equal("charged beside a ceiling that refuses", replies[1].charged, false)?;
    let reading = world.reading(&Level { cost: units(1), ..at }).await?;
    equal("how much larger it could be", reading.available, units(2))?;
    equal("reset", reading.reset_us, None)
}

/// A plan that was made long before: its node's clock is behind, or it waited.
pub(super) async fn a_time_that_runs_backwards_does_no_harm<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    for level in world.levels() {
        let level = world.at_window_start(&level).await;
        world.fill(&level).await?;
        let now = world.now();
        for back_us in [1, SECOND_US, FORGOTTEN_US, now.steady_us] {
            let early = Now { steady_us: now.steady_us - back_us, unix_us: now.unix_us - back_us };
            let reply = world.decide(Mode::Charge, early, &[level], 2).await?.replies[0];
            equal(&format!("`{}` charged {back_us} µs ago", level.spec), reply.charged, false)?;
        }
        let Some(wait_us) = world.refused(&level).await? else { continue };
        world.advance(wait_us).await;
        world.admit_as(&level, 3).await?;
    }
    Ok(())
}
