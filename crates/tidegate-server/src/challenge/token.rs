//! Signed tokens: a challenge that waits for its answer, and the pass that the answer earns.
//!
//! A token is its fields with a dot between them, and behind them their HMAC-SHA-256 in hexadecimal:
//! version, policy, client, difficulty, issued, expires, nonce. No field can hold a dot. Each kind has
//! a key of its own besides its version, so that neither can be taken for the other. Nothing of a
//! token is believed, or even read, before its signature holds.

use std::fmt::Write as _;

use aws_lc_rs::hmac::{self, HMAC_SHA256};
use tidegate::{HashKey, Key};

/// Longer than any token.
pub(crate) const TOKEN_BYTES_MAX: usize = 320;
/// How far the clocks of two nodes may be apart before tokens are refused.
pub(crate) const SKEW_US: u64 = 60_000_000;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Challenge,
    Pass,
}

impl Kind {
    const fn version(self) -> &'static str {
        match self {
            Self::Challenge => "c1",
            Self::Pass => "p1",
        }
    }
}

/// Whom a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenSubject {
    pub(crate) policy: Key,
    pub(crate) client: Key,
}

/// What a token says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) subject: TokenSubject,
    /// How many zero bits an answer begins with, or began with; none where somebody else judges it.
    pub(crate) difficulty: u8,
    pub(crate) issued_us: u64,
    pub(crate) expires_us: u64,
    /// Tells it from all others.
    pub(crate) nonce: u128,
}

/// Why a token is not honoured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is no token of this kind, or nobody with the secret has made it.
    Forged,
    /// It is for another client or policy.
    Elsewhere,
    /// Its time is over, or has not come by this clock.
    Expired,
}

/// Signs tokens, and opens them.
pub(crate) struct Signer {
    challenges: hmac::Key,
    passes: hmac::Key,
}

impl Signer {
    /// With keys that all nodes make of their secret.
    pub(crate) fn new(secret: &HashKey) -> Self {
        let key = |purpose| hmac::Key::new(HMAC_SHA256, &secret.derive(purpose));
        Self { challenges: key("challenges, 1"), passes: key("passes, 1") }
    }

    /// The token as text.
    pub(crate) fn sign(&self, kind: Kind, token: &Token) -> String {
        let Token { subject, difficulty, issued_us, expires_us, nonce } = token;
        let TokenSubject { policy, client } = subject;
        let version = kind.version();
        let mut text = format!(
            "{version}.{policy}.{client}.{difficulty}.{issued_us}.{expires_us}.{nonce:032x}"
        );
        let tag = hmac::sign(self.key(kind), text.as_bytes());
        text.push('.');
        for byte in tag.as_ref() {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// What a token says, if it is one of this kind, for this client, and in its time.
    pub(crate) fn open(
        &self,
        kind: Kind,
        text: &str,
        subject: TokenSubject,
        now_us: u64,
    ) -> Result<Token, Fault> {
        let token = self.read(kind, text).ok_or(Fault::Forged)?;
        if token.subject != subject {
            return Err(Fault::Elsewhere);
        }
        // One from the future was made before a restart with a clock that was set back, or by a node
        // whose clock is wrong: nobody knows how old it is.
        let in_time =
            token.issued_us <= now_us.saturating_add(SKEW_US) && now_us < token.expires_us;
        if in_time { Ok(token) } else { Err(Fault::Expired) }
    }

    /// Whether it is a token of this kind, whosever it is, and however old.
    pub(crate) fn made(&self, kind: Kind, text: &str) -> bool {
        self.read(kind, text).is_some()
    }

    fn read(&self, kind: Kind, text: &str) -> Option<Token> {
        if text.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let (signed, tag) = text.rsplit_once('.')?;
        hmac::verify(self.key(kind), signed.as_bytes(), &tag_bytes(tag)?).ok()?;
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

    const fn key(&self, kind: Kind) -> &hmac::Key {
        match kind {
            Kind::Challenge => &self.challenges,
            Kind::Pass => &self.passes,
        }
    }
}

/// Sixty-four digits as the bytes that they stand for.
fn tag_bytes(digits: &str) -> Option<[u8; 32]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let digits: &[u8; 64] = digits.as_bytes().try_into().ok()?;
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
#[path = "token_tests.rs"]
mod tests;
