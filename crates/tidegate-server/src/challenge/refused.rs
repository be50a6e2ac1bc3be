//! Why a solution earns no pass, and how that is told.

use http::{Response, StatusCode};

use super::token::Fault;
use crate::body::Body;
use crate::respond;

/// Why there is no pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The policy challenges nobody.
    NoChallenges,
    /// Nothing tells the client from others, so that a pass would be everybody's.
    Nobody,
    /// It is blocked or banned, and no pass would change that.
    ShutOut,
    Token(Fault),
    /// The policy asks for something else by now, or tokens are signed with another secret.
    Stale,
    /// The work is not done, or the service says no.
    Wrong,
    /// It was answered before.
    Used,
    /// The service that judges does not answer.
    Unjudged,
}

impl Refused {
    /// Whether it speaks against the client: a slow one, or a service that is silent, does not.
    pub(super) fn is_failure(&self) -> bool {
        matches!(self, Self::Token(Fault::Forged | Fault::Elsewhere) | Self::Wrong | Self::Used)
    }

    /// The word that programs go by.
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::NoChallenges => "no_challenges",
            Self::Nobody => "nobody",
            Self::ShutOut => "shut_out",
            Self::Token(Fault::Forged) => "forged",
            Self::Token(Fault::Elsewhere) => "elsewhere",
            Self::Token(Fault::Expired) => "expired",
            Self::Stale => "stale",
            Self::Wrong => "wrong",
            Self::Used => "used",
            Self::Unjudged => "unjudged",
        }
    }

    /// The sentence that people read.
    const fn detail(self) -> &'static str {
        match self {
            Self::NoChallenges => "this policy challenges nobody",
            Self::Nobody => "a challenge is for one client: say its user or its ip",
            Self::ShutOut => "this client is blocked or banned",
            Self::Token(Fault::Forged) => "this is no challenge that was given here",
            Self::Token(Fault::Elsewhere) => "this challenge was given to another client or policy",
            Self::Token(Fault::Expired) => "this challenge is over, ask for a new one",
            Self::Stale => "something else is asked for by now, ask for a new challenge",
            Self::Wrong => "the solution is wrong",
            Self::Used => "this challenge was answered before, ask for a new one",
            Self::Unjudged => "the solution cannot be verified at present, ask for a new challenge",
        }
    }

    /// Problem details that say why.
    pub(crate) fn answer(self) -> Response<Body> {
        respond::problem_because(self.status(), self.detail(), self.reason())
    }

    pub(super) const fn status(self) -> StatusCode {
        match self {
            Self::NoChallenges => StatusCode::NOT_FOUND,
            Self::Nobody => StatusCode::BAD_REQUEST,
            Self::Unjudged => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::FORBIDDEN,
        }
    }
}
