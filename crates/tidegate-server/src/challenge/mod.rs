//! Challenges: a client proves its worth, and has a pass for a while.
//!
//! A client receives a challenge, which is a signed token, and sends it back with a solution: a proof of
//! work, or the response of a CAPTCHA service. Each challenge is claimed once over all nodes. The
//! solution earns a pass, which gateway and API accept. A token is for one client and one policy, and
//! holds no secret.

mod captcha;
mod error;
mod issued;
mod page;
mod pass;
mod proof_of_work;
mod token;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use serde::Deserialize;
use tidegate::HashKey;
use tidegate::clock::{Now, micros};
use tidegate::engine::policy::{Challenge, ChallengeKind};
use tidegate::engine::{ClientKeys, Context};

pub(crate) use self::error::ChallengeError;
pub(crate) use self::issued::{ChallengeJson, IssuedChallenge, add_challenge_member};
pub(crate) use self::page::Page;
pub(crate) use self::pass::{Pass, passes_in, take_passes};

use self::captcha::CaptchaVerifier;
use self::token::{
    MonotonicWallClock, SKEW_US, Token, TokenFault, TokenKind, TokenSigner, TokenSubject,
};
use crate::app::App;
use crate::leases::random_id;
use crate::telemetry::{ChallengeResult, LogThrottle};

/// The path at the gateway that solutions are posted to.
pub(crate) const PATH: &str = "/.well-known/tidegate/challenge";

/// The time to solve a challenge.
const LASTS: Duration = Duration::from_secs(600);
/// A claim outlives its challenge on every node's clock.
const CLAIMED_FOR: Duration = LASTS.saturating_add(Duration::from_micros(2 * SKEW_US));
/// The event of a wrong solution.
const FAILED: &str = "challenge_failed";
/// The purpose of the claims.
const CLAIMED: &str = "challenges";

/// Issues challenges and passes, and checks them.
pub(crate) struct Challenges {
    signer: ArcSwap<TokenSigner>,
    /// Recognises challenges that were issued under the previous secret. It accepts none of them.
    previous: ArcSwapOption<TokenSigner>,
    clock: MonotonicWallClock,
    verifier: CaptchaVerifier,
    /// A lost service fails every solution: one log line a second is enough.
    captcha_throttle: LogThrottle,
}

/// The body that a page posts: empty to ask for a challenge, or a solution.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChallengePost<'a> {
    #[serde(borrow)]
    token: Option<Cow<'a, str>>,
    #[serde(borrow)]
    solution: Option<Cow<'a, str>>,
}

impl ChallengePost<'_> {
    /// The solution. Half of one is a wrong one.
    pub(crate) fn solution(&self) -> Option<Solution<'_>> {
        if self.token.is_none() && self.solution.is_none() {
            return None;
        }
        let (token, solution) = (self.token.as_deref(), self.solution.as_deref());
        Some(Solution { token: token.unwrap_or_default(), solution: solution.unwrap_or_default() })
    }
}

/// A challenge's token, and a client's solution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Solution<'a> {
    pub(crate) token: &'a str,
    pub(crate) solution: &'a str,
}

impl Challenges {
    /// Signs with the secret that all nodes share.
    pub(crate) fn new(secret: &HashKey) -> Self {
        Self {
            signer: ArcSwap::from_pointee(TokenSigner::new(secret)),
            previous: ArcSwapOption::empty(),
            clock: MonotonicWallClock::default(),
            verifier: CaptchaVerifier::new(),
            captcha_throttle: LogThrottle::default(),
        }
    }

    /// Signs with another secret from now on.
    pub(crate) fn rekey(&self, secret: &HashKey) {
        self.previous.store(Some(self.signer.load_full()));
        self.signer.store(Arc::new(TokenSigner::new(secret)));
    }

    fn sign(
        &self,
        kind: TokenKind,
        challenge: &Challenge,
        subject: TokenSubject,
        now: Now,
    ) -> String {
        let lasts = match kind {
            TokenKind::Challenge => LASTS,
            TokenKind::Pass => challenge.pass,
        };
        let (issued_us, difficulty) = (self.clock.at_us(now), difficulty(challenge));
        let expires_us = issued_us.saturating_add(micros(lasts));
        let token = Token { subject, difficulty, issued_us, expires_us, nonce: random_id() };
        self.signer.load().sign(kind, &token)
    }

    /// True if a pass is good for this challenge, which may have changed since it was issued.
    fn is_good(&self, challenge: &Challenge, subject: TokenSubject, pass: &str, now: Now) -> bool {
        let now_us = self.clock.at_us(now);
        let opened = self.signer.load().open(TokenKind::Pass, pass, subject, now_us);
        opened.is_ok_and(|pass| {
            let ends_us = pass.issued_us.saturating_add(micros(challenge.pass));
            pass.difficulty == difficulty(challenge) && now_us < ends_us
        })
    }

    /// Opens the token of a challenge. It may have been claimed before.
    fn open(
        &self,
        challenge: &Challenge,
        client_keys: &ClientKeys,
        token: &str,
        now: Now,
    ) -> Result<Token, ChallengeError> {
        let (now_us, subject) = (self.clock.at_us(now), token_subject(client_keys));
        let opened = self.signer.load().open(TokenKind::Challenge, token, subject, now_us);
        let token = opened.map_err(|fault| match fault {
            TokenFault::Forged if self.is_of_previous_secret(token) => ChallengeError::Stale,
            fault => ChallengeError::Token(fault),
        })?;
        if token.difficulty != difficulty(challenge) {
            return Err(ChallengeError::Stale);
        }
        Ok(token)
    }

