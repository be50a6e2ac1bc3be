//! The message to a webhook: a JSON object with a stable id, signed together with the time of sending.

use std::borrow::Cow;
use std::collections::BTreeMap;

use aws_lc_rs::hmac;
use bytes::Bytes;
use data_encoding::HEXLOWER;
use serde::Serialize;
use tidegate::engine::Notice;
use tidegate::engine::policy::{MessageTemplate, MessageValue};

use crate::telemetry::timestamp;

/// A message. Its id and body are the same in every attempt.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) id: String,
    pub(super) body: Bytes,
}

/// The body. Fields are only ever added.
#[derive(Serialize)]
struct Payload<'n> {
    id: &'n str,
    event: &'static str,
    policy: &'n str,
    #[serde(skip_serializing_if = "Option::is_none")]
    penalty: Option<&'n str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<&'n str>,
    subject: BTreeMap<&'n str, &'n str>,
    action: &'n str,
    count: u64,
    until: Option<String>,
    timestamp: String,
}

impl Payload<'_> {
    /// The value of a placeholder of a webhook's own body.
    fn value(&self, word: &str) -> Option<MessageValue<'_>> {
        let text = |text| Some(MessageValue::Text(Cow::Borrowed(text)));
        match word {
            "id" => text(self.id),
            "event" => text(self.event),
            "policy" => text(self.policy),
            "penalty" => self.penalty.or(self.ratio).and_then(text),
            "subject" => {
                let parts = self.subject.iter().map(|(part, value)| format!("{part} {value}"));
                Some(MessageValue::Text(parts.collect::<Vec<_>>().join(", ").into()))
            }
            "action" => text(self.action),
            "count" => Some(MessageValue::Number(self.count)),
            "until" => self.until.as_deref().and_then(text),
            "timestamp" => text(&self.timestamp),
            part => self.subject.get(part).copied().and_then(text),
        }
    }
}

impl Message {
    /// A message with an id of its own.
    pub(super) fn new(
        notice: &Notice,
        subject: &[(String, String)],
        is_ratio: bool,
        template: Option<&MessageTemplate>,
    ) -> Self {
        let id = format!("{:032x}", fastrand::u128(..));
        let (event, penalty, ratio) = if is_ratio {
            ("ratio", None, Some(&*notice.source))
        } else {
            ("penalty", Some(&*notice.source), None)
        };
        let subject = subject.iter().map(|(part, value)| (&**part, &**value)).collect();
        let payload = Payload {
            id: &id,
            event,
            policy: &notice.policy,
            penalty,
            ratio,
            subject,
            action: notice.action,
            count: notice.count,
            until: notice.until_unix_us.map(timestamp),
            timestamp: timestamp(notice.at_unix_us),
        };
        // Strings and numbers: nothing of it can fail.
        let body = match template {
            Some(template) => template.fill(|word| payload.value(word)).into_bytes(),
            None => serde_json::to_vec(&payload).unwrap_or_default(),
        };
        Self { body: Bytes::from(body), id }
    }

    /// The signature shows that the holder of the secret sent this body, and when. So the receiver
    /// recognises a copy that somebody sends again later.
    pub(super) fn signature(&self, key: &hmac::Key, unix_s: u64) -> String {
        let mut context = hmac::Context::with_key(key);
        context.update(format!("{unix_s}.").as_bytes());
        context.update(&self.body);
        format!("t={unix_s},v1={}", HEXLOWER.encode(context.sign().as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use tidegate::engine::marks::Subject;

    use super::*;

    fn message(is_ratio: bool) -> Message {
        let notice = Notice {
            policy: "shop".to_owned(),
            webhook: "security".to_owned(),
            source: "brute-force".to_owned(),
            subject: Subject::part("email", "jane@example.com"),
            action: "ban",
            count: 11,
            until_unix_us: Some(1_767_603_600_000_000),
            at_unix_us: 1_767_602_700_000_000,
        };
        Message::new(&notice, &[("email".to_owned(), "6f1c".to_owned())], is_ratio, None)
    }

    #[test]
    fn the_body_has_the_documented_fields() {
        let message = message(false);
        let expected = format!(
            concat!(
                r#"{{"id":"{}","event":"penalty","policy":"shop","penalty":"brute-force","#,
                r#""subject":{{"email":"6f1c"}},"action":"ban","count":11,"#,
                r#""until":"2026-01-05T09:00:00.000000Z","timestamp":"2026-01-05T08:45:00.000000Z"}}"#
            ),
            message.id
        );
        assert_eq!(String::from_utf8_lossy(&message.body), expected);
        assert_eq!(message.id.len(), 32);
        let ratio = self::message(true);
        assert_ne!(message.id, ratio.id);
        let body = String::from_utf8_lossy(&ratio.body);
        assert!(
            body.contains(r#""event":"ratio","policy":"shop","ratio":"brute-force","#),
            "{body}"
        );
    }

    #[test]
    fn a_signature_is_what_any_hmac_says_of_time_and_body() {
        let message = Message { id: String::new(), body: Bytes::from_static(b"{\"id\":\"1\"}") };
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"s3cret");
        // printf '1767602700.{"id":"1"}' | openssl dgst -sha256 -hmac s3cret
        let expected = "86f852dbf4a8810cde87a99b6feac32ddc294a8e7b86d98d6a4f58f6c642211e";
        assert_eq!(message.signature(&key, 1_767_602_700), format!("t=1767602700,v1={expected}"));
        assert_ne!(message.signature(&key, 1_767_602_700), message.signature(&key, 1_767_602_701));
    }
}
