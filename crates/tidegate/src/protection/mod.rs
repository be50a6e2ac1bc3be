//! Protection: events are counted, counts climb ladders, steps have effects, and effects leave marks.
//!
//! ```text
//!  decision    answer    report
//!       └─────────┼─────────┘
//!                 ▼
//!              events          events.rs        which events of the policy happened
//!                 ▼
//!           event counts       counts.rs        levels of the store: one for each penalty, three for
//!                 ▼                             each ratio
//!           ladder steps       ladder.rs        which steps a count or a ratio reaches, and which were
//!                 ▼                             missed (step_cache.rs: what this node knows of them)
//!              effects         effects.rs       each time: delay, warning, challenge, grace
//!                 ▼                             once:      ban, flag, notice, personal factor
//!               marks          marks/           what is in force on a subject, on every node
//!            ┌────┴─────┐
//!            ▼          ▼
//!        precheck      plan                     of every later request:
//!         bans.rs   factors.rs                  is its subject banned? how large are its limits?
//! ```
//!
//! **Events.** An event happens to the subject of a request. A decision makes it (`limited`), the status
//! of an upstream's answer makes it, or an application reports it. Only a final decision makes events: a
//! request that waits and is then served has violated nothing.
//!
//! **Event counts.** All nodes count in the shared store, so that a client cannot spread its attempts
//! over nodes. A count is a sliding window that refuses nobody; the reply to the charge tells how many
//! events there are. While the store is lost, a node counts by itself.
//!
//! **Steps.** The highest step that is not above the count is in force. Some of what it does happens on
//! every event. The rest happens once: exactly one charge raises the count to the step, and that node
//! applies it. A record in the store says that the step is applied. A step that was missed is applied
//! late, by the node that is the first to write the record.
//!
//! **Effects.** [`Consequences`](events::Consequences) goes back to the caller: the decision is delayed,
//! warned, challenged, banned, or passes by grace. Bans, flags and personal factors are set as marks.
//! Notices go to webhooks.
//!
//! **Missing parts.** A request may lack a part of a penalty's `by`, or have one that cannot be read.
//! `missing.rs` says whether it is refused, not counted, or counted together with all such requests.
//!
//! **Marks.** Every node has all marks in memory; the daemon replicates and saves them. The precheck
//! reads one counter while nobody is banned. A personal factor scales the limits of its subject in the
//! plan.
//!
//! `penalise.rs` leads through these stages and makes all calls of the store. `active.rs` holds what
//! they need of a policy in force: the keys of counts, steps and marks.

pub(crate) mod active;
pub(crate) mod bans;
pub(crate) mod counts;
pub(crate) mod effects;
pub(crate) mod events;
pub(crate) mod factors;
pub(crate) mod ladder;
pub(crate) mod marks;
mod missing;
pub(crate) mod penalise;
pub(crate) mod step_cache;
