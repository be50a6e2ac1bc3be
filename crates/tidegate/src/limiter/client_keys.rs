//! Whom a token is for: what a client was given, nobody else can use.

use std::net::IpAddr;
use std::sync::Arc;

use super::Limiter;
use crate::context::Context;
use crate::key::Key;
use crate::policy::Policy;
use crate::precheck::{is_blocked, is_exempt};
use crate::store::Store;

/// A client under a policy, as keyed hashes that every node makes alike.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientKeys {
    /// The policy that decides the client's requests.
    pub policy: Arc<Policy>,
    /// That policy, by its name.
    pub policy_key: Key,
    /// The client: its user, or else its address as limits see it.
    pub client_key: Key,
    /// The client's address.
    pub address: Option<IpAddr>,
}

impl<S: Store> Limiter<S> {
    /// Whom a token that is given for a request is for. `None` where nothing tells its client from
    /// others.
    #[must_use]
    pub fn client_keys(&self, context: &Context<'_>) -> Option<ClientKeys> {
        let policy = &context.active.policy;
        let network = context.client_network();
        let keys = self.secret().client_keys(&policy.name, context.user, network.as_ref());
        keys.map(|(policy_key, client_key)| ClientKeys {
            policy: Arc::clone(policy),
            policy_key,
            client_key,
            address: context.address,
        })
    }

    /// True if the client of a request is blocked or banned now, whatever it asks for. Nothing is counted.
    #[must_use]
    pub fn is_blocked_or_banned(&self, context: &Context<'_>) -> bool {
        let bans = &context.active.protection.bans;
        let is_banned = || bans.find(&self.inner.marks, context, self.now()).is_some();
        !is_exempt(context) && is_blocked(context) || is_banned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::HashKey;
    use crate::request::Request;

    fn limiter(secret: u8) -> Limiter {
        let policy = |name: &str| {
            let text = format!("{{tidegate: 1, name: {name}}}");
            Arc::new(Policy::parse("p.yaml", &text).unwrap())
        };
        let builder = Limiter::builder().policy(policy("one")).policy(policy("other"));
        builder.hash_key(HashKey::new([secret; 16])).build().unwrap()
    }

    fn keys(limiter: &Limiter, request: &Request<'_>) -> (Key, Key) {
        let context = limiter.context(request).unwrap();
        let client_keys = limiter.client_keys(&context).unwrap();
        (client_keys.policy_key, client_keys.client_key)
    }

    #[test]
    fn a_bearer_is_the_same_on_every_node_and_another_for_each_client_and_policy() {
        let request = || Request::new("GET", "/");
        let address = |text: &str| request().ip(text.parse().unwrap());
        let node = limiter(1);
        let all = [
            keys(&node, &request().user("u1")),
            keys(&node, &request().user("u2")),
            keys(&node, &address("192.0.2.1")),
            keys(&node, &address("192.0.2.2")),
            keys(&node, &request().user("192.0.2.1")),
            keys(&node, &address("2001:db8::1")),
            keys(&node, &request().user("u1").policy("other")),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| other.1 != one.1), "{at}");
        }
        assert_ne!(all[0].0, all[6].0);
        assert_eq!(all[0].0, all[1].0);
        assert_eq!(all[0], keys(&limiter(1), &address("192.0.2.9").user("u1")), "a user moves");
        assert_eq!(all[5], keys(&node, &address("2001:db8::2")), "one client is one network");
        assert_ne!(all[0], keys(&limiter(2), &request().user("u1")));
    }

    #[test]
    fn who_is_nobody_is_no_bearer() {
        let node = limiter(1);
        let request = Request::new("GET", "/");
        assert!(node.client_keys(&node.context(&request).unwrap()).is_none());
    }
}
