//! The `challenge:` section.

use super::Compiler;
use super::fields::{Fields, Keys, duration_us, integer, text, word};
use crate::policy::document::Node;
use crate::policy::protection::{Challenge, ChallengeKind, Secret};
use crate::units::SECOND_US;

pub(super) const KEYS: Keys = Keys {
    known: &["kind", "difficulty", "pass", "verify_url", "secret_env", "site_key", "script_url"],
    later: &[],
};

/// More work than this takes a phone minutes.
const DIFFICULTY_MAX: u64 = 28;
const DIFFICULTY_DEFAULT: u8 = 18;
const PASS_DEFAULT_US: u64 = 3_600 * SECOND_US;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    ProofOfWork,
    Captcha,
}

/// What each kind has that the other has not.
const OF_PROOFS: [&str; 1] = ["difficulty"];
const OF_CAPTCHAS: [&str; 4] = ["verify_url", "secret_env", "site_key", "script_url"];

impl Challenge {
    /// Where the policy challenges, and does not say how.
    pub(super) const DEFAULT: Self = Self {
        kind: ChallengeKind::ProofOfWork { difficulty: DIFFICULTY_DEFAULT },
        pass_us: PASS_DEFAULT_US,
    };
}

impl Compiler<'_> {
    pub(super) fn challenge(&mut self, node: &Node) -> Option<Challenge> {
        let fields = Fields::of(node, "`challenge`", &KEYS, self.diagnostics)?;
        let words = [("proof_of_work", Kind::ProofOfWork), ("captcha", Kind::Captcha)];
        let pass_us = fields.get("pass").and_then(|node| duration_us(node, self.diagnostics));
        let pass_us = pass_us.unwrap_or(PASS_DEFAULT_US);
        let Some(kind) = fields.get("kind") else {
            if !fields.is_misspelt(&["kind"]) {
                let message = "found no `kind`, expected `proof_of_work` or `captcha`";
                self.diagnostics.error(node.at, message);
            }
            return None;
        };
        let kind = word(kind, &words, self.diagnostics)?;
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
            Kind::ProofOfWork => self.proof_of_work(&fields),
            Kind::Captcha => self.captcha(node, &fields)?,
        };
        Some(Challenge { kind, pass_us })
    }

    fn proof_of_work(&mut self, fields: &Fields<'_>) -> ChallengeKind {
        let node = fields.get("difficulty");
        let bits = node.and_then(|node| integer(node, 1..=DIFFICULTY_MAX, self.diagnostics));
        ChallengeKind::ProofOfWork { difficulty: bits.unwrap_or(DIFFICULTY_DEFAULT) }
    }

    fn captcha(&mut self, node: &Node, fields: &Fields<'_>) -> Option<ChallengeKind> {
        let needed = |key: &'static str, expected: &str| {
            let found = fields.get(key);
            if found.is_none() && !fields.is_misspelt(&[key]) {
                let message = format!("found no `{key}` for a captcha, expected {expected}");
                self.diagnostics.error(node.at, message);
            }
            found
        };
        let verify_url = needed("verify_url", "where its tokens are verified");
        let secret_env = needed("secret_env", "the environment variable that holds its secret");
        let verify_url = verify_url.and_then(|node| self.web_address(node));
        let secret = secret_env.and_then(|node| self.secret(node));
        let site_key =
            fields.get("site_key").and_then(|node| text(node, "a key", self.diagnostics));
        let script_url = fields.get("script_url").and_then(|node| self.web_address(node));
        Some(ChallengeKind::Captcha {
            verify_url: verify_url?,
            secret: Secret::new(secret?),
            site_key: site_key.map(str::to_owned),
            script_url,
        })
    }
}
