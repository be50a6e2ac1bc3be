//! Changes to a document before it is compiled: environment variables inside scalars, profiles and
//! the overlays of policy tests (rule 9).

use std::collections::{BTreeMap, HashMap, HashSet};

use super::diagnostics::{Position, Reporter, shown};
use super::document::{Entry, Node, Scalar, Value};
use super::model::Algorithm;

/// The most text that variables may make of a document.
const REPLACED_BYTES_MAX: usize = 4 << 20;

/// Which part of a document a map is, as far as laying over cares.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// A whole policy.
    Policy,
    /// Its `limits:`.
    Limits,
    /// One limit: here an algorithm replaces any other algorithm.
    Limit,
    /// Anything else.
    Plain,
}

impl Place {
    fn below(self, key: &str) -> Self {
        match self {
            Self::Policy if key == "limits" => Self::Limits,
            Self::Limits => Self::Limit,
            _ => Self::Plain,
        }
    }
}

/// Lays `over` over `base`: maps merge, lists and scalars replace, null deletes.
pub(crate) fn lay_over(base: &mut Node, over: &Node, place: Place) {
    let Node { at, value: Value::Map(over_entries) } = over else {
        *base = over.clone();
        return;
    };
    if !matches!(base.value, Value::Map(_)) {
        *base = Node { at: *at, value: Value::Map(Vec::new()) };
    }
    let Value::Map(entries) = &mut base.value else { return };
    let names = |entry: &&Entry| is_algorithm(&entry.key) && !entry.value.is_null();
    if let Some(new) = over_entries.iter().find(names).filter(|_| place == Place::Limit) {
        entries.retain(|entry| entry.key == new.key || !is_algorithm(&entry.key));
    }
    let nulls = over_entries.iter().filter(|over| over.value.is_null());
    let deleted: HashSet<&str> = nulls.map(|over| over.key.as_str()).collect();
    entries.retain(|entry| !deleted.contains(entry.key.as_str()));
    let places: HashMap<String, usize> =
        entries.iter().enumerate().map(|(index, entry)| (entry.key.clone(), index)).collect();
    for over in over_entries.iter().filter(|over| !over.value.is_null()) {
        match places.get(&over.key).and_then(|index| entries.get_mut(*index)) {
            Some(entry) => lay_over(&mut entry.value, &over.value, place.below(&over.key)),
            None => {
                let mut entry = over.clone();
                drop_nulls(&mut entry);
                entries.push(entry);
            }
        }
    }
}

/// Drops nulls of a new entry: there is nothing to delete. In a body a null stays, to be reported.
fn drop_nulls(entry: &mut Entry) {
    if let Value::Map(entries) = &mut entry.value.value
        && entry.key != "body"
    {
        entries.retain(|entry| !entry.value.is_null());
        entries.iter_mut().for_each(drop_nulls);
    }
}

fn is_algorithm(key: &str) -> bool {
    Algorithm::ALL.iter().any(|algorithm| algorithm.name() == key)
}

/// Replaces `${NAME}` and `${NAME:-default}` inside every scalar; `$${` stands for `${` itself.
pub(crate) fn substitute(node: &mut Node, env: &BTreeMap<String, String>, diagnostics: &Reporter) {
    Substitution { env, diagnostics, bytes_left: REPLACED_BYTES_MAX }.node(node);
}

/// Variables being replaced throughout a document.
struct Substitution<'s> {
    env: &'s BTreeMap<String, String>,
    diagnostics: &'s Reporter,
    /// How much text variables may still make. A long variable may be named often.
    bytes_left: usize,
}

impl Substitution<'_> {
    fn node(&mut self, node: &mut Node) {
        match &mut node.value {
            Value::Scalar(scalar) => self.scalar(scalar, node.at),
            Value::List(nodes) => nodes.iter_mut().for_each(|node| self.node(node)),
            Value::Map(entries) => {
                entries.iter_mut().for_each(|entry| self.node(&mut entry.value));
            }
        }
    }

    fn scalar(&mut self, scalar: &mut Scalar, at: Position) {
        if !scalar.text.contains("${") {
            return;
        }
        let mut result = String::with_capacity(scalar.text.len());
        let mut rest = scalar.text.as_str();
        while let Some(start) = rest.find("${") {
            let (before, from) = rest.split_at(start);
            if let Some(before) = before.strip_suffix('$') {
                result.push_str(before);
                result.push_str("${");
                rest = &from[2..];
                continue;
            }
            result.push_str(before);
            let Some(end) = from.find('}') else {
                self.diagnostics
                    .error(at, format!("found `{}`, expected a closing `}}`", shown(from)));
                return;
            };
            match resolve(&from[2..end], self.env) {
                Ok(value) => {
                    let Some(left) = self.bytes_left.checked_sub(value.len()) else {
                        let message = "found more than 4 MiB of text from variables";
                        return self.diagnostics.error(at, message);
                    };
                    self.bytes_left = left;
                    result.push_str(value);
                }
                Err((message, help)) => self.diagnostics.error_with_help(at, message, help),
            }
            rest = &from[end + 1..];
        }
        result.push_str(rest);
        scalar.text = result;
    }
}

