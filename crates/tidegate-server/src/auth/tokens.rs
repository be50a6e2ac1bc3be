//! The tokens file: one token a line, by its SHA-256, so that a reader of the file cannot use it.
//!
//! ```text
//! # ROLE     NAME    SHA256HEX
//! client     shop    9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
//! operator   alice   60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752
//! ```
//!
//! Make a token long and random, as nothing slows down guesses at a short one:
//! `TOKEN=$(openssl rand -hex 32)`, then `printf %s "$TOKEN" | sha256sum` for the file. A name may
//! have several tokens, so that one can be replaced without a gap.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use data_encoding::HEXLOWER_PERMISSIVE;
use sha2::{Digest, Sha256};

use crate::files;

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// Reads on the admin API.
    Viewer,
    /// Reads and changes on the admin API, and asks for decisions.
    Operator,
    /// Everything, emergencies included.
    Superadmin,
    /// Asks for decisions.
    Client,
}

impl Role {
    pub(crate) const ALL: [Self; 4] =
        [Self::Viewer, Self::Operator, Self::Superadmin, Self::Client];

    /// The name in a tokens file.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Superadmin => "superadmin",
            Self::Client => "client",
        }
    }

    /// True if a token of this role may make a call that needs the role `needed`.
    pub(crate) fn covers(self, needed: Self) -> bool {
        match self {
            Self::Superadmin => true,
            Self::Operator => needed != Self::Superadmin,
            Self::Viewer | Self::Client => self == needed,
        }
    }
}

/// The tokens of one file.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    by_hash: HashMap<[u8; 32], Token>,
}

#[derive(Debug)]
struct Token {
    holder: TokenHolder,
    line: usize,
}

/// The person or service that has a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenHolder {
    pub(crate) role: Role,
    pub(crate) name: Arc<str>,
}

impl Tokens {
    pub(crate) fn read(path: &Path) -> Result<Self, TokenError> {
        let file = path.display().to_string();
        let text =
            files::read(path).map_err(|error| TokenError { problems: vec![error.to_string()] })?;
        Self::parse(&file, &text)
    }

    /// Parses the text of a file. The error lists every problem with its line.
    pub(crate) fn parse(file: &str, text: &str) -> Result<Self, TokenError> {
        let (mut tokens, mut problems) = (Self::default(), Vec::new());
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Err(problem) = tokens.add(index + 1, line) {
                problems.push(format!("{file}:{}: {problem}", index + 1));
            }
        }
        if problems.is_empty() && tokens.by_hash.is_empty() {
            problems.push(format!("{file}: found no token, expected a line `{LINE}`"));
        }
        if problems.is_empty() { Ok(tokens) } else { Err(TokenError { problems }) }
    }

    /// The holder of the token in an `Authorization` header.
    ///
    /// The lookup is by the token's hash. Its time may tell how alike two hashes are, but nobody can
    /// choose a token for its hash, so timing brings no guess any closer.
    pub(crate) fn find_holder(&self, authorization: &str) -> Option<&TokenHolder> {
        let (scheme, token) = authorization.split_once(' ')?;
        let token = token.trim_matches(' ');
        let usable = scheme.eq_ignore_ascii_case("bearer") && !token.is_empty();
        self.by_hash.get(&hash(token)).filter(|_| usable).map(|token| &token.holder)
    }

    fn add(&mut self, line: usize, text: &str) -> Result<(), String> {
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let [role, name, hex] = fields[..] else {
            return Err(format!("found {} words, expected `{LINE}`", fields.len()));
        };
        let role = Role::ALL.into_iter().find(|known| known.name() == role).ok_or_else(|| {
            format!(
                "found the role `{}`, expected viewer, operator, superadmin or client",
                shown(role)
            )
        })?;
        if name.len() > NAME_MAX || !name.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(format!("expected a name of at most {NAME_MAX} visible ASCII characters"));
        }
        // The message does not repeat the digits: a token put here by mistake must not reach a log.
        let digest = HEXLOWER_PERMISSIVE.decode(hex.as_bytes()).ok();
        let digest = digest.and_then(|digest| <[u8; 32]>::try_from(digest).ok());
        let digest = digest.ok_or("expected a SHA-256 as 64 hexadecimal digits")?;
        if [hash(""), hash("\n")].contains(&digest) {
            return Err("this is the SHA-256 of an empty token; was the variable set?".to_owned());
        }
        match self.by_hash.entry(digest) {
            Entry::Occupied(same) => Err(format!(
                "found the token of line {} again, expected each token once",
                same.get().line
            )),
            Entry::Vacant(free) => {
                free.insert(Token { holder: TokenHolder { role, name: name.into() }, line });
                Ok(())
            }
        }
    }
}

