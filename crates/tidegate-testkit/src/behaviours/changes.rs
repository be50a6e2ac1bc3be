//! A changed spec keeps what is owed (rule 5).

use tidegate::engine::Key;
use tidegate::engine::algorithm::{Spec, Verdict, calendar};
use tidegate::engine::plan::Level;
use tidegate::engine::units::{Amount, SECOND_US};

use super::world::{CAPACITY, FORGOTTEN_US, World, equal, units};
use super::{Shown, StoreUnderTest};

/// The same with another capacity.
fn resized(mut spec: Spec, to: Amount) -> Spec {
    match &mut spec {
        Spec::TokenBucket(spec) => spec.burst = to,
        Spec::SlidingWindow(spec) => spec.limit = to,
        Spec::SlidingCounter(spec) => spec.limit = to,
        Spec::FixedWindow(spec) => spec.limit = to,
        Spec::Quota(spec) => spec.limit = to,
        Spec::Concurrency(spec) => spec.places = to,
        Spec::Total(spec) => spec.limit = to,
        Spec::Ceiling(spec) => spec.limit = to,
    }
    spec
}

/// The same, a thousand times slower; `None` where nothing becomes free by waiting, or where
/// places keep the lease that they were taken with.
fn slowed(mut spec: Spec, now_us: u64) -> Option<Spec> {
    const TIMES: u64 = 1_000;
    match &mut spec {
        Spec::TokenBucket(spec) => spec.period_us *= TIMES,
        Spec::SlidingWindow(spec) => spec.window_us *= TIMES,
        Spec::SlidingCounter(spec) => spec.window_us *= TIMES,
        // Windows are aligned: one that starts at the epoch is sure to hold both instants.
        Spec::FixedWindow(spec) => spec.window_us = 4 * now_us,
        Spec::Quota(spec) => {
            spec.unit = calendar::Unit::Month;
            spec.end_us += TIMES * SECOND_US;
            spec.next_end_us = spec.end_us + TIMES * SECOND_US;
        }
        Spec::Concurrency(_) | Spec::Total(_) | Spec::Ceiling(_) => return None,
    }
    Some(spec)
}

pub(super) async fn a_raised_limit_keeps_what_is_owed<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    for level in world.levels() {
        world.fill(&level).await?;
        let raised = Level { spec: resized(level.spec, units(5)), ..level };
        world.available(&raised, units(2)).await?;
        world.admit_as(&raised, 2).await?;
        world.admit_as(&raised, 3).await?;
        world.refused(&raised).await?;
    }
    Ok(())
}

pub(super) async fn a_lowered_limit_keeps_what_is_owed<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    for level in world.levels() {
        world.fill(&level).await?;
        let lowered = Level { spec: resized(level.spec, units(2)), ..level };
        world.available(&lowered, Amount::ZERO).await?;
        world.refused(&lowered).await?;
        // And back: the detour has neither forgotten nor added anything.
        world.available(&level, Amount::ZERO).await?;
        let raised = Level { spec: resized(level.spec, units(4)), ..level };
        world.available(&raised, units(1)).await?;
    }
    Ok(())
}

pub(super) async fn a_slower_limit_keeps_what_is_owed<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    for level in world.levels() {
        let Some(spec) = slowed(level.spec, level.time_us(world.now())) else { continue };
        let slow = Level { spec, ..level };
        world.fill(&level).await?;
        let found = world.reading(&slow).await?.available;
        equal(&format!("available of `{spec}`, empty before"), found, Amount::ZERO)?;
        world.refused(&slow).await?;
    }
    Ok(())
}

/// A key that was refused under the slower spec must outlive the instant at which the old spec would
/// have forgotten it, whatever other keys come to the limit.
pub(super) async fn a_slower_limit_is_remembered_beyond_the_old_window<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    for level in world.levels() {
        if slowed(level.spec, 0).is_none() || matches!(level.spec, Spec::SlidingCounter(_)) {
            // Two counters fade by the windows that they were counted with.
            continue;
        }
        let level = world.at_window_start(&level).await;
        let Some(spec) = slowed(level.spec, level.time_us(world.now())) else { continue };
        let slow = Level { spec, ..level };
        world.fill(&level).await?;
        world.refused(&slow).await?;
        world.advance(FORGOTTEN_US).await;
        for other in 1..=8 {
            world.admit(&Level { key: Key(level.key.0 ^ other), ..slow }).await?;
        }
        let verdict = world.take(&Level { cost: CAPACITY, ..slow }).await?.verdict;
        equal(&format!("`{spec}` admits all again"), verdict == Verdict::Allowed, false)?;
    }
    Ok(())
}

/// Other numbers in between, as another tier of the same user brings them, pay nothing back.
pub(super) async fn a_faster_limit_in_between_pays_nothing_back<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    for level in world.levels() {
        let level = world.at_window_start(&level).await;
        let Some(spec) = slowed(level.spec, level.time_us(world.now())) else { continue };
        let slow = Level { spec, ..level };
        world.admit(&level).await?;
        world.admit(&Level { cost: units(2), ..slow }).await?;
        world.refused(&slow).await?;
        world.advance(FORGOTTEN_US).await;
        world.admit(&world.at_window_start(&level).await).await?;
        world.refused(&slow).await?;
    }
    Ok(())
}
