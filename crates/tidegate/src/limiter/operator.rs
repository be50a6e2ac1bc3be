//! What operators do by hand: bans, flags, and the load that factors go by.

use std::sync::Arc;
use std::time::Duration;

use super::error::ResetError;
use super::{Limiter, block_on_ready};
use crate::active_policy::ActivePolicy;
use crate::identity::Networks;
use crate::plan::{LEVELS_MAX, Level, Planner, key_names};
use crate::policy::Policy;
use crate::protection::marks::{Mark, MarkKind, Marks, SetOutcome, Subject};
use crate::request::{Request, RequestError};
use crate::store::{Amendment, AmendmentResults, Change, ImmediateStore, Store, StoreError};

/// Whom an operator is named as.
const OPERATOR: &str = "operator";

/// A mark that an operator sets.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NewMark {
    /// The policy that it holds in; all without it.
    pub policy: Option<String>,
    /// Whom it is of.
    pub subject: Subject,
    /// For how long; without it, until it is taken away.
    pub lasts: Option<Duration>,
    /// Why.
    pub reason: String,
}

impl NewMark {
    /// Of a subject, in all policies, until it is taken away.
    #[must_use]
    pub fn new(subject: Subject) -> Self {
        Self { policy: None, subject, lasts: None, reason: String::new() }
    }

    /// In one policy alone.
    #[must_use]
    pub fn policy(mut self, policy: impl Into<String>) -> Self {
        self.policy = Some(policy.into());
        self
    }

    /// For so long.
    #[must_use]
    pub fn lasts(mut self, lasts: Duration) -> Self {
        self.lasts = Some(lasts);
        self
    }

    /// For this reason.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }
}

impl<S: Store> Limiter<S> {
    /// All bans, flags and factors that this process knows of.
    #[must_use]
    pub fn marks(&self) -> &Marks {
        &self.inner.marks
    }

    /// Bans a subject; of two bans the one that ends later stays.
    ///
    /// # Errors
    /// The policy is not in force, no request of it could be known by such a subject, or there is no
    /// room for another ban.
    pub fn ban(&self, order: &NewMark) -> Result<Mark, RequestError> {
        self.mark(MarkKind::Ban, order, None)
    }

    /// Flags a subject for somebody to look at.
    ///
    /// # Errors
    /// The policy is not in force, or there is no room for another flag.
    pub fn flag(&self, flag: &str, order: &NewMark) -> Result<Mark, RequestError> {
        self.mark(MarkKind::Flag, order, Some(flag))
    }

    /// Ends a ban; returns whether there was one here.
    pub fn unban(&self, policy: Option<&str>, subject: &Subject) -> bool {
        let subject = self.as_marked(policy, subject);
        let marks = &self.inner.marks;
        marks.remove(MarkKind::Ban, marks.id_of(MarkKind::Ban, policy, None, &subject))
    }

    /// Takes a flag away; returns whether there was one here.
    pub fn unflag(&self, policy: Option<&str>, flag: &str, subject: &Subject) -> bool {
        let subject = self.as_marked(policy, subject);
        let marks = &self.inner.marks;
        marks.remove(MarkKind::Flag, marks.id_of(MarkKind::Flag, policy, Some(flag), &subject))
    }

    /// Takes a mark away by its id; returns whether there was one here.
    pub fn unmark(&self, kind: MarkKind, id: crate::key::Key) -> bool {
        self.inner.marks.remove(kind, id)
    }

    /// A subject in each way that marks of it may say it, in one policy or, without one, in any: an
    /// IPv6 client is marked as its network.
    #[must_use]
    pub fn subject_aliases(&self, policy: Option<&str>, subject: &Subject) -> Vec<Subject> {
        let mut spellings = vec![subject.clone(), self.as_marked(policy, subject)];
        if policy.is_none() {
            let policies = self.policies();
            spellings
                .extend(policies.iter().map(|policy| self.as_marked(Some(policy.name()), subject)));
        }
        let mut seen: Vec<Subject> = Vec::new();
        for spelling in spellings {
            if !seen.contains(&spelling) {
                seen.push(spelling);
            }
        }
        seen
    }

