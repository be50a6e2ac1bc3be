//! Why a solution earns no pass.

use http::{Response, StatusCode};

use super::token::TokenFault;
use crate::body::Body;
use crate::respond;

/// Why there is no challenge, or no pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChallengeError {
    /// The policy has no challenges.
    NoChallenges,
    /// Nothing tells the client from others: everybody could use the pass.
    Nobody,
    /// The client is blocked or banned, and no pass changes that.
    ShutOut,
    Token(TokenFault),
    /// The policy has another challenge now, or tokens are signed with another secret.
    Stale,
    /// The solution is wrong, or the service refuses it.
    Wrong,
    /// The challenge was solved before.
    Used,
    /// The service that verifies solutions does not answer.
    Unverified,
}

impl ChallengeError {
    /// True if it speaks against the client. Slow clients and silent services do not.
    pub(super) fn is_failure(&self) -> bool {
        use TokenFault::{Elsewhere, Forged};
        matches!(self, Self::Token(Forged | Elsewhere) | Self::Wrong | Self::Used)
    }

    /// The status, the reason that programs read, and the sentence that people read.
    const fn describe(self) -> (StatusCode, &'static str, &'static str) {
        const FORBIDDEN: StatusCode = StatusCode::FORBIDDEN;
        match self {
            Self::NoChallenges => {
                (StatusCode::NOT_FOUND, "no_challenges", "this policy challenges nobody")
            }
            Self::Nobody => {
                let detail = "a challenge is for one client: say its user or its ip";
                (StatusCode::BAD_REQUEST, "nobody", detail)
            }
            Self::ShutOut => (FORBIDDEN, "shut_out", "this client is blocked or banned"),
            Self::Token(TokenFault::Forged) => {
                (FORBIDDEN, "forged", "this is no challenge that was given here")
            }
            Self::Token(TokenFault::Elsewhere) => {
                (FORBIDDEN, "elsewhere", "this challenge was given to another client or policy")
            }
            Self::Token(TokenFault::Expired) => {
                (FORBIDDEN, "expired", "this challenge is over, ask for a new one")
            }
            Self::Stale => {
                let detail = "something else is asked for by now, ask for a new challenge";
                (FORBIDDEN, "stale", detail)
            }
            Self::Wrong => (FORBIDDEN, "wrong", "the solution is wrong"),
            Self::Used => {
                (FORBIDDEN, "used", "this challenge was answered before, ask for a new one")
            }
            Self::Unverified => {
                let detail = "the solution cannot be verified at present, ask for a new challenge";
                (StatusCode::SERVICE_UNAVAILABLE, "unjudged", detail)
            }
        }
    }

    /// The answer, as problem details.
    pub(crate) fn answer(self) -> Response<Body> {
        let (status, reason, detail) = self.describe();
        respond::problem_because(status, detail, reason)
    }
}

#[cfg(test)]
impl ChallengeError {
    pub(super) const fn status(self) -> StatusCode {
        self.describe().0
    }

    pub(super) const fn reason(self) -> &'static str {
        self.describe().1
    }
}
