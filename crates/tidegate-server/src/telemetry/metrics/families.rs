//! The table of metrics, in the order of the page: a new metric is one row here.

use std::fmt;
use std::sync::Arc;

use tidegate_redis::{Health, ShardHealth};

use super::process;
use super::text::{Kind, Millionths, Page, Samples};
use super::{Metrics, PolicyCounters, Present};
use crate::state::SaveStatus;

/// Everything that a page shows.
pub(super) struct View<'v> {
    pub(super) metrics: &'v Metrics,
    /// The counters of the policies in force.
    pub(super) policies: &'v [Arc<PolicyCounters>],
    pub(super) present: &'v Present,
}

/// A shared store at the moment when a page is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedPresent {
    pub(crate) health: Health,
    /// The corrections that wait for it, and those that were lost.
    pub(crate) corrections: (usize, u64),
    /// The keys that it is to be charged for.
    pub(crate) owed_keys: usize,
}

/// A metric: its name, its type, its help, and how its samples are written.
pub(super) struct Family(&'static str, Kind, &'static str, fn(&View<'_>, &mut Samples<'_>));

impl Family {
    pub(super) fn write(&self, view: &View<'_>, page: &mut Page) {
        page.family((self.0, self.1, self.2), |samples| (self.3)(view, samples));
    }
}

macro_rules! families {
    ($($kind:ident($name:literal, $help:literal, $write:expr);)*) => {
        &[$(Family($name, Kind::$kind, $help, $write)),*]
    };
}