    /// Tells the load, in millionths, for the factors that go by it.
    pub fn set_load(&self, load_ppm: u64) {
        self.inner.load_ppm.store(load_ppm, std::sync::atomic::Ordering::Relaxed);
        for active in self.inner.policies.load().iter() {
            active.protection.set_load(&active.policy, load_ppm);
        }
    }

    /// Forgets what one limit knows of the subject of a request; returns whether there was anything to
    /// forget.
    ///
    /// # Errors
    /// The limit is not known or does not apply to the request, or the store cannot answer.
    pub async fn reset_async(
        &self,
        limit: &str,
        request: &Request<'_>,
    ) -> Result<bool, ResetError> {
        let key = self.key_of(limit, request)?;
        let forgotten = self.forget(&[key]).await.map_err(ResetError::Store)?;
        Ok(forgotten.iter().any(|found| *found))
    }

    /// Forgets what is known of keys, at most [`LEVELS_MAX`] of them, each by itself; returns whether
    /// there was anything to forget. Names are for a store that [has them](Store::names_keys).
    ///
    /// # Errors
    /// The store cannot answer.
    pub async fn forget(
        &self,
        keys: &[(Level, Option<Arc<str>>)],
    ) -> Result<AmendmentResults, StoreError> {
        // This node's own count first: it decides while the shared store cannot be asked.
        let local = self.forget_here(keys).await?;
        let shared = self.amend(false, &resets(keys)).await?;
        Ok(local.iter().zip(&shared).map(|(local, shared)| *local || *shared).collect())
    }

    /// Forgets what this node alone knows of keys.
    pub(super) async fn forget_here(
        &self,
        keys: &[(Level, Option<Arc<str>>)],
    ) -> Result<AmendmentResults, StoreError> {
        self.amend(true, &resets(keys)).await
    }

    /// The key of the subject of a request on a limit, and its name in a store that has names.
    fn key_of(
        &self,
        limit: &str,
        request: &Request<'_>,
    ) -> Result<(Level, Option<Arc<str>>), ResetError> {
        let context = self.context(request).map_err(ResetError::Request)?;
        let mut limits = context.policy().limits.iter().enumerate();
        let found = limits.find(|(_, candidate)| candidate.name == limit);
        let (index, found) = found.ok_or_else(|| ResetError::UnknownLimit(limit.to_owned()))?;
        let level = Planner::new(&context).subject(index, found);
        let level = level.ok_or_else(|| ResetError::DoesNotApply(limit.to_owned()))?;
        let names =
            self.inner.store.names_keys().then(|| key_names(&context, &self.secret(), &[level]));
        Ok((level, names.and_then(|names| names.into_iter().next())))
    }

    fn mark(
        &self,
        kind: MarkKind,
        order: &NewMark,
        flag: Option<&str>,
    ) -> Result<Mark, RequestError> {
        let (marks, now) = (&self.inner.marks, self.now());
        let policy = order.policy.as_deref();
        self.check_order(kind, order)?;
        let subject = self.as_marked(policy, &order.subject);
        let lasts_us = order.lasts.map(|us| u64::try_from(us.as_micros()).unwrap_or(u64::MAX));
        let mark = Mark {
            reason: order.reason.clone(),
            until_unix_us: lasts_us.map(|us| now.unix_us.saturating_add(us)),
            ..marks.new_mark(kind, policy, flag, subject, OPERATOR, now)
        };
        if marks.set(&mark, now) == SetOutcome::Full {
            return Err(RequestError::new("key", "found no room for another one"));
        }
        Ok(marks.get(kind, mark.id, now).unwrap_or(mark))
    }

