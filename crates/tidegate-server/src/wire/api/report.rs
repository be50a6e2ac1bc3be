//! `POST /v1/report`: what befell a subject, for penalties and ratios; or how loaded a service is.

use std::borrow::Cow;

use http::Response;
use serde::Serialize;
use serde_json::value::RawValue;
use tidegate::Report;
use tidegate::units::Amount;
use utoipa::ToSchema;

use super::Failure;
use super::call::Call;
use super::fields::{FieldError, Object, amount, is_null, text};
use crate::app::App;
use crate::body::Body;
use crate::respond;

/// The fields of a report beside those that say whom it is about.
const OWN: [&str; 3] = ["event", "value", "load"];

/// Counts an event, or takes a load.
pub(super) async fn report(app: &App, body: &[u8]) -> Result<Response<Body>, Failure> {
    let said = Said::parse(body)?;
    let Some(event) = said.event else {
        let load = said.load.ok_or_else(|| FieldError::new("event", "is missing"))?;
        app.load.report(load.micros(), app.now().steady_us);
        return Ok(respond::json(json(&Answer::default())));
    };
    let mut report = Report::new(event, super::identified(app, said.call));
    report.value = said.value;
    let reported = app.report(&report).await?;
    Ok(respond::json(json(&Answer {
        delay_ms: reported.delay_us.div_ceil(1_000),
        warnings: &reported.warnings,
        banned: reported.banned,
        challenged: reported.challenged,
        flags: &reported.flags,
        degraded: reported.degraded,
    })))
}

/// What follows from an event.
#[derive(Default, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Consequences)]
pub(super) struct Answer<'r> {
    /// How long the application should hold its answer.
    delay_ms: u64,
    /// What the ladder says, such as `captcha`.
    warnings: &'r [String],
    /// The subject is banned from now on.
    banned: bool,
    /// The subject is to solve a challenge.
    challenged: bool,
    /// The flags that the subject was given.
    flags: &'r [String],
    /// The store that nodes share is lost: this node counts alone.
    degraded: bool,
}

/// A report as it was said.
struct Said<'a> {
    event: Option<Cow<'a, str>>,
    value: Option<Amount>,
    load: Option<Amount>,
    call: Call<'a>,
}

impl<'a> Said<'a> {
    fn parse(body: &'a [u8]) -> Result<Self, FieldError> {
        let Object(members) = Object::parse(body)?;
        let is_own = |name: &str| OWN.contains(&name);
        let (own, of_call): (Vec<_>, Vec<_>) =
            members.into_iter().partition(|(name, _)| is_own(name));
        let (mut event, mut value, mut load) = (None, None, None);
        for (name, said) in own.iter().filter(|(_, said)| !is_null(said)) {
            match &**name {
                "event" => event = Some(text(name, said)?),
                "value" => value = Some(amount(name, said)?),
                _ => load = Some(share(name, said)?),
            }
        }
        if load.is_some() && (event.is_some() || value.is_some() || !of_call.is_empty()) {
            let detail = "is of a service, not of a subject: report it alone";
            return Err(FieldError::new("load", detail));
        }
        Ok(Self { event, value, load, call: Call::report(&Object(of_call))? })
    }
}

/// A load: 0 for none, 1 for all that there is.
fn share(field: &str, value: &RawValue) -> Result<Amount, FieldError> {
    let load = amount(field, value)?;
    let expected = || FieldError::new(field, "expected a load from 0 to 1, such as 0.85");
    if load <= Amount::ONE { Ok(load) } else { Err(expected()) }
}

fn json(answer: &Answer<'_>) -> Vec<u8> {
    // Strings and numbers into memory: neither can fail.
    serde_json::to_vec(answer).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field_of(text: &str) -> Option<String> {
        Said::parse(text.as_bytes()).err().map(|error| error.field)
    }

    #[test]
    fn what_is_wrong_is_told_with_its_field() {
        for (text, field) in [
            (r#"{"event":1}"#, "event"),
            (r#"{"event":"e","value":-1}"#, "value"),
            (r#"{"event":"e","cost":1}"#, "cost"),
            (r#"{"event":"e","reserve":true}"#, "reserve"),
            (r#"{"event":"e","max_wait_ms":1}"#, "max_wait_ms"),
            (r#"{"event":"e","usr":"u"}"#, "usr"),
            (r#"{"load":1.5}"#, "load"),
            (r#"{"load":0.5,"event":"e"}"#, "load"),
            (r#"{"load":0.5,"user":"u"}"#, "load"),
        ] {
            assert_eq!(field_of(text).as_deref(), Some(field), "{text}");
        }
    }

    #[test]
    fn a_report_says_what_happened_to_whom() {
        let text =
            br#"{"event":"order","user":7,"attributes":{"a":"b"},"value":"12.5","load":null}"#;
        let said = Said::parse(text).unwrap();
        assert_eq!(said.event.as_deref(), Some("order"));
        assert_eq!(said.value, Some(Amount::parse("12.5").unwrap()));
        assert_eq!(said.call.request.user.as_deref(), Some("7"));
        assert_eq!(said.call.request.attributes, [("a".into(), "b".into())]);
        assert_eq!(said.load, None);
    }
}