/// A line of the file.
const LINE: &str = "ROLE NAME SHA256HEX";
/// The longest name; the audit log prints it.
const NAME_MAX: usize = 64;

/// A file of tokens that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenError {
    problems: Vec<String>,
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problems.join("\n"))
    }
}

impl std::error::Error for TokenError {}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// A word from the file, no longer than a message can bear.
fn shown(word: &str) -> String {
    word.chars().take(20).flat_map(char::escape_default).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // `printf %s test | sha256sum`
    const TEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    // `printf %s test2 | sha256sum`
    const TEST2: &str = "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752";

    fn problems(text: &str) -> String {
        Tokens::parse("t", text).unwrap_err().to_string()
    }

    #[test]
    fn a_token_is_known_by_its_hash_alone() {
        let text =
            format!("# ours\n\n client shop {TEST}\noperator alice {}\n", TEST2.to_uppercase());
        let tokens = Tokens::parse("t", &text).unwrap();
        let holder = |role, name: &str| Some(TokenHolder { role, name: name.into() });
        let client = tokens.find_holder("Bearer test").cloned();
        assert_eq!(client, holder(Role::Client, "shop"));
        let operator = tokens.find_holder("bearer  test2").cloned();
        assert_eq!(operator, holder(Role::Operator, "alice"));
        for other in ["", "Bearer", "Bearer ", "Bearer tes", "Basic test", "test"] {
            assert_eq!(tokens.find_holder(other), None, "{other}");
        }
        assert_eq!(tokens.find_holder(&format!("Bearer {TEST}")), None);
    }

    #[test]
    fn all_that_is_wrong_is_told_with_its_line() {
        let text = format!("root me {TEST}\nclient a\nclient a {TEST}x\nclient a secret-token");
        let told = problems(&text);
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines.len(), 4, "{told}");
        assert!(lines[0].starts_with("t:1: found the role `root`"), "{told}");
        assert!(lines[1].starts_with("t:2: found 2 words"), "{told}");
        assert!(lines[2].starts_with("t:3: expected a SHA-256"), "{told}");
        assert!(!told.contains("secret-token"), "{told}");
    }

    #[test]
    fn a_token_given_twice_is_refused() {
        let told = problems(&format!("client a {TEST}\nviewer b {TEST}"));
        assert_eq!(told, "t:2: found the token of line 1 again, expected each token once");
    }

    #[test]
    fn one_name_may_have_two_tokens() {
        let tokens = Tokens::parse("t", &format!("client a {TEST}\nclient a {TEST2}")).unwrap();
        assert_eq!(tokens.find_holder("Bearer test"), tokens.find_holder("Bearer test2"));
    }

    #[test]
    fn the_hash_of_no_token_is_refused() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert!(problems(&format!("client a {empty}")).contains("empty token"));
        let line_end = "01ba4719c80b6fe911b091a7c05124b64eeece964e09c058ef8f9805daca546b";
        assert!(problems(&format!("client a {line_end}")).contains("empty token"));
        assert!(problems("# nothing").contains("found no token"));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = Tokens::read(Path::new("no/such/file")).unwrap_err().to_string();
        assert!(error.starts_with("cannot read no/such/file: "), "{error}");
    }

    #[test]
    fn a_file_without_end_is_refused() {
        let error = Tokens::read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert_eq!(error, "cannot read /dev/zero: it is a device, expected a file");
    }
}
