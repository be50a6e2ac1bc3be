//! A context that outlives its request: the upstream's answer may come much later, and makes events of
//! the same client and operation, under the same policy.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, OnceLock};

use super::{Context, ReadAttributes};
use crate::active_policy::ActivePolicy;
use crate::clock::Now;
use crate::operation::{Match, NormalPath};
use crate::policy::model::{OperationId, TierId};
use crate::request::Request;

/// What a context found of its request, without the parts of the request that the policy does not read.
#[derive(Debug)]
pub struct OwnedContext {
    active: Arc<ActivePolicy>,
    /// The request with what was found: address, user, stated tier, method in upper case, country.
    request: Request<'static>,
    tier: TierId,
    internal: bool,
    operation: OperationId,
    path: Option<NormalPath<'static>>,
    headers_believed: bool,
    matched: Option<Match>,
    /// The attributes that were parsed out of what is left out.
    attributes: ReadAttributes,
}

impl Context<'_> {
    /// The same, without borrowing from the request.
    #[must_use]
    pub fn to_owned_context(&self) -> OwnedContext {
        let declared = (0..).zip(&self.policy().attributes);
        let parsed = declared.filter(|(_, declared)| declared.is_parsed());
        let attributes = parsed.map(|(id, _)| (id, self.find(id).into_owned())).collect();
        let text = |text: &str| Cow::Owned(text.to_owned());
        let mut request = self.trim_head().into_owned();
        request.ip = self.address;
        request.user = self.user.map(text);
        request.tier = self.stated_tier.map(text);
        request.method = self.method().map(text);
        request.country = self.country().as_deref().map(text);
        request.pass = self.has_pass;
        OwnedContext {
            active: Arc::clone(&self.active),
            request,
            tier: self.tier,
            internal: self.internal,
            operation: self.operation,
            path: self.path.clone().map(NormalPath::into_owned),
            headers_believed: self.headers_believed,
            matched: self.matched,
            attributes,
        }
    }
}

impl OwnedContext {
    /// The context at another time. Nothing is found again.
    pub(crate) fn context(&self, now: Now) -> Context<'_> {
        let request = &self.request;
        Context {
            active: Arc::clone(&self.active),
            request,
            now,
            body: None,
            has_pass: request.pass,
            address: request.ip,
            user: request.user.as_deref(),
            tier: self.tier,
            stated_tier: request.tier.as_deref(),
            internal: self.internal,
            operation: self.operation,
            method: request.method.as_deref().map(Cow::Borrowed),
            path: self.path.clone(),
            headers_believed: self.headers_believed,
            matched: self.matched,
            read_attributes: Mutex::new(self.attributes.clone()),
            address_country: OnceLock::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::limiter::block_on_ready;
    use crate::{Limiter, Policy, Request};

    fn policy(status: u16) -> Policy {
        let text = format!(
            "
tidegate: 1
name: shop
identity:
  trusted_proxies: [192.0.2.0/24]
  user: {{ header: X-User }}
  attributes:
    email: {{ body: /email, fold: true }}
    page: {{ query: page }}
operations: {{ login: \"POST /logins/{{room}}\" }}
events: {{ refused: {{ when: login, status: {status} }} }}
penalties:
  guessing: {{ event: refused, by: [ip, user, email, page, room], within: 1h, ladder: {{ 1: {{ ban: 1h }} }} }}
"
        );
        Policy::parse("shop.yaml", &text).unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn request() -> Request<'static> {
        Request::new("post", "/logins/r1?page=7&pad=x")
            .peer([192, 0, 2, 1].into())
            .header("X-Forwarded-For", "203.0.113.7")
            .header("X-User", "u1")
            .header("Cookie", "pad")
            .header("Content-Type", "application/json")
            .body(br#"{"email":" A@example.com","pad":1}"#.to_vec())
    }

    #[test]
    fn an_answer_makes_events_of_the_client_policy_and_operation_that_were_decided() {
        let limiter = Limiter::new(policy(401));
        let owned = {
            let request = request();
            limiter.context(&request).unwrap().to_owned_context()
        };
        assert!(owned.request.body.is_none());
        assert_eq!(owned.request.path.as_deref(), Some("/logins/r1"));
        let kept = |name: &str| name != "Cookie" && name != "Content-Type";
        assert!(owned.request.headers.iter().all(|(name, _)| kept(name)));
        // From now on another status is an event.
        limiter.replace_policies(vec![policy(418).into()]).unwrap();
        let recorded = block_on_ready(limiter.record_answer_async(&owned, 401));
        assert_eq!((recorded.events, recorded.banned), (vec!["refused".to_owned()], true));
        assert_eq!(limiter.check(&request()).unwrap().outcome, crate::Outcome::Banned);
        let other = request().body(br#"{"email":"b@example.com"}"#.to_vec());
        assert!(limiter.check(&other).unwrap().is_allowed());
    }
}
