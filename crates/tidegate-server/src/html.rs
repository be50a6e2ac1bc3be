//! What pages share: escaped text, the small page with one card, and sources for content security
//! policies.

use std::fmt::{self, Display, Write as _};

use data_encoding::BASE64;
use sha2::{Digest as _, Sha256};

/// The style of a page with one card: a challenge, a refusal.
pub(crate) const CARD_STYLE: &str = include_str!("card.css");

/// Writes the head of a page with one card, up to its body.
pub(crate) fn write_card_head(out: &mut String, title: &str) -> fmt::Result {
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <meta name=\"robots\" content=\"noindex\">\
         <title>{}</title><style>{CARD_STYLE}</style></head>",
        Escaped(title)
    )
}

/// A script or style as a content security policy names it.
pub(crate) fn hash_source(text: &str) -> String {
    format!("sha256-{}", BASE64.encode(&Sha256::digest(text)))
}

/// Text as HTML: markup in it has no effect.
pub(crate) struct Escaped<'a>(pub(super) &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                _ => f.write_char(letter)?,
            }
        }
        Ok(())
    }
}
