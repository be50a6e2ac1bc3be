//! The `challenge:` section.

use std::time::Duration;

use super::Compiler;
use super::fields::{Fields, Keys, word};
use crate::policy::document::Node;
use crate::policy::protection::{Challenge, ChallengeKind, Secret};

pub(super) const KEYS: Keys =
    Keys::new("kind difficulty pass verify_url secret_env site_key script_url");

/// More work than this takes a phone minutes.
const DIFFICULTY_MAX: u64 = 28;
const DIFFICULTY_DEFAULT: u8 = 18;
const PASS_DEFAULT: Duration = Duration::from_secs(3_600);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    ProofOfWork,
    Captcha,
}

/// The keys that only one of the kinds has.
const OF_PROOFS: [&str; 1] = ["difficulty"];
const OF_CAPTCHAS: [&str; 4] = ["verify_url", "secret_env", "site_key", "script_url"];

impl Challenge {
    /// For a policy that challenges and does not say how.
    pub(super) const DEFAULT: Self = Self {
        kind: ChallengeKind::ProofOfWork { difficulty: DIFFICULTY_DEFAULT },
        pass: PASS_DEFAULT,
    };
}

impl Compiler<'_> {
    pub(super) fn challenge(&self, node: &Node) -> Option<Challenge> {
        let fields = Fields::of(node, "`challenge`", &KEYS, self.diagnostics)?;
        let words = [("proof_of_work", Kind::ProofOfWork), ("captcha", Kind::Captcha)];
        let pass = fields.duration_us("pass").map_or(PASS_DEFAULT, Duration::from_micros);
        let message = "found no `kind`, expected `proof_of_work` or `captcha`";
        let kind = word(fields.require("kind", node.at, message)?, &words, self.diagnostics)?;
        let (foreign, name): (&[&str], _) = match kind {
            Kind::ProofOfWork => (&OF_CAPTCHAS, "a captcha"),
            Kind::Captcha => (&OF_PROOFS, "a proof of work"),
        };
        for key in foreign {
            if let Some(entry) = fields.entry(key) {
                let message = format!("found `{key}`, which only {name} has");
                self.diagnostics.error(entry.key_at, message);
            }
        }
        let kind = match kind {
            Kind::ProofOfWork => {
                let difficulty = fields.integer("difficulty", 1..=DIFFICULTY_MAX);
                ChallengeKind::ProofOfWork { difficulty: difficulty.unwrap_or(DIFFICULTY_DEFAULT) }
            }
            Kind::Captcha => self.captcha(node, &fields)?,
        };
        Some(Challenge { kind, pass })
    }

    fn captcha(&self, node: &Node, fields: &Fields<'_>) -> Option<ChallengeKind> {
        let require = |key: &str, expected: &str| {
            let message = format!("found no `{key}` for a captcha, expected {expected}");
            fields.require(key, node.at, message)
        };
        let verify_url = require("verify_url", "where its tokens are verified");
        let secret_env = require("secret_env", "the environment variable that holds its secret");
        let verify_url = verify_url.and_then(|node| self.web_address(node));
        let secret = secret_env.and_then(|node| self.secret(node));
        let site_key = fields.owned_text("site_key", "a key");
        let script_url = fields.get("script_url").and_then(|node| self.web_address(node));
        let (verify_url, secret) = (verify_url?, Secret::new(secret?));
        Some(ChallengeKind::Captcha { verify_url, secret, site_key, script_url })
    }
}
