//! The daemon's part in protection: it counts, logs and notifies the effects of penalties, delays answers,
//! replicates marks between nodes and measures the load.

mod delay;
pub(crate) mod load;
pub(crate) mod replication;

pub(crate) use delay::DelayedAnswers;
pub(crate) use load::Load;

use tidegate::engine::marks::{Mark, MarkKind};
use tidegate::engine::{Context, Effect, OwnedContext};
use tidegate::{Amount, Consequences, Request, RequestError};

use crate::app::App;
use crate::auth::Actor;
use crate::telemetry::timestamp;

/// The label of bans that an operator made.
const OPERATOR: &str = "operator";

impl App {
    /// Counts an event that an application reports.
    pub(crate) async fn report(
        &self,
        context: &Context<'_>,
        event: &str,
        value: Option<Amount>,
    ) -> Result<Consequences, RequestError> {
        let reported = self.engine.record_event_async(context, event, value).await?;
        self.follow_up_report(&reported);
        Ok(reported)
    }

    /// Counts the events that an upstream's answer makes.
    pub(crate) async fn record_answer(&self, request: &OwnedContext, status: u16) -> Consequences {
        let reported = self.engine.record_answer_async(request, status).await;
        self.follow_up_report(&reported);
        reported
    }

    /// Counts the events of the status that a lease is settled with.
    pub(crate) async fn record_status(&self, request: &Request<'_>, status: u16) -> Consequences {
        // A reload since the decision may have removed what the request names: no event is left to count.
        let reported = self.engine.record_status_async(request, status).await.unwrap_or_default();
        self.follow_up_report(&reported);
        reported
    }

    fn follow_up_report(&self, reported: &Consequences) {
        self.follow_up(reported.events.iter().map(String::as_str), &reported.effects);
    }

    /// Counts events and their effects, logs them, and calls webhooks.
    pub(crate) fn follow_up<'e>(&self, events: impl Iterator<Item = &'e str>, effects: &[Effect]) {
        events.for_each(|event| self.metrics.happened(event));
        effects.iter().for_each(|effect| self.follow(effect));
    }

    /// By itself, so that a decision without effects has none of it on its stack.
    #[inline(never)]
    fn follow(&self, effect: &Effect) {
        match effect {
            Effect::Banned { mark, penalty } => self.banned(mark, penalty),
            Effect::Flagged { mark, .. } => self.log_set(mark),
            Effect::Notify(notice) => self.notify(notice),
        }
    }

    /// Logs and counts a mark that an operator has set.
    pub(crate) fn marked(&self, mark: &Mark, actor: &Actor) {
        match mark.kind {
            MarkKind::Ban => self.banned(mark, OPERATOR),
            MarkKind::Flag | MarkKind::Factor => self.log_set(mark),
        }
        self.audit(if mark.kind == MarkKind::Ban { "ban" } else { "flag" }, mark, actor);
    }

    /// Logs a mark that an operator has removed.
    pub(crate) fn unmarked(&self, mark: &Mark, actor: &Actor) {
        let subject = self.format_mark_subject(mark);
        match mark.kind {
            MarkKind::Ban => {
                tracing::info!(event = "ban_removed", subject, "an operator has ended a ban");
            }
            MarkKind::Flag | MarkKind::Factor => {
                let flag = mark.flag.as_deref().unwrap_or_default();
                tracing::info!(
                    event = "flag_removed",
                    flag,
                    subject,
                    "an operator took a flag away"
                );
            }
        }
        self.audit(if mark.kind == MarkKind::Ban { "unban" } else { "unflag" }, mark, actor);
    }

    /// Logs which operator has changed a mark, and the reason.
    fn audit(&self, action: &str, mark: &Mark, actor: &Actor) {
        let (name, role, peer) = (actor.name(), actor.role(), actor.peer.to_string());
        let (subject, reason) = (self.format_mark_subject(mark), mark.reason.as_str());
        let policy = mark.policy.as_deref().unwrap_or_default();
        let flag = mark.flag.as_deref().unwrap_or_default();
        let until = mark.until_unix_us.map(timestamp).unwrap_or_default();
        tracing::warn!(
            event = "audit",
            action,
            caller = name,
            role,
            peer,
            subject,
            policy,
            flag,
            until,
            reason,
            "changed by hand"
        );
    }

    fn banned(&self, mark: &Mark, penalty: &str) {
        self.metrics.banned(penalty);
        self.log_set(mark);
    }

    fn log_set(&self, mark: &Mark) {
        let (subject, source) = (self.format_mark_subject(mark), mark.source.as_str());
        let policy = mark.policy.as_deref().unwrap_or_default();
        let until = mark.until_unix_us.map(timestamp).unwrap_or_default();
        match mark.kind {
            MarkKind::Ban => {
                tracing::warn!(event = "ban_set", subject, source, policy, until, "banned");
            }
            MarkKind::Flag => {
                let flag = mark.flag.as_deref().unwrap_or_default();
                let message = "flagged";
                tracing::warn!(event = "flag_set", flag, subject, source, policy, until, message);
            }
            MarkKind::Factor => {}
        }
    }

    /// The subject of a mark, as logs write it.
    fn format_mark_subject(&self, mark: &Mark) -> String {
        let parts = self.engine.format_subject(&mark.subject, self.log.identities());
        parts.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
    }
}