/// Without a shared store, memory is one server that is always healthy, and the other metrics of the
/// store are omitted.
pub(super) const FAMILIES: &[Family] = families! {
    Counter("tidegate_decisions_total",
        "Decisions by operation, tier and outcome (and policy, where there are several).",
        |view, samples| each_policy(view, |one, several| one.write_decisions(samples, several)));
    Counter("tidegate_limit_hits_total",
        "What limits said of requests: allowed (the cost fitted here, whatever other limits said), \
         denied (over, and refuses), shadow_denied (over, on trial), warned (over, and only \
         warns).",
        |view, samples| each_policy(view, |one, several| one.write_hits(samples, several)));
    Gauge("tidegate_headroom_ratio",
        "The smallest share of a limit that any key had left in this minute and the one before, 0 \
         to 1; 1 where none was seen.",
        |view, samples| each_policy(view, |one, several| {
            one.write_headroom(samples, several, view.present.steady_us);
        }));
    Gauge("tidegate_policy_info", "The policies in force; always 1.",
        |view, samples| each_policy(view, |one, _| {
            samples.labelled(&[("name", &one.name), ("version", &one.version)], 1);
        }));
    Counter("tidegate_events_total",
        "Events that penalties, ratios or policies count, by their names.",
        |view, samples| samples.each("event", view.metrics.events.samples()));
    Counter("tidegate_bans_total", "Bans that this node made, by penalty, ratio or operator.",
        |view, samples| samples.each("penalty", view.metrics.bans.samples()));
    Counter("tidegate_challenges_total",
        "Challenges by kind: issued, solved, failed (a wrong, forged or used solution), void (too \
         late, or nobody could judge it).",
        |view, samples| {
            let kinds = ["proof_of_work", "captcha"];
            for (kind, counters) in kinds.iter().zip(&view.metrics.challenges) {
                for (result, count) in counters.samples() {
                    samples.labelled(&[("kind", kind), ("result", result)], count);
                }
            }
        });
    Counter("tidegate_unreadable_bodies_total",
        "Attributes that a decision asked for and that could not be read, most of them in bodies, by \
         reason.",
        |view, samples| samples.each("reason", view.metrics.unreadable.samples()));
    Histogram("tidegate_decision_seconds", "How long decisions took, in seconds.",
        |view, samples| view.metrics.decision_seconds.write(samples, None));
    Gauge("tidegate_store_state",
        "How each server of the store is: 1 for the state that it is in, 0 for the others.",
        |view, samples| {
            if view.present.store.is_none() {
                samples.labelled(&[("shard", "memory"), ("state", "healthy")], 1);
                return;
            }
            each_shard(view, samples, |shard, samples| {
                for (state, _) in &shard.changes {
                    let labels = [("shard", shard.address.as_str()), ("state", state.name())];
                    samples.labelled(&labels, u8::from(*state == shard.state));
                }
            });
        });
    Counter("tidegate_store_changes_total", "How often a server of the store entered a state.",
        |view, samples| each_shard(view, samples, |shard, samples| {
            for (state, count) in &shard.changes {
                samples.labelled(&[("shard", &shard.address), ("state", state.name())], count);
            }
        }));
    Counter("tidegate_store_shard_errors_total",
        "Requests that a server of the store did not answer, by reason; open is one that was not \
         asked, because it failed before.",
        |view, samples| each_shard(view, samples, |shard, samples| {
            for (reason, count) in &shard.errors {
                samples.labelled(&[("shard", &shard.address), ("reason", reason.name())], count);
            }
        }));
    Gauge("tidegate_store_queued", "Requests that wait to be sent.",
        |view, samples| each_shard(view, samples, |shard, samples| {
            samples.labelled(&[("shard", &shard.address)], shard.queued);
        }));
    Counter("tidegate_store_calls_total", "Calls of the script.",
        |view, samples| each_shard(view, samples, |shard, samples| {
            samples.labelled(&[("shard", &shard.address)], shard.calls);
        }));
    Gauge("tidegate_store_known_refusals",
        "Refusals that are remembered, those that are over included.",
        |view, samples| samples.optional(store(view, |store| store.health.negative_cache.refusals)));
    Counter("tidegate_store_known_refusals_given_total",
        "Requests that were refused without asking the store, which had said so before.",
        |view, samples| samples.optional(store(view, |store| store.health.negative_cache.hits)));
    Counter("tidegate_store_refunds_lost_total",
        "Limits that stay charged: a request with limits in several slots of a cluster lost a \
         race, and could not give them back.",
        |view, samples| samples.optional(store(view, |store| store.health.lost_refunds)));
    Gauge("tidegate_store_hears_changes",
        "1 while this node hears what other nodes change; it remembers no refusal else.",
        |view, samples| samples.optional(store(view, |store| u8::from(store.health.negative_cache.subscribed))));
    Gauge("tidegate_store_corrections_waiting", "Corrections that wait for a store that is lost.",
        |view, samples| samples.optional(store(view, |store| store.corrections.0)));
    Counter("tidegate_store_corrections_lost_total",
        "Corrections that were not made, or of which nobody knows: what they would have given back \
         stays charged.",
        |view, samples| samples.optional(store(view, |store| store.corrections.1)));
    Gauge("tidegate_store_owed_keys",
        "Keys that the store is to be charged for: admitted while it was lost.",
        |view, samples| samples.optional(store(view, |store| store.owed_keys)));
    Gauge("tidegate_store_leases", "Buckets of the shared store of which this node holds tokens.",
        |view, samples| samples.value(view.present.leases.held));
    Gauge("tidegate_store_lease_tokens", "Tokens that this node has borrowed and not spent.",
        |view, samples| samples.value(Tokens(view.present.leases.outstanding)));
    Counter("tidegate_store_lease_charges_total",
        "Charges of leased limits: spent (of what this node held), exact (the store was asked, for \
         want of a lease).",
        |View { present: Present { leases, .. }, .. }, samples| {
            samples.each("result", [("spent", leases.spent), ("exact", leases.exact)]);
        });
    Counter("tidegate_store_lease_loans_total",
        "Loans that this node asked for: granted or refused (too little was there, or no answer \
         came).",
        |View { present: Present { leases, .. }, .. }, samples| {
            samples.each("result", [("granted", leases.granted), ("refused", leases.refused)]);
        });
    Counter("tidegate_store_lease_unspent_total",
        "Borrowed tokens that were not spent: returned to the store, or expired (those are \
         returned too, if the store still knows of them).",
        |View { present: Present { leases, .. }, .. }, samples| {
            let counts = [("returned", leases.returned), ("expired", leases.expired)];
            samples.each("result", counts.map(|(result, count)| (result, Tokens(count))));
        });
    Counter("tidegate_notices_total",
        "Messages to webhooks by how they ended: delivered, failed (no attempt succeeded, or the \
         webhook does not want it), refused (it leads where no webhook may be), dropped (too many \
         waited).",
        |View { present: Present { notices, .. }, .. }, samples| {
            samples.each("result", [("delivered", notices.delivered), ("failed", notices.failed)]);
            samples.each("result", [("refused", notices.refused), ("dropped", notices.dropped)]);
        });
    Counter("tidegate_notice_retries_total",
        "Attempts to tell a webhook that failed and were tried again.",
        |view, samples| samples.value(view.present.notices.retries));
    Gauge("tidegate_notices_waiting", "Messages to webhooks that are on the way.",
        |view, samples| samples.value(view.present.notices.waiting));
    Gauge("tidegate_state_failing",
        "1 while what changes cannot be saved to the state directory, else 0.",
        |View { present: Present { state, .. }, .. }, samples| {
            samples.optional(state.as_ref().map(|state| u8::from(!state.failures.is_empty())));
        });
    Gauge("tidegate_state_saved_timestamp_seconds",
        "All that was counted until then is in the state directory, in Unix time.",
        |View { present: Present { state, .. }, .. }, samples| {
            let saved_s = |state: &SaveStatus| state.saved_unix_us.unwrap_or_default() / 1_000_000;
            samples.optional(state.as_ref().map(saved_s));
        });
    Counter("tidegate_state_written_bytes_total", "Bytes that were written to the state directory.",
        |View { present: Present { state, .. }, .. }, samples| {
            samples.optional(state.as_ref().map(|state| state.written_bytes));
        });
    Gauge("tidegate_active_keys",
        "Keys in this process's memory, those that are empty of meaning included.",
        |view, samples| samples.value(view.present.active_keys));
    Counter("tidegate_evicted_keys_total",
        "Live keys that had to go because their limit's share of the memory was full.",
        |view, samples| samples.value(view.present.evicted_keys));
    Gauge("tidegate_waiting_requests", "Requests that wait for their turn.",
        |view, samples| samples.value(view.present.waiting));
    Gauge("tidegate_held_answers", "Answers that a penalty holds back.",
        |view, samples| samples.value(view.present.held));
    Gauge("tidegate_marks", "Bans and flags that are known here, by kind.",
        |View { present: Present { marks, .. }, .. }, samples| {
            samples.each("kind", marks.iter().map(|(kind, known, _)| (kind, known)));
        });
    Counter("tidegate_marks_refused_total", "Bans and flags that there was no room for, by kind.",
        |View { present: Present { marks, .. }, .. }, samples| {
            samples.each("kind", marks.iter().map(|(kind, _, refused)| (kind, refused)));
        });
    Gauge("tidegate_open_connections", "Open connections by listener.",
        |view, samples| samples.each("listener", view.present.connections.iter().copied()));
    Counter("tidegate_store_errors_total",
        "Times that the store could not answer: unavailable (trying again may help) or refused (it \
         will not).",
        |view, samples| samples.each("reason", view.metrics.store_errors.samples()));
    Counter("tidegate_store_fallback_total",
        "Decisions that were made without the store, by why it could not answer.",
        |view, samples| samples.each("reason", view.metrics.store_fallbacks.samples()));
    Counter("tidegate_store_merged_total",
        "Keys that the store was charged for after it was lost: sent, or lost (whether it was \
         charged is not known).",
        |view, samples| samples.each("result", view.metrics.store_merged.samples()));
    Histogram("tidegate_store_seconds", "How long calls to a shared store took, in seconds.",
        |view, samples| {
            for (op, seconds) in ["decide", "amend"].iter().zip(&view.metrics.store_seconds) {
                seconds.write(samples, Some(("op", op)));
            }
        });
    Counter("tidegate_token_failures_total",
        "Bearer tokens that do not verify, by reason.",
        |view, samples| samples.each("reason", view.metrics.token_failures.samples()));
    Counter("tidegate_upstream_errors_total",
        "Requests that the upstream did not answer (502, 503, 504), by reason.",
        |view, samples| samples.each("reason", view.metrics.upstream_errors.samples()));
    Histogram("tidegate_upstream_seconds",
        "How long the upstream took until the head of its answer, in seconds.",
        |view, samples| view.metrics.upstream_seconds.write(samples, None));
    Counter("tidegate_reloads_total",
        "Reloads by result: taken, partial (some files stay as they were), refused.",
        |view, samples| samples.each("result", view.metrics.reloads.samples()));
    Gauge("tidegate_build_info", "The version of this binary; always 1.",
        |_, samples| samples.labelled(&[("version", env!("CARGO_PKG_VERSION"))], 1));
    Gauge("process_start_time_seconds",
        "When the process started, in seconds since the Unix epoch.",
        |view, samples| samples.value(view.metrics.started_unix_s));
    Counter("process_cpu_seconds_total", "User and system CPU time spent, in seconds.",
        |_, samples| samples.optional(process::cpu_us().map(Millionths)));
    Gauge("process_resident_memory_bytes", "Resident memory size in bytes.",
        |_, samples| samples.optional(process::resident_bytes()));
    Gauge("process_open_fds", "Open file descriptors.",
        |_, samples| samples.optional(process::open_files()));
};

/// Calls `write` for each policy in force, and says if there are several.
fn each_policy(view: &View<'_>, mut write: impl FnMut(&PolicyCounters, bool)) {
    view.policies.iter().for_each(|policy| write(policy, view.policies.len() > 1));
}

fn store<T>(view: &View<'_>, read: impl Fn(&SharedPresent) -> T) -> Option<T> {
    view.present.store.as_ref().map(read)
}

fn each_shard(
    view: &View<'_>,
    samples: &mut Samples<'_>,
    write: impl Fn(&ShardHealth, &mut Samples<'_>),
) {
    match &view.present.store {
        Some(store) => store.health.shards.iter().for_each(|shard| write(shard, samples)),
        None => samples.omit(),
    }
}

/// Millionths, as a decimal.
struct Tokens(u64);

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (units, micros) = (self.0 / 1_000_000, self.0 % 1_000_000);
        if micros == 0 { write!(f, "{units}") } else { write!(f, "{units}.{micros:06}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_decimals() {
        assert_eq!(Tokens(3_000_000).to_string(), "3");
        assert_eq!(Tokens(12_500_001).to_string(), "12.500001");
    }
}
