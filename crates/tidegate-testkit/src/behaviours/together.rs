//! Levels are charged together, or not at all (rule 1).

use tidegate::Amount;
use tidegate::Verdict;
use tidegate::engine::plan::{Enforcement, LEVELS_MAX, Level, Mode};

use super::world::{CAPACITY, World, bucket, equal, units};
use super::{Shown, StoreUnderTest};

pub(super) async fn all_levels_are_charged_or_none<S: StoreUnderTest>(world: &World<S>) -> Shown {
    let levels = world.levels();
    for round in 1..=3 {
        for reply in world.charge(&levels, round).await?.replies {
            equal("verdict", reply.verdict, Verdict::Allowed)?;
            equal("charged", reply.charged, true)?;
            equal("available", reply.reading.available, CAPACITY.saturating_sub(units(round)))?;
        }
    }
    for reply in world.charge(&levels, 4).await?.replies {
        equal("charged beyond the limit", reply.charged, false)?;
    }
    Ok(())
}

pub(super) async fn a_denial_leaves_every_other_level_untouched<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    let levels = world.levels();
    for full in 0..levels.len() {
        let mut plan: Vec<Level> = levels.clone();
        plan[full] = world.level(20 + plan[full].limit, plan[full].spec);
        world.fill(&plan[full]).await?;
        for _ in 0..5 {
            let replies = world.charge(&plan, 9).await?.replies;
            equal("charged", replies.iter().any(|reply| reply.charged), false)?;
            let denied: Vec<usize> =
                (0..plan.len()).filter(|at| replies[*at].verdict != Verdict::Allowed).collect();
            equal("levels that deny", denied, vec![full])?;
        }
        for level in &levels {
            let reading = world.reading(level).await?;
            equal(&format!("available of `{}`", level.spec), reading.available, CAPACITY)?;
        }
    }
    Ok(())
}

pub(super) async fn a_peek_charges_nothing<S: StoreUnderTest>(world: &World<S>) -> Shown {
    let levels = world.levels();
    for _ in 0..5 {
        for reply in world.decide(Mode::Peek, world.now(), &levels, 1).await?.replies {
            equal("verdict", reply.verdict, Verdict::Allowed)?;
            equal("charged", reply.charged, false)?;
            equal("available", reply.reading.available, CAPACITY)?;
        }
    }
    for level in &levels {
        world.fill(level).await?;
        let told = world.peek(level).await?.verdict;
        equal("what a charge is told", world.take(level).await?.verdict, told)?;
    }
    Ok(())
}

pub(super) async fn a_cost_of_zero_peeks<S: StoreUnderTest>(world: &World<S>) -> Shown {
    for level in world.levels() {
        let zero = Level { cost: Amount::ZERO, ..level };
        let reply = world.take(&zero).await?;
        equal("verdict of nothing", reply.verdict, Verdict::Allowed)?;
        equal("charged nothing", reply.charged, false)?;
        world.fill(&level).await?;
        equal("verdict when full", world.take(&zero).await?.verdict, Verdict::Allowed)?;
        world.available(&level, Amount::ZERO).await?;
    }
    let [free, paid] = [0, 1].map(|limit| world.level(30 + limit, bucket(3, 1_000_000)));
    let free = Level { cost: Amount::ZERO, ..free };
    let replies = world.charge(&[free, paid], 1).await?.replies;
    equal("charged beside nothing", replies[1].charged, true)?;
    world.available(&free, CAPACITY).await?;
    world.available(&paid, units(2)).await
}

pub(super) async fn warnings_and_shadows_are_not_charged_while_over<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    for (level, other) in world.levels().into_iter().zip(40..) {
        for enforcement in [Enforcement::Warn, Enforcement::Shadow] {
            let spec = level.spec;
            let soft =
                world.level(other + if enforcement == Enforcement::Warn { 0 } else { 10 }, spec);
            let soft = Level { enforcement, ..soft };
            world.fill(&soft).await?;
            let before = world.peek(&soft).await?;
            let hard = world.level(30, bucket(3, 1));
            let replies = world.charge(&[soft, hard], 7).await?.replies;
            equal("verdict of the level that is over", replies[0].verdict, before.verdict)?;
            equal("charged while over", replies[0].charged, false)?;
            equal("charged beside it", replies[1].charged, true)?;
            equal(&format!("`{spec}` afterwards"), world.peek(&soft).await?, before)?;
            world.advance(3).await;
        }
    }
    Ok(())
}

pub(super) async fn warnings_and_shadows_are_not_charged_when_another_level_refuses<
    S: StoreUnderTest,
>(
    world: &World<S>,
) -> Shown {
    let hard = world.level(30, bucket(3, 1_000_000));
    world.fill(&hard).await?;
    for level in world.levels() {
        for enforcement in [Enforcement::Warn, Enforcement::Shadow] {
            let soft = Level { enforcement, ..level };
            let replies = world.charge(&[soft, hard], 1).await?.replies;
            equal("charged", replies.iter().any(|reply| reply.charged), false)?;
            world.available(&soft, CAPACITY).await?;
        }
    }
    Ok(())
}

pub(super) async fn as_many_levels_as_a_plan_can_hold_are_charged_together<S: StoreUnderTest>(
    world: &World<S>,
) -> Shown {
    let specs = world.specs();
    let levels: Vec<Level> =
        (0..).zip(specs.iter().cycle().take(LEVELS_MAX)).map(|(n, s)| world.level(n, *s)).collect();
    for round in 1..=3 {
        let replies = world.charge(&levels, round).await?.replies;
        equal("charged all", replies.iter().all(|reply| reply.charged), true)?;
    }
    // The last of them is reset: it alone has room, and must not be charged.
    let last = levels[LEVELS_MAX - 1];
    world.correct(&last, world.now(), tidegate::engine::store::Change::Reset).await?;
    let replies = world.charge(&levels, 9).await?.replies;
    equal("charged any", replies.iter().any(|reply| reply.charged), false)?;
    world.available(&last, CAPACITY).await
}
