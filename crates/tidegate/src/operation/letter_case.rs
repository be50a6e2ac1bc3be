//! Whether `/Login` is `/login`.

use std::borrow::Cow;

/// How paths are compared. Only ASCII letters have two cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LetterCase {
    /// `/Login` and `/login` are two paths.
    #[default]
    Matters,
    /// They are one.
    Ignored,
}

impl LetterCase {
    /// The one form of a text that all texts equal to it share.
    #[must_use]
    pub fn fold(self, text: &str) -> Cow<'_, str> {
        match self {
            Self::Ignored if text.bytes().any(|byte| byte.is_ascii_uppercase()) => {
                Cow::Owned(text.to_ascii_lowercase())
            }
            _ => Cow::Borrowed(text),
        }
    }

    /// True if two texts are equal.
    #[must_use]
    pub fn is_same(self, one: &str, other: &str) -> bool {
        match self {
            Self::Matters => one == other,
            Self::Ignored => one.eq_ignore_ascii_case(other),
        }
    }
}