    fn check_order(&self, kind: MarkKind, order: &NewMark) -> Result<(), RequestError> {
        let policies = self.inner.policies.load();
        let in_scope = |name: &str| order.policy.as_deref().is_none_or(|wanted| wanted == name);
        let mut scope = policies.iter().filter(|active| in_scope(&active.policy.name)).peekable();
        if scope.peek().is_none() {
            let name = order.policy.as_deref().unwrap_or_default();
            let detail = format!("found `{name}`, expected the name of a policy in force");
            return Err(RequestError::new("policy", detail));
        }
        let names: Vec<&str> = order.subject.parts().map(|(name, _)| name).collect();
        if kind == MarkKind::Ban
            && !scope.any(|active| active.protection.bans.covers(&names, &active.policy))
        {
            let detail = format!(
                "found `{}`, expected user, client, ip, network, or what a penalty bans by",
                names.join(", ")
            );
            return Err(RequestError::new("key", detail));
        }
        let prefixes: Vec<u8> = policies
            .iter()
            .filter(|active| in_scope(&active.policy.name))
            .map(|active| active.policy.identity.ipv6_prefix)
            .collect();
        for (name, value) in order.subject.parts() {
            check_value(name, value, &prefixes)
                .map_err(|detail| RequestError::new(format!("key.{name}"), detail))?;
        }
        if order.policy.is_none() && self.disagree_on_prefix(&order.subject) {
            let detail = "found none, expected one: policies know this IPv6 client by different \
                          prefixes";
            return Err(RequestError::new("policy", detail));
        }
        Ok(())
    }

    /// Whether policies know a subject otherwise than each other. A network does not ask them.
    fn disagree_on_prefix(&self, subject: &Subject) -> bool {
        let policies = self.inner.policies.load();
        let prefixes = policies.iter().map(|active| active.policy.identity.ipv6_prefix);
        let mut known = prefixes.map(|prefix| subject.clone().with_prefix(prefix, true));
        let Some(first) = known.next() else { return false };
        first.as_network().is_none() && known.any(|other| other != first)
    }

    /// A subject as requests are known by it: an IPv6 client is its network. In all policies, whose
    /// prefixes may differ, it is that of the first.
    fn as_marked(&self, policy: Option<&str>, subject: &Subject) -> Subject {
        let policies = self.inner.policies.load();
        let named =
            |active: &&Arc<ActivePolicy>| policy.is_none_or(|name| active.policy.name == name);
        let prefix = |policy: &Policy| policy.identity.ipv6_prefix;
        let prefix = policies.iter().find(named).map_or(64, |active| prefix(&active.policy));
        subject.clone().with_prefix(prefix, policy.is_none())
    }
}

/// The same on a store that answers at once, in a plain call.
impl<S: ImmediateStore> Limiter<S> {
    /// As [`reset_async`](Self::reset_async).
    ///
    /// # Errors
    /// As [`reset_async`](Self::reset_async).
    pub fn reset(&self, limit: &str, request: &Request<'_>) -> Result<bool, ResetError> {
        block_on_ready(self.reset_async(limit, request))
    }
}

fn resets(keys: &[(Level, Option<Arc<str>>)]) -> Vec<Amendment> {
    let reset = |(level, name): &(Level, Option<Arc<str>>)| Amendment {
        level: *level,
        name: name.clone(),
        charged_at_us: 0,
        holder: 0,
        change: Change::Reset,
    };
    keys.iter().take(LEVELS_MAX).map(reset).collect()
}

/// Whether a request can be known by a value. An IPv6 client is known by its network, whose length is
/// one of these.
fn check_value(name: &str, value: &str, ipv6_prefixes: &[u8]) -> Result<(), String> {
    let address = match (name, value.split_once(':')) {
        ("client", Some(("user", _))) => return Ok(()),
        ("client", Some(("ip", address))) => address,
        ("client", _) => {
            return Err(format!("found `{value}`, expected `user:ID` or `ip:ADDRESS`"));
        }
        ("ip" | "network", _) => value,
        _ => return Ok(()),
    };
    let net = Networks::parse_net(address).map_err(|error| error.to_string())?;
    let whole = net.prefix_len() == net.max_prefix_len();
    let is_client = net.addr().is_ipv6() && ipv6_prefixes.contains(&net.prefix_len());
    if name == "network" || whole || is_client {
        return Ok(());
    }
    Err(format!("found the network `{address}`, expected an address; `network` is for networks"))
}
