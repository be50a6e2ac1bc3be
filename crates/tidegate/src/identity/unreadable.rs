//! Why an attribute that may be there cannot be read.

use std::fmt;

/// Why an attribute that may be in a request cannot be read. That is not the same as absent: the
/// service behind may read what Tidegate does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The body came from a socket without a `Content-Type`.
    NoType,
    /// The body is of a type that is not read, or that the attribute does not take.
    Type,
    /// The text is not in UTF-8, or says so.
    Charset,
    /// The body is compressed.
    Encoding,
    /// The body is larger than 64 KiB.
    Size,
    /// The body, or what holds the value, is broken, or services read it differently.
    Syntax,
    /// A list, a map or a file is where a text, a number or a flag should be.
    Shape,
    /// It is there only under a name that some services take for it: `EMAIL`, `email[]`.
    Name,
    /// It is there twice, or the body has two types.
    Ambiguous,
    /// It is no whole number of at most 15 digits.
    Number,
}

impl Unreadable {
    /// All reasons.
    pub const ALL: [Self; 10] = [
        Self::NoType,
        Self::Type,
        Self::Charset,
        Self::Encoding,
        Self::Size,
        Self::Syntax,
        Self::Shape,
        Self::Name,
        Self::Ambiguous,
        Self::Number,
    ];

    /// One word for metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoType => "no_type",
            Self::Type => "type",
            Self::Charset => "charset",
            Self::Encoding => "encoding",
            Self::Size => "size",
            Self::Syntax => "syntax",
            Self::Shape => "shape",
            Self::Name => "name",
            Self::Ambiguous => "ambiguous",
            Self::Number => "number",
        }
    }

    /// The reason of this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoType => "the body has no Content-Type",
            Self::Type => "the body is of a type that is not read",
            Self::Charset => "the text is not in UTF-8",
            Self::Encoding => "the body is compressed",
            Self::Size => "the body is larger than 64 KiB",
            Self::Syntax => "it is broken, or services read it differently",
            Self::Shape => "it is a list, a map or a file",
            Self::Name => "it is there only under a name that some services take for it",
            Self::Ambiguous => "it is there twice",
            Self::Number => "it is no whole number of at most 15 digits",
        })
    }
}
