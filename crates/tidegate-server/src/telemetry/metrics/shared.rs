//! The metrics of the store that nodes share.

use tidegate_redis::Health;

use super::text::{Kind, Page};

/// A shared store at the moment when a page is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedPresent {
    pub(crate) health: Health,
    /// How many corrections wait for it, and how many were lost.
    pub(crate) corrections: (usize, u64),
    /// How many keys it is to be charged for.
    pub(crate) owed_keys: usize,
}

/// Writes how the store is; memory is one server that is always healthy.
pub(super) fn write(page: &mut Page, present: Option<&SharedPresent>) {
    let name = "tidegate_store_state";
    let help = "How each server of the store is: 1 for the state that it is in, 0 for the others.";
    page.family(name, Kind::Gauge, help);
    let Some(present) = present else {
        page.sample(name, &[("shard", "memory"), ("state", "healthy")], 1);
        return;
    };
    for shard in &present.health.shards {
        for (state, _) in &shard.changes {
            let labels = [("shard", shard.address.as_str()), ("state", state.name())];
            page.sample(name, &labels, u8::from(*state == shard.state));
        }
    }
    write_health(page, &present.health);
    let (waiting, lost) = present.corrections;
    let name = "tidegate_store_corrections_waiting";
    page.single(name, Kind::Gauge, "Corrections that wait for a store that is lost.", waiting);
    let name = "tidegate_store_corrections_lost_total";
    let help = "Corrections that were not made, or of which nobody knows: what they would have \
                given back stays charged.";
    page.single(name, Kind::Counter, help, lost);
    let help = "Keys that the store is to be charged for: admitted while it was lost.";
    page.single("tidegate_store_owed_keys", Kind::Gauge, help, present.owed_keys);
}

/// Writes what the store counts, server by server and in all.
fn write_health(page: &mut Page, health: &Health) {
    let name = "tidegate_store_changes_total";
    page.family(name, Kind::Counter, "How often a server of the store entered a state.");
    for shard in &health.shards {
        for (state, count) in &shard.changes {
            page.sample(name, &[("shard", &shard.address), ("state", state.name())], count);
        }
    }
    let help = "Requests that a server of the store did not answer, by reason; open is one \
                that was not asked, because it failed before.";
    let name = "tidegate_store_shard_errors_total";
    page.family(name, Kind::Counter, help);
    for shard in &health.shards {
        for (reason, count) in &shard.errors {
            page.sample(name, &[("shard", &shard.address), ("reason", reason.name())], count);
        }
    }
    let name = "tidegate_store_queued";
    page.family(name, Kind::Gauge, "Requests that wait to be sent.");
    for shard in &health.shards {
        page.sample(name, &[("shard", &shard.address)], shard.queued);
    }
    let name = "tidegate_store_calls_total";
    page.family(name, Kind::Counter, "Calls of the script.");
    for shard in &health.shards {
        page.sample(name, &[("shard", &shard.address)], shard.calls);
    }
    let help = "Refusals that are remembered, those that are over included.";
    page.single("tidegate_store_known_refusals", Kind::Gauge, help, health.known.refusals);
    let help = "Requests that were refused without asking the store, which had said so before.";
    let name = "tidegate_store_known_refusals_given_total";
    page.single(name, Kind::Counter, help, health.known.answered);
    let help = "Limits that stay charged: a request with limits in several slots of a cluster \
                lost a race, and could not give them back.";
    page.single("tidegate_store_refunds_lost_total", Kind::Counter, help, health.lost_refunds);
    let help = "1 while this node hears what other nodes change; it remembers no refusal else.";
    let hears = u8::from(health.known.hears);
    page.single("tidegate_store_hears_changes", Kind::Gauge, help, hears);
}
