//! `POST /v1/report`: an event of a subject, for penalties and ratios, or the load of a service.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::value::RawValue;
use tidegate::{Amount, Consequences};
use utoipa::ToSchema;

use super::check::to_request;
use super::check_body::CheckBody;
use crate::app::App;
use crate::wire::endpoint;
use crate::wire::fields::{FieldError, Object, amount, text};
use crate::wire::json::{json_response, millis_up};

/// Counts an event, or takes a load.
pub(in crate::wire) async fn report(app: &App, body: &[u8]) -> endpoint::Answer {
    let ReportBody { event, value, load, subject } = ReportBody::parse(body)?;
    let Some(event) = event else {
        let load = load.ok_or_else(|| FieldError::new("event", "is missing"))?;
        app.load.report(load.micros(), app.now().steady_us);
        return Ok(json_response(&ConsequencesView::default()));
    };
    let request = to_request(app, subject);
    let context = app.context(&request)?;
    let consequences = app.report(&context, &event, value).await?;
    Ok(json_response(&ConsequencesView::of(&consequences)))
}

/// What follows from an event, as JSON.
#[derive(Default, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Consequences)]
pub(in crate::wire) struct ConsequencesView<'r> {
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
    pub(super) degraded: bool,
}

impl<'r> ConsequencesView<'r> {
    pub(super) fn of(consequences: &'r Consequences) -> Self {
        Self {
            delay_ms: millis_up(consequences.delay),
            warnings: &consequences.warnings,
            banned: consequences.banned,
            challenged: consequences.challenged,
            flags: &consequences.flags,
            degraded: consequences.degraded,
        }
    }
}

/// The body of a report: an event of a subject, or a load alone.
struct ReportBody<'a> {
    event: Option<Cow<'a, str>>,
    value: Option<Amount>,
    load: Option<Amount>,
    subject: CheckBody<'a>,
}

impl<'a> ReportBody<'a> {
    fn parse(body: &'a [u8]) -> Result<Self, FieldError> {
        let mut fields = Object::parse(body)?;
        let (event, value) = (fields.take("event", text)?, fields.take("value", amount)?);
        let load = fields.take("load", share)?;
        if load.is_some() && (event.is_some() || value.is_some() || !fields.0.is_empty()) {
            let detail = "is of a service, not of a subject: report it alone";
            return Err(FieldError::new("load", detail));
        }
        Ok(Self { event, value, load, subject: CheckBody::from_report_fields(&fields)? })
    }
}

/// A load from 0, idle, to 1, saturated.
fn share(field: &str, value: &RawValue) -> Result<Amount, FieldError> {
    let load = amount(field, value)?;
    let expected = || FieldError::new(field, "expected a load from 0 to 1, such as 0.85");
    if load <= Amount::ONE { Ok(load) } else { Err(expected()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field_of(text: &str) -> Option<String> {
        ReportBody::parse(text.as_bytes()).err().map(|error| error.field)
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
        let report = ReportBody::parse(text).unwrap();
        assert_eq!(report.event.as_deref(), Some("order"));
        assert_eq!(report.value, Some(Amount::parse("12.5").unwrap()));
        assert_eq!(report.subject.request.user.as_deref(), Some("7"));
        assert_eq!(report.subject.request.attributes, [("a".into(), "b".into())]);
        assert_eq!(report.load, None);
    }
}
