//! Key lookup for operators: from a subject to its keys, and from a key to its limit or penalty.

mod names;

use std::sync::Arc;

use crate::context::Context;
use crate::key::{self, HashKey, Raw};
use crate::limiter::Limiter;
use crate::plan::{Level, Planner};
use crate::policy::diagnostics::{nearest, shown};
use crate::policy::model::{Algorithm, Limit, OperationId, Part, Policy, TierId};
use crate::policy::protection::{EventId, Penalty};
use crate::protection::counts::LevelBuilder;
use crate::request::{Request, RequestError};
use crate::store::Store;
use crate::units::Amount;

pub use names::KeyOwner;

/// The most keys of one subject.
const SUBJECT_KEYS_MAX: usize = 1_000;

/// A key that a subject has on a limit or a penalty, whether or not anything is counted there.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SubjectKey {
    /// The policy's name.
    pub policy: String,
    /// The limit's name; `None` for the key of a penalty.
    pub limit: Option<String>,
    /// The penalty's name; `None` for the key of a limit.
    pub penalty: Option<String>,
    /// What it is called in the store; the generated name in one that does not name its keys.
    pub name: Arc<str>,
    /// Where the store has it.
    pub level: Level,
}

impl<S: Store> Limiter<S> {
    /// The keys of a subject, as a request says it, on one limit or on all of its policy: those whose
    /// parts the request has, at least one of them because it says so. A tier or an operation that it
    /// does not say stands for each of them. Where it says its operation, or a path, the limits are
    /// those that it meets.
    ///
    /// # Errors
    /// The request cannot be understood; the limit is not known, or needs what the request does not
    /// say; there are too many keys.
    pub fn keys_of(
        &self,
        request: &Request<'_>,
        limit: Option<&str>,
    ) -> Result<Vec<SubjectKey>, RequestError> {
        let secret = self.secret();
        let (context, named) = (self.context(request)?, self.store().names_keys());
        let mut search = Search { secret: &secret, named, context, keys: Vec::new() };
        match limit {
            Some(name) => search.find_on_limit(name)?,
            None => search.find_on_limits()?,
        }
        Ok(search.keys)
    }

    /// As [`keys_of`](Self::keys_of), of the counts of one penalty or of all penalties.
    ///
    /// # Errors
    /// As [`keys_of`](Self::keys_of).
    pub fn penalty_keys_of(
        &self,
        request: &Request<'_>,
        penalty: Option<&str>,
    ) -> Result<Vec<SubjectKey>, RequestError> {
        let secret = self.secret();
        let (context, named) = (self.context(request)?, self.store().names_keys());
        let mut search = Search { secret: &secret, named, context, keys: Vec::new() };
        search.find_on_penalties(penalty)?;
        Ok(search.keys)
    }
}

/// The keys of one subject under one policy.
struct Search<'s> {
    secret: &'s HashKey,
    /// Whether the store calls keys by their names.
    named: bool,
    context: Context<'s>,
    /// The keys that are found.
    keys: Vec<SubjectKey>,
}

