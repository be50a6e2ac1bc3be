//! A challenge for one client, and its JSON.

use std::time::Duration;

use crate::wire::json::millis_up;
use serde::Serialize;
use tidegate::engine::policy::{Challenge, ChallengeKind};
use utoipa::ToSchema;

/// A challenge for one client.
pub(crate) struct IssuedChallenge {
    pub(crate) token: String,
    pub(crate) challenge: Challenge,
    pub(crate) lasts: Duration,
}

/// A challenge, as programs read it.
#[derive(Default, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Challenge)]
pub(crate) struct ChallengeJson<'a> {
    /// `proof_of_work` or `captcha`.
    kind: &'static str,
    /// Must be sent back with the solution.
    token: &'a str,
    expires_in_ms: u64,
    /// `SHA-256`: of the token, a colon and the solution, which is a decimal number.
    #[serde(skip_serializing_if = "Option::is_none")]
    algorithm: Option<&'static str>,
    /// The number of zero bits that this hash begins with.
    #[serde(skip_serializing_if = "Option::is_none")]
    difficulty: Option<u8>,
    /// For the script of the CAPTCHA service.
    #[serde(skip_serializing_if = "Option::is_none")]
    site_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    script_url: Option<&'a str>,
    /// Where the solution is posted, where that is not the decision API.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer_to: Option<&'static str>,
}

impl IssuedChallenge {
    /// The challenge as a JSON object; `answer_to` says where its solution is posted.
    pub(crate) fn json(&self, answer_to: Option<&'static str>) -> String {
        let mut json = ChallengeJson {
            kind: "captcha",
            token: &self.token,
            expires_in_ms: millis_up(self.lasts),
            answer_to,
            ..ChallengeJson::default()
        };
        match &self.challenge.kind {
            ChallengeKind::ProofOfWork { difficulty } => {
                json.kind = "proof_of_work";
                json.algorithm = Some("SHA-256");
                json.difficulty = Some(*difficulty);
            }
            ChallengeKind::Captcha { site_key, script_url, .. } => {
                json.site_key = site_key.as_deref();
                json.script_url = script_url.as_deref();
            }
        }
        // Strings and numbers into memory: neither can fail.
        serde_json::to_string(&json).unwrap_or_default()
    }
}

/// Adds a challenge to the JSON object that begins at `start`; other JSON values stay as they are.
pub(crate) fn add_challenge_member(json: &mut String, start: usize, challenge: &str) {
    let written = json.get(start..).unwrap_or_default().trim();
    if !written.starts_with('{') || !json.ends_with('}') {
        return;
    }
    let is_empty = written == "{}";
    json.pop();
    json.push_str(if is_empty { "\"challenge\":" } else { ",\"challenge\":" });
    json.push_str(challenge);
    json.push('}');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_becomes_the_last_member_of_an_object_and_of_nothing_else() {
        for (body, expected) in [
            ("{}", "{\"challenge\":1}"),
            ("{\"a\":{}}", "{\"a\":{},\"challenge\":1}"),
            ("[{}]", "[{}]"),
            ("\"{}\"", "\"{}\""),
            ("7", "7"),
        ] {
            let mut json = format!("before {body}");
            add_challenge_member(&mut json, 7, "1");
            assert_eq!(json, format!("before {expected}"));
        }
    }
}