/// The value of what stands between `${` and `}`.
fn resolve<'a>(
    reference: &'a str,
    env: &'a BTreeMap<String, String>,
) -> Result<&'a str, (String, String)> {
    let (name, default) = match reference.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (reference, None),
    };
    let valid = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !valid {
        let message = format!(
            "found `${{{}}}`, expected `${{NAME}}` or `${{NAME:-default}}`",
            shown(reference)
        );
        return Err((
            message,
            "a name is letters, digits and `_`; write `$${` for a plain `${`".into(),
        ));
    }
    match (env.get(name), default) {
        (Some(value), Some(default)) if value.is_empty() => Ok(default),
        (Some(value), _) => Ok(value),
        (None, Some(default)) => Ok(default),
        (None, None) => Err((
            format!("the environment variable `{name}` is not set"),
            format!("set it, or write a default: `${{{name}:-…}}`"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(text: &str) -> Node {
        Node::parse("p.yaml", text).unwrap_or_else(|errors| panic!("{errors}"))
    }

    /// The tree without its places.
    fn plain(node: &Node) -> String {
        match &node.value {
            Value::Scalar(scalar) => scalar.text.clone(),
            Value::List(nodes) => {
                format!("[{}]", nodes.iter().map(plain).collect::<Vec<_>>().join(", "))
            }
            Value::Map(entries) => {
                let entry = |entry: &Entry| format!("{}: {}", entry.key, plain(&entry.value));
                format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(", "))
            }
        }
    }

    fn laid_in(place: Place, base: &str, over: &str) -> String {
        let mut base = tree(base);
        lay_over(&mut base, &tree(over), place);
        plain(&base)
    }

    fn laid(base: &str, over: &str) -> String {
        laid_in(Place::Policy, base, over)
    }

    #[test]
    fn maps_merge_lists_replace_null_deletes_rule_9() {
        assert_eq!(
            laid("{a: 1, m: {x: 1, y: 2}, l: [1, 2]}", "{m: {y: 3}, l: [9]}"),
            "{a: 1, m: {x: 1, y: 3}, l: [9]}"
        );
        assert_eq!(laid("{a: 1, b: 2}", "{a: null}"), "{b: 2}");
        assert_eq!(laid("{a: 1}", "{b: {c: ~, d: 1}}"), "{a: 1, b: {d: 1}}");
    }

    #[test]
    fn specs_replace_and_a_new_algorithm_replaces_the_old_rule_9() {
        let tiers = "{limits: {a: {sliding_window: {free: 1/s, vip: 2/s}}}}";
        let raised = "{limits: {a: {sliding_window: {free: 5/s, vip: 2/s}}}}";
        assert_eq!(laid(tiers, "{limits: {a: {sliding_window: {free: 5/s}}}}"), raised);
        let one = "{limits: {a: {sliding_window: 5/s}}}";
        assert_eq!(laid(tiers, one), one);
        assert_eq!(
            laid_in(Place::Limit, "{by: ip, quota: 5/day}", "{total: 3}"),
            "{by: ip, total: 3}"
        );
        assert_eq!(
            laid("{body: {quota: 1}}", "{body: {total: 3}}"),
            "{body: {quota: 1, total: 3}}"
        );
    }

    fn substituted(text: &str) -> Result<String, String> {
        let env =
            BTreeMap::from([("N".to_owned(), "5".to_owned()), ("EMPTY".to_owned(), String::new())]);
        let (diagnostics, mut node) = (Reporter::default(), tree(text));
        substitute(&mut node, &env, &diagnostics);
        let substituted = diagnostics.conclude("p.yaml", Some(plain(&node)));
        substituted.map(|(text, _)| text).map_err(|errors| errors.to_string())
    }

    #[test]
    fn variables_are_replaced_inside_scalars_rule_9() {
        assert_eq!(substituted("a: ${N}/min burst ${M:-20}").unwrap(), "{a: 5/min burst 20}");
        assert_eq!(substituted("a: ${EMPTY:-x}").unwrap(), "{a: x}");
        assert_eq!(substituted("a: v${EMPTY}").unwrap(), "{a: v}");
        assert_eq!(substituted("a: $${N} costs $5").unwrap(), "{a: ${N} costs $5}");
    }

    #[test]
    fn variables_cannot_make_more_text_than_memory_holds() {
        let env = BTreeMap::from([("N".to_owned(), "x".repeat(1 << 20))]);
        let (diagnostics, mut node) = (Reporter::default(), tree(&"- ${N}${N}\n".repeat(90_000)));
        substitute(&mut node, &env, &diagnostics);
        let diagnostics = diagnostics.finish("p.yaml");
        assert!(diagnostics.to_string().contains("4 MiB"), "{diagnostics}");
    }

    #[test]
    fn an_unset_variable_without_default_is_an_error_rule_9() {
        assert!(substituted("a: ${M}").unwrap_err().contains("`M` is not set"));
        assert!(substituted("a: ${M").unwrap_err().contains("closing"));
        assert!(substituted("a: ${1-x}").unwrap_err().contains("a name is letters"));
    }
}
