//! What kind of request is it? A method and a path, matched against the policy's operations.
//!
//! A path is normalised once ([`NormalPath`]); every later stage sees only that form, so that no
//! spelling of a path reaches a limit that another spelling of it avoids. A [`Pattern`] is one
//! `[METHOD[|METHOD]] PATTERN` of the policy; the [`Matcher`] holds all of them in one trie and
//! finds the first that matches.

mod letter_case;
mod matcher;
mod method_override;
mod methods;
mod operations;
mod path;
mod pattern;

pub use letter_case::LetterCase;
pub use matcher::{Match, Matcher};
pub use method_override::METHOD_OVERRIDES;
pub(crate) use method_override::{in_upper_case, overridden_method};
pub use methods::Methods;
pub(crate) use methods::is_method;
pub(crate) use operations::{OperationMatch, Operations};
pub use path::{NormalPath, SEGMENTS_MAX, forwarded_path};
pub use pattern::{PathPattern, Pattern};
