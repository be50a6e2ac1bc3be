//! A request that was checked over the API, kept with its lease: the status that it is settled with may
//! make an event.

use std::borrow::Cow;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use tidegate::engine::Context;
use tidegate::{Decision, Request, Unreadable};

use crate::app::App;

/// A request of which the policy reads more is not kept: its lease would travel with all of it.
const BYTES_MAX: usize = 4 * 1024;
/// What a pair takes besides its texts.
const PAIR_BYTES: usize = 8;

type Pair = (String, String);

/// The policy reads too much of a request for it to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestTooLarge;

/// What a caller said of a request, as far as the policy reads it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReservedRequest {
    policy: Option<String>,
    method: Option<String>,
    path: Option<String>,
    ip: Option<IpAddr>,
    user: Option<String>,
    tier: Option<String>,
    internal: bool,
    country: Option<String>,
    operation: Option<String>,
    attributes: Vec<Pair>,
    headers: Vec<Pair>,
    /// Attributes that could not be read, with the name of the reason.
    unreadable: Vec<Pair>,
}

impl ReservedRequest {
    /// The request, if the status of its answer may make an event; else `None`.
    pub(crate) fn of(
        decision: &Decision,
        context: &Context<'_>,
    ) -> Result<Option<Box<Self>>, RequestTooLarge> {
        if !decision.sees_answers() {
            return Ok(None);
        }
        let request = context.trim_request();
        let text = |text: &Option<Cow<'_, str>>| text.as_deref().map(str::to_owned);
        let pairs = |pairs: &[(Cow<'_, str>, Cow<'_, str>)]| {
            pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
        };
        let reserved = Self {
            policy: text(&request.policy),
            method: text(&request.method),
            path: text(&request.path),
            ip: request.ip,
            user: text(&request.user),
            tier: text(&request.tier),
            internal: request.internal,
            country: text(&request.country),
            operation: text(&request.operation),
            attributes: pairs(&request.attributes),
            headers: pairs(&request.headers),
            unreadable: request
                .unreadable
                .iter()
                .map(|(name, why)| (name.to_string(), why.name().to_owned()))
                .collect(),
        };
        if reserved.bytes() > BYTES_MAX {
            Err(RequestTooLarge)
        } else {
            Ok(Some(Box::new(reserved)))
        }
    }

    /// The request, as it is decided.
    pub(crate) fn request<'r>(&'r self, app: &'r App) -> Request<'r> {
        fn text(text: &Option<String>) -> Option<Cow<'_, str>> {
            text.as_deref().map(Cow::Borrowed)
        }
        fn pairs(pairs: &[Pair]) -> Vec<(Cow<'_, str>, Cow<'_, str>)> {
            pairs
                .iter()
                .map(|(name, value)| (name.as_str().into(), value.as_str().into()))
                .collect()
        }
        let mut request = Request::default().locate(&app.countries);
        request.policy = text(&self.policy);
        request.method = text(&self.method);
        request.path = text(&self.path);
        request.ip = self.ip;
        request.user = text(&self.user);
        request.tier = text(&self.tier);
        request.internal = self.internal;
        request.country = text(&self.country);
        request.operation = text(&self.operation);
        request.attributes = pairs(&self.attributes);
        request.headers = pairs(&self.headers);
        let unreadable =
            |(name, why): &'r Pair| Some((Cow::Borrowed(name.as_str()), Unreadable::of_name(why)?));
        request.unreadable = self.unreadable.iter().filter_map(unreadable).collect();
        let is_token = |(name, _): &&Pair| name.eq_ignore_ascii_case("authorization");
        let token = self.headers.iter().find(is_token);
        request.claims = token.and_then(|(_, token)| app.claims_of(token));
        request
    }

    fn bytes(&self) -> usize {
        let texts = [&self.policy, &self.method, &self.path, &self.user, &self.tier];
        let texts = texts.into_iter().chain([&self.country, &self.operation]);
        let texts = texts.flatten().map(String::len).sum::<usize>();
        let pairs = self.attributes.iter().chain(&self.headers).chain(&self.unreadable);
        let bytes = |(name, value): &Pair| name.len() + value.len() + PAIR_BYTES;
        texts + pairs.map(bytes).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use tidegate::Policy;

    use super::*;

    const POLICY: &str = "
tidegate: 1
name: shop
identity:
  attributes:
    email: { body: /email }
events:
  wrong_password: { status: 401 }
penalties:
  guessing: { event: wrong_password, by: email, within: 15min, ladder: { 1: { ban: 15min } } }
";

    fn app() -> App {
        let policy = Policy::parse("shop.yaml", POLICY);
        App::new(policy.unwrap_or_else(|errors| panic!("{errors}")))
    }

    fn reserved(
        app: &App,
        request: &Request<'_>,
    ) -> Result<Option<Box<ReservedRequest>>, RequestTooLarge> {
        let decision = crate::engine::tests::check(&app.engine, request).unwrap();
        ReservedRequest::of(&decision, &app.engine.context(request).unwrap())
    }

    #[tokio::test]
    async fn padding_does_not_keep_a_status_from_being_seen() {
        let (app, pad) = (app(), "x".repeat(BYTES_MAX));
        let request = Request::new("POST", format!("/login?pad={pad}"))
            .ip([192, 0, 2, 1].into())
            .header("cookie", &*pad)
            .body(format!(r#"{{"pad":"{pad}","email":"a@example.com"}}"#).into_bytes());
        let kept = reserved(&app, &request).unwrap().unwrap();
        let reported = app.engine.record_status_async(&kept.request(&app), 401).await.unwrap();
        assert_eq!(reported.events, ["wrong_password"]);
        assert!(app.engine.is_blocked_or_banned(&app.engine.context(&request).unwrap()));
    }

    #[test]
    fn what_could_not_be_read_stays_so_until_the_lease_is_settled() {
        let app = app();
        let request =
            Request::new("POST", "/login").header("content-type", "text/plain").body(b"x");
        let kept = reserved(&app, &request).unwrap().unwrap();
        assert_eq!(kept.request(&app).unreadable, [("email".into(), Unreadable::Type)]);
    }

    #[test]
    fn what_is_read_and_too_large_is_told() {
        let (app, pad) = (app(), "x".repeat(BYTES_MAX));
        for request in [
            Request::new("POST", "/login").body(format!(r#"{{"email":"{pad}"}}"#).into_bytes()),
            Request::new("POST", "/login").user(&*pad),
            Request::new("POST", "/login").country(&*pad),
        ] {
            assert_eq!(reserved(&app, &request), Err(RequestTooLarge));
        }
        assert!(reserved(&app, &Request::new("POST", "/login")).unwrap().is_some());
    }
}