    /// True for a challenge of any client under the previous secret. Clients had other keys then.
    fn is_of_previous_secret(&self, token: &str) -> bool {
        let previous = self.previous.load();
        previous.as_ref().is_some_and(|signer| signer.has_signed(TokenKind::Challenge, token))
    }
}

impl App {
    /// Issues a challenge for the client of a request.
    pub(crate) fn issue_challenge(
        &self,
        context: &Context<'_>,
    ) -> Result<IssuedChallenge, ChallengeError> {
        let client_keys = self.engine.client_keys(context).ok_or(ChallengeError::Nobody)?;
        if self.engine.is_blocked_or_banned(context) {
            return Err(ChallengeError::ShutOut);
        }
        let challenge = client_keys.policy.challenge().ok_or(ChallengeError::NoChallenges)?;
        let (subject, now) = (token_subject(&client_keys), self.now());
        let token = self.challenges.sign(TokenKind::Challenge, challenge, subject, now);
        self.metrics.challenged(&challenge.kind, ChallengeResult::Issued);
        Ok(IssuedChallenge { token, challenge: challenge.clone(), lasts: LASTS })
    }

    /// The pass for a solution. A failed solution is an event.
    pub(crate) async fn redeem_solution(
        &self,
        context: &Context<'_>,
        solution: Solution<'_>,
    ) -> Result<Pass, ChallengeError> {
        let client_keys = self.engine.client_keys(context);
        if self.engine.is_blocked_or_banned(context) {
            return Err(ChallengeError::ShutOut);
        }
        let challenge =
            client_keys.as_ref().and_then(|client_keys| client_keys.policy.challenge()).cloned();
        let redeemed = self.verify_solution(client_keys, solution).await;
        let fails = redeemed.as_ref().is_err_and(ChallengeError::is_failure);
        if let Some(challenge) = challenge {
            let result = match &redeemed {
                Ok(_) => ChallengeResult::Solved,
                Err(_) if fails => ChallengeResult::Failed,
                Err(_) => ChallengeResult::Void,
            };
            self.metrics.challenged(&challenge.kind, result);
        }
        if fails {
            // A policy may have penalties for this event. Every policy has the event.
            self.report(context, FAILED, None).await.ok();
        }
        redeemed
    }

    async fn verify_solution(
        &self,
        client_keys: Option<ClientKeys>,
        solution: Solution<'_>,
    ) -> Result<Pass, ChallengeError> {
        let client_keys = client_keys.ok_or(ChallengeError::Nobody)?;
        let challenge = client_keys.policy.challenge().ok_or(ChallengeError::NoChallenges)?;
        let token = self.challenges.open(challenge, &client_keys, solution.token, self.now())?;
        match &challenge.kind {
            ChallengeKind::ProofOfWork { difficulty } => {
                if !proof_of_work::is_solved(solution.token, solution.solution, *difficulty) {
                    return Err(ChallengeError::Wrong);
                }
                self.claim_challenge(&token).await?;
            }
            ChallengeKind::Captcha { verify_url, secret, .. } => {
                let unverified = |error: String| self.log_captcha_error(&error);
                let permit =
                    self.challenges.verifier.admit(client_keys.client_key).map_err(unverified)?;
                // The service is asked once for each challenge, whatever it answers.
                self.claim_challenge(&token).await?;
                let (secret, client) = (secret.reveal(), client_keys.address);
                let verified = permit.verify(verify_url, secret, solution.solution, client).await;
                if !verified.map_err(unverified)? {
                    return Err(ChallengeError::Wrong);
                }
            }
        }
        let (subject, now) = (token_subject(&client_keys), self.now());
        let token = self.challenges.sign(TokenKind::Pass, challenge, subject, now);
        Ok(Pass { token, lasts: challenge.pass })
    }

    /// Makes sure that a challenge is solved only once, over all nodes.
    async fn claim_challenge(&self, token: &Token) -> Result<(), ChallengeError> {
        let claim = self.engine.claim_once(CLAIMED, token.nonce, CLAIMED_FOR).await;
        if let Some(error) = &claim.store_error {
            self.store_failed(error, "a challenge counts as answered on this node alone");
        }
        if claim.is_first { Ok(()) } else { Err(ChallengeError::Used) }
    }

    fn log_captcha_error(&self, error: &str) -> ChallengeError {
        if let Some(more) = self.challenges.captcha_throttle.pass(self.now().steady_us) {
            tracing::warn!(
                event = "captcha_failed",
                more,
                "a CAPTCHA could not be verified: {error}"
            );
        }
        ChallengeError::Unverified
    }

    /// True if one of these tokens is a valid pass of the request's client.
    pub(crate) fn has_valid_pass<'p>(
        &self,
        context: &Context<'_>,
        presented: impl IntoIterator<Item = &'p str>,
    ) -> bool {
        let mut presented = presented.into_iter().peekable();
        if presented.peek().is_none() {
            return false;
        }
        let Some(client_keys) = self.engine.client_keys(context) else { return false };
        let Some(challenge) = client_keys.policy.challenge() else { return false };
        let (subject, now) = (token_subject(&client_keys), self.now());
        presented.any(|pass| self.challenges.is_good(challenge, subject, pass, now))
    }
}

fn token_subject(client_keys: &ClientKeys) -> TokenSubject {
    TokenSubject { policy: client_keys.policy_key, client: client_keys.client_key }
}

/// The zero bits of a proof of work; 0 for a CAPTCHA.
const fn difficulty(challenge: &Challenge) -> u8 {
    match challenge.kind {
        ChallengeKind::ProofOfWork { difficulty } => difficulty,
        ChallengeKind::Captcha { .. } => 0,
    }
}

#[cfg(test)]
mod tests;
