//! The identity behind a decision, for logs. It is computed only on demand, so that a decision
//! carries no copy of it.

use crate::context::Context;
use crate::decision::Decision;
use crate::key::{self, HashKey, LimitKeys, Raw};
use crate::limiter::Limiter;
use crate::policy::model::Part;
use crate::protection::marks::Subject;
use crate::store::Store;

/// How identities are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityFormat {
    /// As hashes under the deployment's secret: the same subject has the same hash on every node
    /// and after every restart, and the identity cannot be guessed.
    Hashed,
    /// As they are.
    Plain,
}

/// The identity behind a decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogIdentity {
    /// The user, if there is one.
    pub user: Option<String>,
    /// The client's address as limits see it: an IPv6 client is its prefix.
    pub address: Option<String>,
    /// The key of the limit that the decision names, as its store calls it.
    pub key: Option<String>,
}

impl<S: Store> Limiter<S> {
    /// The identity behind a decision. The context is that of the decision's request.
    #[must_use]
    pub fn log_identity(
        &self,
        context: &Context<'_>,
        decision: &Decision,
        format: IdentityFormat,
    ) -> LogIdentity {
        let policy = context.policy();
        let secret = &*self.secret();
        let tell = |part: Part| {
            let value = context.part(&part)?;
            Some(format_value(secret, &part.name(policy), &value, format))
        };
        let raw = match format {
            IdentityFormat::Plain => Raw::Shown,
            IdentityFormat::Hashed => Raw::Hashed,
        };
        let limit = decision.limit().and_then(|report| decision.limit_of(report));
        let name = |limit| {
            let key = || LimitKeys::new(secret, policy, limit).key(limit, context);
            key::name(secret, limit, context, raw, key)
        };
        LogIdentity { user: tell(Part::User), address: tell(Part::Ip), key: limit.map(name) }
    }
}

impl<S: Store> Limiter<S> {
    /// The subject of a mark or a notice, part by part, as logs and messages have it.
    #[must_use]
    pub fn format_subject(
        &self,
        subject: &Subject,
        format: IdentityFormat,
    ) -> Vec<(String, String)> {
        let secret = &*self.secret();
        let tell = |(part, value): (&str, &str)| {
            (part.to_owned(), format_value(secret, part, value, format))
        };
        subject.parts().map(tell).collect()
    }
}

fn format_value(secret: &HashKey, part: &str, value: &str, format: IdentityFormat) -> String {
    match format {
        IdentityFormat::Plain => value.to_owned(),
        IdentityFormat::Hashed => format!("{:016x}", key::hashed(secret, part, value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use crate::request::Request;

    fn limiter(secret: u8) -> Limiter {
        let text = "{tidegate: 1, name: api, limits: {
            a: {by: user, total: 1, key: 'rl:{user:raw}'}, b: {by: ip, total: 9}}}";
        let policy = Policy::parse("api.yaml", text).unwrap_or_else(|errors| panic!("{errors}"));
        Limiter::builder().policy(policy).hash_key(HashKey::new([secret; 16])).build().unwrap()
    }

    fn log_identity(limiter: &Limiter, format: IdentityFormat) -> LogIdentity {
        let request = Request::new("GET", "/").user("u1").ip([192, 0, 2, 1].into());
        let decision = limiter.check(&request).unwrap();
        limiter.log_identity(&limiter.context(&request).unwrap(), &decision, format)
    }

    #[test]
    fn a_hashed_subject_shows_nothing_of_itself_not_even_in_a_raw_key() {
        let hashed = log_identity(&limiter(1), IdentityFormat::Hashed);
        let told = limiter(1).format_subject(&Subject::user("u1"), IdentityFormat::Hashed);
        let user = hashed.user.clone().unwrap();
        assert_eq!(told, [("user".to_owned(), user)], "messages and logs agree");
        let shown = format!("{hashed:?}");
        assert!(!shown.contains("u1") && !shown.contains("192.0.2"), "{shown}");
        assert_eq!(hashed, log_identity(&limiter(1), IdentityFormat::Hashed));
        assert_ne!(hashed, log_identity(&limiter(2), IdentityFormat::Hashed));
        let key = hashed.key.unwrap();
        assert_eq!(key, format!("rl:{}", hashed.user.unwrap()));
    }

    #[test]
    fn a_plain_subject_is_told_as_the_store_has_it() {
        let plain = log_identity(&limiter(1), IdentityFormat::Plain);
        assert_eq!(plain.user.as_deref(), Some("u1"));
        assert_eq!(plain.address.as_deref(), Some("192.0.2.1"));
        assert_eq!(plain.key.as_deref(), Some("rl:u1"));
    }
}
