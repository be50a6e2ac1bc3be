//! What each limit does while the shared store is lost. It stands above the stores, so that every
//! store fails the same way and policy tests can try it.

use crate::algorithm::{Reading, Verdict};
use crate::plan::{Enforcement, Level, Mode, PerLevel, Plan};
use crate::policy::model::OnStoreFailure;
use crate::store::{Answer, Memory, Reply};
use crate::units::Amount;

/// Decides a plan without the shared store. `local` limits use this node's memory with this node's
/// share; the plan's specs become those shares.
pub(crate) fn decide(plan: &mut Plan, memory: &Memory, nodes: u32) -> Answer {
    for level in plan.levels.iter_mut().filter(|level| is_local(level)) {
        level.spec = level.spec.share_of(nodes);
    }
    let refuses =
        |level: &Level| !is_local(level) && level.on_store_failure == OnStoreFailure::Deny;
    let refused =
        plan.levels.iter().any(|level| refuses(level) && level.enforcement == Enforcement::Reject);
    let local = Plan {
        names: Vec::new(),
        mode: if refused { Mode::Peek } else { plan.mode },
        levels: plan.levels.iter().filter(|level| is_local(level)).copied().collect(),
        ..*plan
    };
    let answer = memory.answer(&local);
    let mut decided = answer.replies.into_iter();
    let reply = |level: &Level| match level.on_store_failure {
        _ if is_local(level) => decided.next().unwrap_or(denied()),
        OnStoreFailure::Deny => denied(),
        OnStoreFailure::Allow | OnStoreFailure::Local => passed(level),
    };
    let replies: PerLevel<Reply> = plan.levels.iter().map(reply).collect();
    Answer { now: answer.now, replies }
}

/// A ceiling keeps no state, so that it holds whatever the store does.
fn is_local(level: &Level) -> bool {
    level.on_store_failure == OnStoreFailure::Local || level.spec.is_stateless()
}

fn denied() -> Reply {
    let reading = Reading { available: Amount::ZERO, reset_us: None };
    Reply {
        verdict: Verdict::Denied { retry_after_us: None },
        charged: false,
        charged_at_us: 0,
        reading,
    }
}

fn passed(level: &Level) -> Reply {
    let reading = Reading { available: level.spec.capacity(), reset_us: None };
    Reply { verdict: Verdict::Allowed, charged: false, charged_at_us: 0, reading }
}
