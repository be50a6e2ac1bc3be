//! A request without what its policy does not read.

use super::Limiter;
use crate::policy::model::Source;
use crate::request::{Request, RequestError};
use crate::store::Store;

impl<S: Store> Limiter<S> {
    /// A request as its policy reads it, for whoever keeps it until it is answered: without headers
    /// and attributes that the policy does not know, and with the attributes that are read from its
    /// body and query instead of these.
    ///
    /// # Errors
    /// The request cannot be understood.
    pub fn pared<'r>(&self, request: &Request<'r>) -> Result<Request<'r>, RequestError> {
        let context = self.context(request)?;
        let policy = context.policy();
        let mut pared = request.clone();
        let has_claims = request.claims.is_some();
        pared.headers.retain(|(name, _)| {
            has_claims && name.eq_ignore_ascii_case("authorization")
                || policy.headers_read().iter().any(|read| name.eq_ignore_ascii_case(read))
        });
        pared.attributes.retain(|(name, _)| policy.attribute_names.id(name).is_some());
        for (id, declared) in (0..).zip(&policy.attributes) {
            let is_read = matches!(declared.source, Source::Body(_) | Source::Query(_));
            if is_read
                && !context.overrides_source(id)
                && let Some(value) = context.attribute(id)
            {
                let name = policy.attribute_names.name(id).to_owned();
                pared.attributes.push((name.into(), value.into_owned().into()));
            }
        }
        pared.body = None;
        let query = pared.path.as_deref().and_then(|path| path.find(['?', '#']));
        if let (Some(path), Some(query)) = (&mut pared.path, query) {
            path.to_mut().truncate(query);
        }
        Ok(pared)
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
        let pared = limiter.pared(&request).unwrap();
        assert_eq!(pared.path.as_deref(), Some("/login"));
        assert_eq!(pared.headers, [("user-agent".into(), "curl".into())]);
        let attributes: Vec<(&str, &str)> =
            pared.attributes.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(attributes, [("said", "s"), ("email", "a@example.com"), ("page", "7")]);
        assert_eq!(pared.body, None);
        for used in 1..=5 {
            let request = if used % 2 == 0 { &request } else { &pared };
            assert!(limiter.check(request).unwrap().is_allowed(), "{used}");
        }
        assert!(!limiter.check(&request).unwrap().is_allowed(), "both are one");
    }
}