impl Search<'_> {
    fn find_on_limit(&mut self, name: &str) -> Result<(), RequestError> {
        let active = Arc::clone(&self.context.active);
        let policy = &*active.policy;
        let found = policy.limits.iter().position(|limit| limit.name == name);
        let names = policy.limits.iter().map(|limit| &*limit.name);
        let index = found.ok_or_else(|| unknown_name(policy, "limit", name, names))?;
        let limit = &policy.limits[index];
        self.check_parts("limit", name, &limit.by)?;
        self.add_limit(index, limit)
    }

    fn find_on_limits(&mut self) -> Result<(), RequestError> {
        let active = Arc::clone(&self.context.active);
        for (index, limit) in active.policy.limits.iter().enumerate() {
            if self.is_about(&limit.by) {
                self.add_limit(index, limit)?;
            }
        }
        Ok(())
    }

    /// On the penalty of this name, or on all.
    fn find_on_penalties(&mut self, name: Option<&str>) -> Result<(), RequestError> {
        let active = Arc::clone(&self.context.active);
        let penalties = &active.policy.protection.penalties;
        if let Some(name) = name {
            let found = penalties.iter().find(|penalty| penalty.name == name);
            let names = penalties.iter().map(|penalty| &*penalty.name);
            let found =
                found.ok_or_else(|| unknown_name(&active.policy, "penalty", name, names))?;
            self.check_parts("penalty", name, &found.by)?;
        }
        for (index, penalty) in penalties.iter().enumerate() {
            let is_selected = match name {
                Some(name) => penalty.name == name,
                None => self.is_about(&penalty.by),
            };
            if is_selected {
                self.add_keys(&penalty.by, false, |search| search.penalty_key(index, penalty))?;
            }
        }
        Ok(())
    }

    /// Refuses a limit or penalty whose parts the request does not say.
    fn check_parts(&self, field: &str, name: &str, by: &[Part]) -> Result<(), RequestError> {
        match by.iter().find(|part| !self.context.has(part)) {
            None => Ok(()),
            Some(part) => {
                let part = part.name(self.context.policy());
                let detail = format!("`{}` counts by `{part}`, which is not said", shown(name));
                Err(RequestError::new(field, detail))
            }
        }
    }

    /// True if the request has all parts of a key and states at least one of them. A key that all
    /// clients share is of no subject.
    fn is_about(&self, by: &[Part]) -> bool {
        let said = |part: &Part| match part {
            Part::Global => false,
            Part::Tier => self.context.stated_tier.is_some(),
            Part::Operation => self.says_operation(),
            part => self.context.has(part),
        };
        by.iter().all(|part| self.context.has(part)) && by.iter().any(said)
    }

    fn says_operation(&self) -> bool {
        self.context.request.operation.is_some() || self.context.request.path.is_some()
    }

    fn add_limit(&mut self, index: usize, limit: &Limit) -> Result<(), RequestError> {
        if limit.algorithm == Algorithm::Ceiling {
            return Ok(());
        }
        let has_tiers = limit.row == Some(Part::Tier);
        self.add_keys(&limit.by, has_tiers, |search| search.limit_key(index, limit))
    }

    /// Adds the subject's keys on one limit or penalty: of each tier and operation that the request does
    /// not say.
    fn add_keys(
        &mut self,
        by: &[Part],
        has_tiers: bool,
        make: impl Fn(&Self) -> Option<SubjectKey>,
    ) -> Result<(), RequestError> {
        let (tier, operation) = (self.context.tier, self.context.operation);
        for tier in self.tiers(has_tiers || by.contains(&Part::Tier), tier) {
            for operation in self.operations(by, operation) {
                (self.context.tier, self.context.operation) = (tier, operation);
                let Some(key) = make(self) else { continue };
                if self.keys.iter().any(|known| known.level.key == key.level.key) {
                    continue;
                }
                if self.keys.len() == SUBJECT_KEYS_MAX {
                    let detail = format!("has more than {SUBJECT_KEYS_MAX} keys; say a limit too");
                    return Err(RequestError::new("limit", detail));
                }
                self.keys.push(key);
            }
        }
        (self.context.tier, self.context.operation) = (tier, operation);
        Ok(())
    }

    /// The tiers that a key may be of.
    fn tiers(&self, matters: bool, own: TierId) -> Vec<TierId> {
        let names = self.context.policy().tiers.iter();
        match matters && self.context.stated_tier.is_none() {
            true => (0..).zip(names).map(|(id, _)| id).collect(),
            false => vec![own],
        }
    }

    fn operations(&self, by: &[Part], own: OperationId) -> Vec<OperationId> {
        let names = self.context.policy().operations.names().iter();
        match by.contains(&Part::Operation) && !self.says_operation() {
            true => (0..).zip(names).map(|(id, _)| id).collect(),
            false => vec![own],
        }
    }

    fn limit_key(&self, index: usize, limit: &Limit) -> Option<SubjectKey> {
        if self.says_operation() && !limit.when.holds(&self.context) {
            return None;
        }
        let policy = self.context.policy();
        let level = Planner::new(&self.context).keyed(index, limit)?;
        let name = match self.named {
            true => key::name(self.secret, limit, &self.context, Raw::Shown, || level.key),
            false => key::generated(limit, level.key),
        };
        let (policy, limit) = (policy.name.clone(), Some(limit.name.clone()));
        Some(SubjectKey { policy, limit, penalty: None, name: name.into(), level })
    }

    fn penalty_key(&self, index: usize, penalty: &Penalty) -> Option<SubjectKey> {
        let policy = self.context.policy();
        let may_happen = |id: &EventId| {
            let event = policy.protection.events.get(usize::from(*id));
            event.is_some_and(|event| event.when.holds(&self.context))
        };
        if self.says_operation() && !penalty.events.iter().any(may_happen) {
            return None;
        }
        let keys = &self.context.active.protection.penalties.get(index)?.count;
        let builder = LevelBuilder { context: &self.context, has_names: self.named };
        let (level, name) = builder.penalty_level(penalty, keys, Amount::ZERO);
        let name = name.unwrap_or_else(|| key::counted_name(&penalty.name, level.key));
        let (policy, penalty) = (policy.name.clone(), Some(penalty.name.clone()));
        Some(SubjectKey { policy, limit: None, penalty, name, level })
    }
}

