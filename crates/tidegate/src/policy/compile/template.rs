//! Key templates: `rl:deals:w:{user}`.

use std::collections::HashMap;

use super::fields::{Fields, text};
use super::{Compiler, Scope};
use crate::key::{Piece, Template};
use crate::policy::diagnostics::shown;
use crate::policy::document::Node;
use crate::policy::model::{Limit, Part};
use crate::policy::protection::Penalty;

/// The longest template.
const BYTES_MAX: usize = 512;

impl Compiler<'_> {
    /// `rl:deals:w:{user}`: every part of `by`, and no other.
    pub(super) fn template(&self, node: &Node, by: &[Part], scope: &Scope<'_>) -> Option<Template> {
        let text = text(node, "a key template such as `rl:deals:{user}`", self.diagnostics)?;
        if text.len() > BYTES_MAX {
            let message = format!(
                "found a key template of {} bytes, expected at most {BYTES_MAX}",
                text.len()
            );
            self.diagnostics.error(node.at, message);
            return None;
        }
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((literal, from)) = rest.split_once('{') {
            let Some((reference, after)) = from.split_once('}') else {
                self.diagnostics
                    .error(node.at, format!("found `{}`, expected a closing `}}`", shown(text)));
                return None;
            };
            let (name, raw) =
                reference.strip_suffix(":raw").map_or((reference, false), |name| (name, true));
            let part = self.part(name, node.at, scope)?;
            if !by.contains(&part) {
                self.diagnostics.error(
                    node.at,
                    format!("found `{{{}}}`, which is not a part of `by`", shown(name)),
                );
                return None;
            }
            pieces.push(Piece::Literal(literal.to_owned()));
            pieces.push(Piece::Part { part, raw });
            rest = after;
        }
        pieces.push(Piece::Literal(rest.to_owned()));
        let names = |part: &&Part| {
            !matches!(part, Part::Global) && !pieces.iter().any(|piece| piece.is(part))
        };
        if by.iter().any(|part| names(&part)) {
            let help = "two subjects would share one key; add `{…}` for each part";
            self.diagnostics.error_with_help(
                node.at,
                format!("found `{}`, which leaves out a part of `by`", shown(text)),
                help,
            );
            return None;
        }
        Some(Template { text: text.to_owned(), pieces })
    }

    /// Reports a template that several limits or penalties have: their counts would share a key.
    pub(super) fn check_templates(
        &self,
        fields: &Fields<'_>,
        limits: &[Limit],
        penalties: &[Penalty],
    ) {
        let of_limits = limits.iter().map(|one| ("limits", "limit", &*one.name, &one.key));
        let of_penalties =
            penalties.iter().map(|one| ("penalties", "penalty", &*one.name, &one.key));
        let mut seen: HashMap<&str, (&str, &str)> = HashMap::new();
        for (section, what, name, template) in of_limits.chain(of_penalties) {
            let Some(Template { text, .. }) = template else { continue };
            let Some((other, earlier)) = seen.insert(text, (what, name)) else { continue };
            let written = fields.get(section).and_then(|node| node.get(name));
            if let Some(node) = written.and_then(|node| node.get("key")) {
                let found = shown(text);
                let message =
                    format!("found the key template `{found}` of the {other} `{earlier}` again");
                self.diagnostics.error(node.at, message);
            }
        }
    }
}

impl Piece {
    fn is(&self, wanted: &Part) -> bool {
        matches!(self, Self::Part { part, .. } if part == wanted)
    }
}
