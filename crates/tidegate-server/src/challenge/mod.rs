//! Challenges: a client shows that it is worth an answer, and has a pass for a while.
//!
//! offer (a signed token) → the client's solution → proof, or the word of a CAPTCHA service, and a
//! claim, so that each challenge is answered once over all nodes → a pass, which gateway and API honour.
//! Tokens are of one client and one policy, and no secret travels in them.

mod captcha;
mod offer;
mod page;
mod pass;
mod refused;
mod time;
mod token;
mod work;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use serde::Deserialize;
use tidegate::clock::Now;
use tidegate::policy::{Challenge, ChallengeKind};
use tidegate::{ClientKeys, HashKey, Report, Request, RequestError};

pub(crate) use self::offer::{Offer, Told, add_to};
pub(crate) use self::page::Page;
pub(crate) use self::pass::{Granted, said, take};
pub(crate) use self::refused::Refused;

use self::captcha::{Unavailable, Verifier};
use self::time::WallTime;
use self::token::{Fault, Kind, SKEW_US, Signer, Token, TokenSubject};
use crate::app::App;
use crate::leases::random_id;
use crate::telemetry::{Challenged, Sparingly};

/// Where a page at the gateway answers its challenge.
pub(crate) const PATH: &str = "/.well-known/tidegate/challenge";

/// How long a challenge may be worked on.
const LASTS_US: u64 = 600_000_000;
/// For how long it is known that one was answered: nobody's clock can make it good again.
const CLAIMED_US: u64 = LASTS_US + 2 * SKEW_US;
/// The event of a solution that is none.
const FAILED: &str = "challenge_failed";
/// What the numbers of answered challenges are claimed for.
const CLAIMED: &str = "challenges";

/// Makes challenges and passes, and judges what comes back.
pub(crate) struct Challenges {
    signer: ArcSwap<Signer>,
    /// Tells honest solutions of before another secret came from forged ones; it makes none good.
    previous: ArcSwapOption<Signer>,
    time: WallTime,
    verifier: Verifier,
    /// A service that is lost fails every solution, which is one thing to be told.
    unjudged: Sparingly,
}

/// What a page posts: nothing for a challenge, or the solution of one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Said<'a> {
    #[serde(borrow)]
    token: Option<Cow<'a, str>>,
    #[serde(borrow)]
    solution: Option<Cow<'a, str>>,
}

impl Said<'_> {
    /// The solution; what is only half said is a wrong one.
    pub(crate) fn solution(&self) -> Option<Solution<'_>> {
        if self.token.is_none() && self.solution.is_none() {
            return None;
        }
        let (token, solution) = (self.token.as_deref(), self.solution.as_deref());
        Some(Solution { token: token.unwrap_or_default(), solution: solution.unwrap_or_default() })
    }
}

/// What a client says about a challenge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Solution<'a> {
    pub(crate) token: &'a str,
    pub(crate) solution: &'a str,
}

impl Challenges {
    /// With the secret that all nodes share.
    pub(crate) fn new(secret: &HashKey) -> Self {
        Self {
            signer: ArcSwap::from_pointee(Signer::new(secret)),
            previous: ArcSwapOption::empty(),
            time: WallTime::default(),
            verifier: Verifier::new(),
            unjudged: Sparingly::default(),
        }
    }

    /// Signs with another secret from now on.
    pub(crate) fn rekey(&self, secret: &HashKey) {
        self.previous.store(Some(self.signer.load_full()));
        self.signer.store(Arc::new(Signer::new(secret)));
    }

    /// A token that waits for its solution.
    fn challenge(&self, asked: &Challenge, subject: TokenSubject, now: Now) -> String {
        self.sign(Kind::Challenge, difficulty(asked), subject, now, LASTS_US)
    }

    /// A token that says that what is asked was done.
    fn pass(&self, asked: &Challenge, subject: TokenSubject, now: Now) -> String {
        self.sign(Kind::Pass, difficulty(asked), subject, now, asked.pass_us)
    }

    /// Whether a pass is good for what is asked by now, which may not be what was asked for it.
    fn is_good(&self, asked: &Challenge, subject: TokenSubject, pass: &str, now: Now) -> bool {
        let now_us = self.time.at_us(now);
        let opened = self.signer.load().open(Kind::Pass, pass, subject, now_us);
        opened.is_ok_and(|pass| {
            let ends_us = pass.issued_us.saturating_add(asked.pass_us);
            pass.difficulty == difficulty(asked) && now_us < ends_us
        })
    }

    fn sign(
        &self,
        kind: Kind,
        difficulty: u8,
        subject: TokenSubject,
        now: Now,
        lasts_us: u64,
    ) -> String {
        let issued_us = self.time.at_us(now);
        let expires_us = issued_us.saturating_add(lasts_us);
        let token = Token { subject, difficulty, issued_us, expires_us, nonce: random_id() };
        self.signer.load().sign(kind, &token)
    }

    /// What a token says that is to be solved. Whether it was before is not asked.
    fn open(
        &self,
        asked: &Challenge,
        client_keys: &ClientKeys,
        token: &str,
        now: Now,
    ) -> Result<Token, Refused> {
        let now_us = self.time.at_us(now);
        let opened =
            self.signer.load().open(Kind::Challenge, token, token_subject(client_keys), now_us);
        let token = opened.map_err(|fault| match fault {
            Fault::Forged if self.was_given_before(token) => Refused::Stale,
            fault => Refused::Token(fault),
        })?;
        if token.difficulty != difficulty(asked) {
            return Err(Refused::Stale);
        }
        Ok(token)
    }

