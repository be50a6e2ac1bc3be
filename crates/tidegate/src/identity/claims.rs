//! The claims of a token, once a surface has verified it. Nothing here checks a signature: what is
//! handed in is believed.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde_json::value::RawValue;

use super::attribute::AttributeValue;
use super::body::BYTES_MAX;
use super::json;

/// Claims nested deeper than this are refused.
const DEPTH_MAX: usize = 32;

/// The claims of a verified token. Clones share them.
///
/// ```
/// use tidegate::engine::identity::Claims;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let claims = Claims::parse(r#"{"sub":"u1","plan":{"level":2.0},"groups":["a","b"]}"#)?;
/// assert_eq!(claims.text("sub"), Some("u1"));
/// assert_eq!(claims.text("/plan/level"), Some("2"));
/// assert_eq!(claims.text("groups"), None);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims(Arc<HashMap<String, Claim>>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Claim {
    /// A string, a number in its one spelling, or a flag.
    Text(String),
    Map(HashMap<String, Claim>),
    List(Vec<Claim>),
    /// Null, or a string that is none.
    Nothing,
}

impl Claims {
    /// Reads the payload of a token. Of two claims with one name the last counts; a
    /// verifier of tokens should refuse them.
    ///
    /// # Errors
    /// It is no JSON object, is larger than 64 KiB, or is nested deeper than 32 levels.
    pub fn parse(json: &str) -> Result<Self, ClaimsError> {
        if json.len() > BYTES_MAX {
            return Err(ClaimsError::TooLarge);
        }
        let value: &RawValue = serde_json::from_str(json).map_err(|_| ClaimsError::NoObject)?;
        match Claim::read(value, 0)? {
            Claim::Map(claims) => Ok(Self(Arc::new(claims))),
            _ => Err(ClaimsError::NoObject),
        }
    }

    /// These claims and one more. A name that starts with `/` is a JSON pointer, as in a policy.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        let claims = Arc::make_mut(&mut self.0);
        if name.starts_with('/') {
            insert_at(claims, &mut json::tokens(name), value.into());
        } else {
            claims.insert(name.to_owned(), Claim::Text(value.into()));
        }
        self
    }

    /// The text of the top-level claim of this name, or, if the name starts with `/`, of what the
    /// JSON pointer finds. Lists, maps and null have none.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        let found = if name.starts_with('/') {
            let mut tokens = json::tokens(name);
            let first = self.0.get(&tokens.next()?)?;
            tokens.try_fold(first, |claim, token| claim.child(&token))?
        } else {
            self.0.get(name)?
        };
        match found {
            Claim::Text(text) => Some(text),
            Claim::Map(_) | Claim::List(_) | Claim::Nothing => None,
        }
    }
}

impl Claim {
    fn read(value: &RawValue, depth: usize) -> Result<Self, ClaimsError> {
        if depth > DEPTH_MAX {
            return Err(ClaimsError::TooDeep);
        }
        let inner = |value: &RawValue| Self::read(value, depth + 1);
        let text = value.get();
        match text.as_bytes().first() {
            Some(b'{') => {
                let map: HashMap<String, &RawValue> =
                    serde_json::from_str(text).map_err(|_| ClaimsError::NoObject)?;
                let entries = map.into_iter().map(|(name, value)| Ok((name, inner(value)?)));
                entries.collect::<Result<_, _>>().map(Self::Map)
            }
            Some(b'[') => {
                let list: Vec<&RawValue> =
                    serde_json::from_str(text).map_err(|_| ClaimsError::NoObject)?;
                list.into_iter().map(inner).collect::<Result<_, _>>().map(Self::List)
            }
            _ => Ok(match json::scalar(text) {
                AttributeValue::Text(text) => Self::Text(text.into_owned()),
                AttributeValue::Absent | AttributeValue::Unreadable(_) => Self::Nothing,
            }),
        }
    }

    fn child(&self, token: &str) -> Option<&Self> {
        match self {
            Self::Map(claims) => claims.get(token),
            Self::List(claims) => claims.get(json::index(token)?),
            Self::Text(_) | Self::Nothing => None,
        }
    }
}

/// Puts a text where the rest of a pointer leads, through maps that are made on the way.
fn insert_at(
    claims: &mut HashMap<String, Claim>,
    tokens: &mut dyn Iterator<Item = String>,
    value: String,
) {
    let mut place = claims;
    let mut name = tokens.next().unwrap_or_default();
    for next in tokens {
        let inner = place.entry(name).or_insert(Claim::Nothing);
        if !matches!(inner, Claim::Map(_)) {
            *inner = Claim::Map(HashMap::new());
        }
        let Claim::Map(map) = inner else { return };
        place = map;
        name = next;
    }
    place.insert(name, Claim::Text(value));
}

/// Why claims cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClaimsError {
    /// They are no JSON object.
    NoObject,
    /// They are nested too deeply.
    TooDeep,
    /// They are too large.
    TooLarge,
}

impl fmt::Display for ClaimsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoObject => f.write_str("expected claims as a JSON object"),
            Self::TooDeep => write!(f, "expected claims nested at most {DEPTH_MAX} levels deep"),
            Self::TooLarge => write!(f, "expected claims of at most {BYTES_MAX} bytes"),
        }
    }
}

impl std::error::Error for ClaimsError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_become_text_and_everything_else_is_absent() {
        let claims = Claims::parse(
            r#"{"s":"é\n","n":42.0,"big":12345678901234567890123,"t":true,"f":false,
               "null":null,"list":[{"x":7}],"map":{"a/b":"c","":"empty"},"https://x/plan":"pro"}"#,
        )
        .unwrap();
        for (name, text) in [
            ("s", "é\n"),
            ("n", "42"),
            ("big", "12345678901234567890123"),
            ("t", "true"),
            ("f", "false"),
            ("https://x/plan", "pro"),
            ("/s", "é\n"),
            ("/list/0/x", "7"),
            ("/map/a~1b", "c"),
            ("/map/", "empty"),
        ] {
            assert_eq!(claims.text(name), Some(text), "{name}");
        }
        for name in
            ["null", "list", "map", "x", "", "/", "/list/1", "/list/00/x", "/s/x", "list/0/x"]
        {
            assert_eq!(claims.text(name), None, "{name}");
        }
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for json in ["", "null", "[]", "\"sub\"", "7", "{\"a\":1", "{\"a\":1} x", "{a:1}"] {
            assert_eq!(Claims::parse(json), Err(ClaimsError::NoObject), "{json}");
        }
    }

    #[test]
    fn depth_and_size_are_bounded() {
        let nested =
            |levels: usize| format!("{{\"a\":{}1{}}}", "[".repeat(levels), "]".repeat(levels));
        assert!(Claims::parse(&nested(DEPTH_MAX - 1)).is_ok());
        assert_eq!(Claims::parse(&nested(DEPTH_MAX)), Err(ClaimsError::TooDeep));
        assert_eq!(Claims::parse(&nested(30_000)), Err(ClaimsError::TooDeep));
        assert_eq!(Claims::parse(&nested(40_000)), Err(ClaimsError::TooLarge));
    }

    #[test]
    fn claims_can_be_said_one_by_one() {
        let claims =
            Claims::default().with("sub", "u1").with("/plan/level", "2").with("/plan/name", "pro");
        let read = Claims::parse(r#"{"sub":"u1","plan":{"level":"2","name":"pro"}}"#).unwrap();
        assert_eq!(claims, read);
        assert_eq!(claims.with("/sub/x", "y").text("/sub/x"), Some("y"));
    }
}
