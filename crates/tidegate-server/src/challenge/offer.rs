//! What a client is asked for, as JSON.

use serde::Serialize;
use tidegate::policy::{Challenge, ChallengeKind};
use utoipa::ToSchema;

const MILLISECOND_US: u64 = 1_000;

/// A challenge for one client.
pub(crate) struct Offer {
    pub(crate) token: String,
    pub(crate) asked: Challenge,
    pub(crate) lasts_us: u64,
}

/// A challenge, as programs read it.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Challenge)]
pub(crate) struct Told<'a> {
    /// `proof_of_work` or `captcha`.
    kind: &'static str,
    /// What is sent back with the solution.
    token: &'a str,
    expires_in_ms: u64,
    /// `SHA-256`: of the token, a colon and the solution, which is a decimal number.
    #[serde(skip_serializing_if = "Option::is_none")]
    algorithm: Option<&'static str>,
    /// How many zero bits that hash begins with.
    #[serde(skip_serializing_if = "Option::is_none")]
    difficulty: Option<u8>,
    /// What the script of the CAPTCHA service is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    site_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    script_url: Option<&'a str>,
    /// Where the solution is posted, where that is not the decision API.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer_to: Option<&'static str>,
}

impl Offer {
    /// The challenge as a JSON object; `answer_to` says where its solution is posted.
    pub(crate) fn json(&self, answer_to: Option<&'static str>) -> String {
        let mut told = Told {
            kind: "captcha",
            token: &self.token,
            expires_in_ms: self.lasts_us / MILLISECOND_US,
            algorithm: None,
            difficulty: None,
            site_key: None,
            script_url: None,
            answer_to,
        };
        match &self.asked.kind {
            ChallengeKind::ProofOfWork { difficulty } => {
                told.kind = "proof_of_work";
                told.algorithm = Some("SHA-256");
                told.difficulty = Some(*difficulty);
            }
            ChallengeKind::Captcha { site_key, script_url, .. } => {
                told.site_key = site_key.as_deref();
                told.script_url = script_url.as_deref();
            }
        }
        // Strings and numbers into memory: neither can fail.
        serde_json::to_string(&told).unwrap_or_default()
    }
}

/// Adds a challenge to the JSON text that ends here and began at `start`, if that is an object.
pub(crate) fn add_to(json: &mut String, start: usize, challenge: &str) {
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
            add_to(&mut json, 7, "1");
            assert_eq!(json, format!("before {expected}"));
        }
    }
}