    /// Whether it is a challenge that was given under the previous secret, to whomever: clients had
    /// other keys then.
    fn was_given_before(&self, token: &str) -> bool {
        self.previous.load().as_ref().is_some_and(|signer| signer.made(Kind::Challenge, token))
    }
}

impl App {
    /// What the client of a request is asked for.
    pub(crate) fn offer(
        &self,
        request: &Request<'_>,
    ) -> Result<Result<Offer, Refused>, RequestError> {
        let Some(client_keys) = self.engine.client_keys(request)? else {
            return Ok(Err(Refused::Nobody));
        };
        let asked = client_keys.policy.challenge().ok_or(Refused::NoChallenges);
        if self.engine.is_shut_out(request)? {
            return Ok(Err(Refused::ShutOut));
        }
        Ok(asked.map(|asked| {
            let token = self.challenges.challenge(asked, token_subject(&client_keys), self.now());
            self.metrics.challenged(&asked.kind, Challenged::Issued);
            Offer { token, asked: asked.clone(), lasts_us: LASTS_US }
        }))
    }

    /// The pass that a solution earns. What fails for want of a right one is an event.
    pub(crate) async fn redeem(
        &self,
        request: &Request<'_>,
        said: Solution<'_>,
    ) -> Result<Result<Granted, Refused>, RequestError> {
        let client_keys = self.engine.client_keys(request)?;
        if self.engine.is_shut_out(request)? {
            return Ok(Err(Refused::ShutOut));
        }
        let asked =
            client_keys.as_ref().and_then(|client_keys| client_keys.policy.challenge()).cloned();
        let redeemed = self.judged(client_keys, said).await;
        let fails = redeemed.as_ref().is_err_and(Refused::is_failure);
        if let Some(asked) = asked {
            let result = match &redeemed {
                Ok(_) => Challenged::Solved,
                Err(_) if fails => Challenged::Failed,
                Err(_) => Challenged::Void,
            };
            self.metrics.challenged(&asked.kind, result);
        }
        if fails {
            self.challenge_failed(request).await?;
        }
        Ok(redeemed)
    }

    async fn judged(
        &self,
        client_keys: Option<ClientKeys>,
        said: Solution<'_>,
    ) -> Result<Granted, Refused> {
        let client_keys = client_keys.ok_or(Refused::Nobody)?;
        let asked = client_keys.policy.challenge().ok_or(Refused::NoChallenges)?;
        let token = self.challenges.open(asked, &client_keys, said.token, self.now())?;
        match &asked.kind {
            ChallengeKind::ProofOfWork { difficulty } => {
                if !work::is_done(said.token, said.solution, *difficulty) {
                    return Err(Refused::Wrong);
                }
                self.use_up(&token).await?;
            }
            ChallengeKind::Captcha { verify_url, secret, .. } => {
                let unjudged = |error| self.unjudged(&error);
                let place =
                    self.challenges.verifier.place(client_keys.client_key).map_err(unjudged)?;
                // Whatever the service says, it is asked once for each challenge.
                self.use_up(&token).await?;
                let (secret, client) = (secret.reveal(), client_keys.address);
                let verified = place.verify(verify_url, secret, said.solution, client).await;
                if !verified.map_err(unjudged)? {
                    return Err(Refused::Wrong);
                }
            }
        }
        let pass = self.challenges.pass(asked, token_subject(&client_keys), self.now());
        Ok(Granted { pass, lasts_us: asked.pass_us })
    }

    /// Makes sure that nobody answers a challenge again.
    async fn use_up(&self, token: &Token) -> Result<(), Refused> {
        let claim =
            self.engine.claim_once(CLAIMED, token.nonce, Duration::from_micros(CLAIMED_US)).await;
        if let Some(error) = &claim.store_error {
            self.store_failed(error, "a challenge counts as answered on this node alone");
        }
        if claim.is_first { Ok(()) } else { Err(Refused::Used) }
    }

    fn unjudged(&self, error: &Unavailable) -> Refused {
        if let Some(more) = self.challenges.unjudged.take(self.now().steady_us) {
            tracing::warn!(event = "captcha_failed", more, "{error}");
        }
        Refused::Unjudged
    }

    /// Counts a failed challenge as the event that the client's policy may have penalties for.
    async fn challenge_failed(&self, request: &Request<'_>) -> Result<(), RequestError> {
        self.report(&Report::new(FAILED, request.clone())).await.map(drop)
    }

    /// Whether one of these is a pass of the request's client.
    pub(crate) fn honours<'p>(
        &self,
        request: &Request<'_>,
        presented: impl IntoIterator<Item = &'p str>,
    ) -> bool {
        let mut presented = presented.into_iter().peekable();
        if presented.peek().is_none() {
            return false;
        }
        let Ok(Some(client_keys)) = self.engine.client_keys(request) else { return false };
        let Some(asked) = client_keys.policy.challenge() else { return false };
        let now = self.now();
        presented.any(|pass| self.challenges.is_good(asked, token_subject(&client_keys), pass, now))
    }
}

fn token_subject(client_keys: &ClientKeys) -> TokenSubject {
    TokenSubject { policy: client_keys.policy_key, client: client_keys.client_key }
}

/// How many zero bits are asked for; none of a CAPTCHA.
const fn difficulty(asked: &Challenge) -> u8 {
    match asked.kind {
        ChallengeKind::ProofOfWork { difficulty } => difficulty,
        ChallengeKind::Captcha { .. } => 0,
    }
}

#[cfg(test)]
mod tests;
