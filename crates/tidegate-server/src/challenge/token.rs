//! Signed tokens: a challenge that waits for its solution, and the pass that the solution earns.
//!
//! A token is its fields with a dot between them, and behind them their HMAC-SHA-256 in hexadecimal:
//! version, policy, client, difficulty, issued, expires, nonce. No field can hold a dot. Each kind has
//! a key of its own besides its version, so that neither can be taken for the other. The signature is
//! verified before any field is read.

use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::hmac::{self, HMAC_SHA256};
use data_encoding::HEXLOWER;
use tidegate::HashKey;
use tidegate::clock::Now;
use tidegate::engine::Key;

/// No token is longer.
pub(crate) const TOKEN_BYTES_MAX: usize = 320;
/// The largest difference between the clocks of two nodes.
pub(crate) const SKEW_US: u64 = 60_000_000;

/// The wall clock that tokens are issued and checked by. It never goes back while the process lives:
/// setting the clock back would make all tokens last longer.
#[derive(Debug, Default)]
pub(super) struct MonotonicWallClock {
    /// The largest distance between the wall clock and the steady clock.
    ahead_us: AtomicU64,
}

impl MonotonicWallClock {
    pub(super) fn at_us(&self, now: Now) -> u64 {
        let ahead_us = now.unix_us.saturating_sub(now.steady_us);
        let most_us = self.ahead_us.fetch_max(ahead_us, Ordering::Relaxed).max(ahead_us);
        now.steady_us.saturating_add(most_us)
    }
}

/// The purpose of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    Challenge,
    Pass,
}

impl TokenKind {
    const fn version(self) -> &'static str {
        match self {
            Self::Challenge => "c1",
            Self::Pass => "p1",
        }
    }
}

/// The client that a token is for, and the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenSubject {
    pub(crate) policy: Key,
    pub(crate) client: Key,
}

/// The fields of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) subject: TokenSubject,
    /// The zero bits of a proof of work; 0 for a CAPTCHA.
    pub(crate) difficulty: u8,
    pub(crate) issued_us: u64,
    pub(crate) expires_us: u64,
    /// Unique.
    pub(crate) nonce: u128,
}

/// Why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenFault {
    /// It is no token of this kind, or is not signed with the secret.
    Forged,
    /// It is for another client or policy.
    Elsewhere,
    /// It has expired, or was issued in the future.
    Expired,
}

/// Signs and opens tokens.
pub(crate) struct TokenSigner {
    challenges: hmac::Key,
    passes: hmac::Key,
}

impl TokenSigner {
    /// Derives the keys from the secret of all nodes.
    pub(crate) fn new(secret: &HashKey) -> Self {
        let key = |purpose| hmac::Key::new(HMAC_SHA256, &secret.derive(purpose));
        Self { challenges: key("challenges, 1"), passes: key("passes, 1") }
    }

    /// The token as text.
    pub(crate) fn sign(&self, kind: TokenKind, token: &Token) -> String {
        let Token { subject, difficulty, issued_us, expires_us, nonce } = token;
        let TokenSubject { policy, client } = subject;
        let version = kind.version();
        let mut text = format!(
            "{version}.{policy}.{client}.{difficulty}.{issued_us}.{expires_us}.{nonce:032x}"
        );
        let tag = hmac::sign(self.key(kind), text.as_bytes());
        text.push('.');
        HEXLOWER.encode_append(tag.as_ref(), &mut text);
        text
    }

    /// The fields of a token of this kind, for this client, that is valid now.
    pub(crate) fn open(
        &self,
        kind: TokenKind,
        text: &str,
        subject: TokenSubject,
        now_us: u64,
    ) -> Result<Token, TokenFault> {
        let token = self.read(kind, text).ok_or(TokenFault::Forged)?;
        if token.subject != subject {
            return Err(TokenFault::Elsewhere);
        }
        // A token from the future was made before a restart with a clock that was set back, or by a
        // node whose clock is wrong. Its age is unknown.
        let in_time =
            token.issued_us <= now_us.saturating_add(SKEW_US) && now_us < token.expires_us;
        if in_time { Ok(token) } else { Err(TokenFault::Expired) }
    }

    /// True for a token of this kind, of any client and age.
    pub(crate) fn has_signed(&self, kind: TokenKind, text: &str) -> bool {
        self.read(kind, text).is_some()
    }

    fn read(&self, kind: TokenKind, text: &str) -> Option<Token> {
        if text.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let (signed, tag) = text.rsplit_once('.')?;
        let tag = HEXLOWER.decode(tag.as_bytes()).ok()?;
        hmac::verify(self.key(kind), signed.as_bytes(), &tag).ok()?;
        let mut fields = signed.split('.');
        let version = fields.next()?;
        let mut number = || u128::from_str_radix(fields.next()?, 16).ok();
        let subject = TokenSubject { policy: Key(number()?), client: Key(number()?) };
        let token = Token {
            subject,
            difficulty: fields.next()?.parse().ok()?,
            issued_us: fields.next()?.parse().ok()?,
            expires_us: fields.next()?.parse().ok()?,
            nonce: u128::from_str_radix(fields.next()?, 16).ok()?,
        };
        (version == kind.version() && fields.next().is_none()).then_some(token)
    }

    const fn key(&self, kind: TokenKind) -> &hmac::Key {
        match kind {
            TokenKind::Challenge => &self.challenges,
            TokenKind::Pass => &self.passes,
        }
    }
}

#[cfg(test)]
#[path = "token_tests.rs"]
mod tests;