fn unknown_name<'n>(
    policy: &Policy,
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'n str>,
) -> RequestError {
    let known: Vec<&str> = known.collect();
    let meant = nearest(name, &known).map(|word| format!("; did you mean `{word}`?"));
    let found = format!("found `{}`, expected a {what} of `{}`", shown(name), policy.name);
    RequestError::new(what, found + &meant.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "
tidegate: 1
name: shop
identity: { default_tier: free, anonymous_tier: guest, attributes: { amount: given } }
tiers: [guest, free, pro]
operations: { buy: POST /orders, look: GET /items }
limits:
  per-user:      { by: user, sliding_window: { guest: 1/h, free: 2/h, pro: 3/h } }
  per-address:   { by: ip, token_bucket: { guest: 1/h, free: 2/h, pro: 3/h } }
  per-call:      { by: [user, operation], fixed_window: 5/min }
  buying:        { when: buy, by: user, quota: 9/day, key: 'buy:{user:raw}' }
  everybody:     { by: global, token_bucket: 1000/s }
  each-tier:     { by: tier, total: 9 }
  largest:       { when: buy, by: user, ceiling: 100, value: amount }
events: { bad: { when: buy, status: 402 }, told: {} }
penalties:
  cards:  { event: bad, by: user, within: 1h, ladder: { 2: { delay: 1s } }, key: 'cards:{user}' }
  places: { event: told, by: [user, operation], within: 1h, ladder: { 2: { delay: 1s } } }
  hosts:  { event: told, by: ip, within: 1h, ladder: { 2: { delay: 1s } } }
";

    fn limiter() -> Limiter {
        let policy = Policy::parse("shop.yaml", POLICY).unwrap_or_else(|errors| panic!("{errors}"));
        Limiter::builder().policy(policy).hash_key(HashKey::new([3; 16])).build().unwrap()
    }

    /// How many keys there are on each limit.
    fn counted(request: &Request<'_>, limit: Option<&str>) -> Vec<(String, usize)> {
        let mut counted: Vec<(String, usize)> = Vec::new();
        for key in limiter().keys_of(request, limit).unwrap() {
            let limit = key.limit.unwrap();
            match counted.iter_mut().find(|(name, _)| *name == limit) {
                Some((_, count)) => *count += 1,
                None => counted.push((limit, 1)),
            }
        }
        counted
    }

    fn is(limits: &[(&str, usize)]) -> Vec<(String, usize)> {
        limits.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn a_user_has_one_key_on_each_limit_that_counts_users_and_none_of_everybodys() {
        let user = Request::default().user("u1");
        // The default operation, `buy` and `look`.
        assert_eq!(counted(&user, None), is(&[("per-user", 1), ("per-call", 3), ("buying", 1)]));
    }

    #[test]
    fn a_tier_that_is_not_said_is_each_of_them() {
        let address = Request::default().ip([192, 0, 2, 1].into());
        assert_eq!(counted(&address, None), is(&[("per-address", 3)]));
        assert_eq!(
            counted(&address.tier("pro"), None),
            is(&[("per-address", 1), ("each-tier", 1)])
        );
    }

    #[test]
    fn where_an_operation_is_said_only_the_limits_that_it_meets_count() {
        let looks = Request::new("GET", "/items").user("u1");
        assert_eq!(counted(&looks, None), is(&[("per-user", 1), ("per-call", 1)]));
        let buys = Request::operation("buy").user("u1");
        let expected = is(&[("per-user", 1), ("per-call", 1), ("buying", 1)]);
        assert_eq!(counted(&buys, None), expected);
    }

    #[test]
    fn keys_are_those_that_requests_are_charged_to() {
        let limiter = limiter();
        let request = Request::operation("buy").user("u1").attribute("amount", "1");
        assert!(limiter.check(&request).unwrap().is_allowed());
        let now = limiter.now();
        let keys = limiter.keys_of(&request, None).unwrap();
        assert_eq!(keys.len(), 3);
        for key in keys {
            let counted = limiter.store().key_usage(key.level.family, key.level.key, now);
            assert!(counted.is_some(), "{} was charged", key.name);
        }
    }

    #[test]
    fn a_subject_has_a_key_on_each_penalty_that_counts_by_its_parts() {
        let limiter = limiter();
        let found = |request: &Request<'_>, penalty: Option<&str>| {
            let keys = limiter.penalty_keys_of(request, penalty).unwrap();
            keys.into_iter().map(|key| key.penalty.unwrap()).collect::<Vec<_>>()
        };
        let user = Request::default().user("u1");
        assert_eq!(found(&user, None), ["cards", "places", "places", "places"]);
        assert_eq!(found(&user, Some("cards")), ["cards"]);
        let looks = Request::new("GET", "/items").user("u1");
        assert_eq!(found(&looks, None), ["places"]);
        let buys = Request::operation("buy").user("u1").attribute("amount", "1");
        limiter.record_status(&buys, 402).unwrap();
        let [key] = &*limiter.penalty_keys_of(&user, Some("cards")).unwrap() else { panic!() };
        let usage = limiter.store().key_usage(key.level.family, key.level.key, limiter.now());
        assert!(usage.is_some(), "{} was charged", key.name);
        let error = limiter.penalty_keys_of(&user, Some("hosts")).unwrap_err();
        assert_eq!(error.to_string(), "penalty: `hosts` counts by `ip`, which is not said");
        let error = limiter.penalty_keys_of(&user, Some("card")).unwrap_err();
        assert!(error.to_string().ends_with("did you mean `cards`?"), "{error}");
    }

    #[test]
    fn a_limit_may_be_named_and_what_it_lacks_is_told() {
        let user = Request::default().user("u1");
        assert_eq!(counted(&user, Some("buying")), is(&[("buying", 1)]));
        assert_eq!(counted(&user, Some("everybody")), is(&[("everybody", 1)]));
        let limiter = limiter();
        let told = limiter.keys_of(&user, Some("per-address")).unwrap_err();
        assert_eq!(told.to_string(), "limit: `per-address` counts by `ip`, which is not said");
        let told = limiter.keys_of(&user, Some("buyin")).unwrap_err();
        assert!(told.to_string().ends_with("did you mean `buying`?"), "{told}");
    }
}
