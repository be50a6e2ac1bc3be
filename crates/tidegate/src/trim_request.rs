//! A request without what its policy does not read.

use crate::context::Context;
use crate::identity::attribute::AttributeValue;
use crate::request::Request;

impl<'r> Context<'r> {
    /// A request as its policy reads it, to be kept until its lease is settled. Headers and attributes
    /// that the policy does not know are left out, and attributes stand in for the body, the query and
    /// the cookies that they are read from.
    #[must_use]
    pub fn trim_request(&self) -> Request<'r> {
        let (policy, mut trimmed) = (self.policy(), self.trim_head());
        for (id, declared) in (0..).zip(&policy.attributes) {
            if !declared.source.is_parsed() || self.overrides_source(id) {
                continue;
            }
            let name = policy.attribute_names.name(id).to_owned();
            match self.find(id) {
                AttributeValue::Absent => {}
                AttributeValue::Text(value) => {
                    trimmed.attributes.push((name.into(), value.into_owned().into()));
                }
                AttributeValue::Unreadable(why) => trimmed.unreadable.push((name.into(), why)),
            }
        }
        trimmed
    }

    /// The request without body, query and what they are parsed with, and without headers and attributes
    /// that the policy does not know.
    pub(crate) fn trim_head(&self) -> Request<'r> {
        let (policy, request) = (self.policy(), self.request);
        let mut trimmed = request.clone();
        let has_claims = request.claims.is_some();
        trimmed.headers.retain(|(name, _)| {
            has_claims && name.eq_ignore_ascii_case("authorization")
                || policy.headers_kept.iter().any(|kept| name.eq_ignore_ascii_case(kept))
        });
        trimmed.attributes.retain(|(name, _)| policy.attribute_names.id(name).is_some());
        trimmed.body = None;
        let query = trimmed.path.as_deref().and_then(|path| path.find(['?', '#']));
        if let (Some(path), Some(query)) = (&mut trimmed.path, query) {
            path.to_mut().truncate(query);
        }
        trimmed
    }
}

#[cfg(test)]
mod tests {
    use crate::{Limiter, Policy, Request};

    #[test]
    fn what_the_policy_does_not_read_is_left_out() {
        let text = "
tidegate: 1
name: shop
identity:
  attributes:
    email: { body: /email, fold: true }
    page: { query: page }
    said: given
    agent: { header: User-Agent }
limits:
  logins: { by: [email, page, said, agent], sliding_window: 5/min }
";
        let policy = Policy::parse("shop.yaml", text).unwrap_or_else(|errors| panic!("{errors}"));
        let limiter = Limiter::new(policy);
        let pad = "x".repeat(5_000);
        let request = Request::new("POST", format!("/login?page=7&pad={pad}"))
            .header("user-agent", "curl")
            .header("Cookie", &*pad)
            .attribute("said", "s")
            .attribute("pad", &*pad)
            .body(format!(r#"{{"pad":"{pad}","email":"A@example.com"}}"#).into_bytes());
        let trimmed = limiter.context(&request).unwrap().trim_request();
        assert_eq!(trimmed.path.as_deref(), Some("/login"));
        assert_eq!(trimmed.headers, [("user-agent".into(), "curl".into())]);
        let attributes: Vec<(&str, &str)> =
            trimmed.attributes.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(attributes, [("said", "s"), ("email", "a@example.com"), ("page", "7")]);
        assert_eq!(trimmed.body, None);
        for used in 1..=5 {
            let request = if used % 2 == 0 { &request } else { &trimmed };
            assert!(limiter.check(request).unwrap().is_allowed(), "{used}");
        }
        assert!(!limiter.check(&request).unwrap().is_allowed(), "both are one");
    }
}
