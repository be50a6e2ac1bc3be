//! Builds the tree of a document from parser events, within bounds.

use std::collections::{HashMap, HashSet};

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use super::yaml_advice::advise;
use super::{BYTES_MAX, Entry, Node, Scalar, Value};
use crate::policy::diagnostics::{Position, Reporter, shown};

const DEPTH_MAX: usize = 64;
const NODES_MAX: usize = 100_000;
const ALIASED_BYTES_MAX: usize = 4 * BYTES_MAX;

/// Reads one document. Problems go to `diagnostics`; without a tree there is at least one error.
pub(crate) fn parse(text: &str, diagnostics: &Reporter) -> Option<Node> {
    let start = Position { line: 1, column: 1 };
    if text.len() > BYTES_MAX {
        diagnostics.error(start, format!("found {} bytes, expected at most 1 MiB", text.len()));
        return None;
    }
    let mut builder = Builder::new(diagnostics);
    for event in Parser::new_from_str(text) {
        match event {
            Ok((event, span)) => {
                if let Err((at, message)) = builder.add_event(event, position(span)) {
                    builder.diagnostics.error(at, message);
                    return None;
                }
            }
            Err(error) => {
                let at = within(text, marker_position(*error.marker()));
                let message = format!("not valid YAML: {}", error.info());
                match advise(error.info(), at, text) {
                    Some(help) => builder.diagnostics.error_with_help(at, message, help),
                    None => builder.diagnostics.error(at, message),
                }
                return None;
            }
        }
    }
    let root = builder.root.take();
    if root.is_none() {
        diagnostics.error(start, "found an empty document, expected a map");
    }
    root
}

/// A list or map whose end is yet to come.
struct OpenNode {
    node: Node,
    anchor: usize,
    /// The keys of a map so far.
    keys: HashSet<String>,
    /// The key of a map whose value is yet to come.
    key: Option<(String, Position)>,
}

struct Builder<'d> {
    diagnostics: &'d Reporter,
    /// The innermost last.
    open: Vec<OpenNode>,
    anchors: HashMap<usize, (Node, Size)>,
    size: Size,
    documents: usize,
    root: Option<Node>,
}

/// What stops the reading, and where.
type Fault = (Position, String);

impl<'d> Builder<'d> {
    fn new(diagnostics: &'d Reporter) -> Self {
        let (open, anchors) = (Vec::new(), HashMap::new());
        Self { diagnostics, open, anchors, size: Size::default(), documents: 0, root: None }
    }

    fn add_event(&mut self, event: Event<'_>, at: Position) -> Result<(), Fault> {
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) => {
                self.documents += 1;
                let second = (at, "found a second document, expected one".to_owned());
                if self.documents > 1 { Err(second) } else { Ok(()) }
            }
            Event::Alias(anchor) => self.add_alias(anchor, at),
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, Some(_))
            | Event::MappingStart(_, Some(_)) => Err((
                at,
                "found a tag (`!…`), expected a value: tags are not part of the language".into(),
            )),
            Event::Scalar(text, style, anchor, None) => {
                let quoted = style != ScalarStyle::Plain;
                let value = Value::Scalar(Scalar { text: text.into_owned(), quoted });
                self.add_node(Node { at, value }, anchor, Size::ONE)
            }
            Event::SequenceStart(anchor, None) => self.open(Value::List(Vec::new()), anchor, at),
            Event::MappingStart(anchor, None) => self.open(Value::Map(Vec::new()), anchor, at),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(OpenNode { node, anchor, .. }) => self.add_node(node, anchor, Size::ONE),
                None => Ok(()),
            },
        }
    }

    fn open(&mut self, value: Value, anchor: usize, at: Position) -> Result<(), Fault> {
        let is_key = |open: &OpenNode| open.node.entries().is_some() && open.key.is_none();
        if self.open.last().is_some_and(is_key) {
            return Err((at, "found a list or map as a key, expected a word".into()));
        }
        if self.open.len() == DEPTH_MAX {
            return Err((at, format!("found more than {DEPTH_MAX} levels of nesting")));
        }
        let node = Node { at, value };
        self.open.push(OpenNode { node, anchor, keys: HashSet::new(), key: None });
        Ok(())
    }

    fn add_alias(&mut self, anchor: usize, at: Position) -> Result<(), Fault> {
        let Some((node, size)) = self.anchors.get(&anchor) else {
            return Err((at, "found an alias (`*…`) to something that is not complete yet".into()));
        };
        // A reader sees the value behind an alias as if it were written here.
        if self.open.len() + size.levels > DEPTH_MAX {
            return Err((at, format!("found more than {DEPTH_MAX} levels of nesting")));
        }
        let (node, size) = (node.clone(), *size);
        self.grow(size, at)?;
        self.add_node(node, 0, Size::default())
    }

    /// Counts what is added, and refuses too much of it.
    fn grow(&mut self, by: Size, at: Position) -> Result<(), Fault> {
        self.size.nodes += by.nodes;
        self.size.bytes += by.bytes;
        if self.size.nodes > NODES_MAX {
            return Err((at, format!("found more than {NODES_MAX} values, aliases counted")));
        }
        if self.size.bytes > ALIASED_BYTES_MAX {
            return Err((at, "found more than 4 MiB of text behind anchors and aliases".into()));
        }
        Ok(())
    }

    /// Adds a complete node to the innermost open one. `size` is what it adds to the document.
    fn add_node(&mut self, node: Node, anchor: usize, size: Size) -> Result<(), Fault> {
        self.grow(size, node.at)?;
        if anchor != 0 {
            let size = Size::of(&node);
            if self.anchors.len() >= 1_000 {
                return Err((node.at, "found more than 1000 anchors".into()));
            }
            self.grow(size, node.at)?;
            self.anchors.insert(anchor, (node.clone(), size));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match (&mut open.node.value, open.key.take()) {
            (Value::Map(entries), Some((key, key_at))) => {
                entries.push(Entry { key, key_at, value: node });
            }
            (Value::Map(_), None) => {
                open.key = Some(map_key(node, &mut open.keys, self.diagnostics)?);
            }
            (Value::List(nodes), _) => nodes.push(node),
            (Value::Scalar(_), _) => {}
        }
        Ok(())
    }
}

/// Takes a node as the key of a map; a second one of the same name is reported, and reading goes on.
fn map_key(
    node: Node,
    keys: &mut HashSet<String>,
    diagnostics: &Reporter,
) -> Result<(String, Position), Fault> {
    let at = node.at;
    match node.value {
        Value::Scalar(Scalar { text, quoted: false }) if text == "<<" => Err((
            at,
            "found a merge key `<<`, expected each key written out, or `defaults:`".into(),
        )),
        Value::Scalar(scalar) => {
            if !keys.insert(scalar.text.clone()) {
                let name = shown(&scalar.text);
                diagnostics
                    .error(at, format!("found the key `{name}` a second time, expected it once"));
            }
            Ok((scalar.text, at))
        }
        Value::List(_) | Value::Map(_) => {
            Err((at, "found a list or map as a key, expected a word".into()))
        }
    }
}

/// How much a tree holds.
#[derive(Clone, Copy, Default)]
struct Size {
    nodes: usize,
    /// Of text.
    bytes: usize,
    /// Of lists and maps within each other.
    levels: usize,
}

impl Size {
    /// One node. Its text is part of the document, whose length is bounded already.
    const ONE: Self = Self { nodes: 1, bytes: 0, levels: 0 };

    /// The size of a tree, all text included.
    fn of(node: &Node) -> Self {
        match &node.value {
            Value::Scalar(scalar) => Self { nodes: 1, bytes: scalar.text.len(), levels: 0 },
            Value::List(nodes) => Self::around(nodes.iter().map(Self::of)),
            Value::Map(entries) => Self::around(entries.iter().map(|entry| {
                let size = Self::of(&entry.value);
                Self { nodes: size.nodes + 1, bytes: size.bytes + entry.key.len(), ..size }
            })),
        }
    }

    fn around(items: impl Iterator<Item = Self>) -> Self {
        items.fold(Self { nodes: 1, bytes: 0, levels: 1 }, |all, item| Self {
            nodes: all.nodes + item.nodes,
            bytes: all.bytes + item.bytes,
            levels: all.levels.max(item.levels + 1),
        })
    }
}

fn position(span: Span) -> Position {
    marker_position(span.start)
}

/// The place itself, or the end of its line: the parser counts some letters of a `%` line twice.
fn within(text: &str, at: Position) -> Position {
    let text = text.replace("\r\n", "\n");
    let line = usize::try_from(at.line).ok().and_then(|line| line.checked_sub(1));
    let line = line.and_then(|line| text.split(['\n', '\r']).nth(line)).unwrap_or_default();
    let end = u32::try_from(line.chars().count()).unwrap_or(u32::MAX).saturating_add(1);
    Position { column: at.column.min(end), ..at }
}

fn marker_position(marker: saphyr_parser::Marker) -> Position {
    let to_u32 = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Position { line: to_u32(marker.line()), column: to_u32(marker.col()).saturating_add(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Node, String> {
        Node::parse("p.yaml", text).map_err(|errors| errors.to_string())
    }

    #[test]
    fn scalars_keep_their_source_text_and_place() {
        let node = read("version: 1.10\ntier: '1'\n").unwrap();
        assert_eq!(node.get("version").unwrap().text(), Some("1.10"));
        let entries = node.entries().unwrap();
        assert_eq!(entries[1].key_at, Position { line: 2, column: 1 });
        assert_eq!(entries[1].value.at, Position { line: 2, column: 7 });
        assert_eq!(
            entries[1].value.value,
            Value::Scalar(Scalar { text: "1".into(), quoted: true })
        );
    }

    #[test]
    fn an_error_points_into_its_line() {
        let error = read("a: 1\r\n%éééé \u{1}").unwrap_err();
        assert!(error.starts_with("p.yaml:2:"), "{error}");
        let error = read("%éééé \u{1}").unwrap_err();
        let column: usize = error.split(':').nth(2).unwrap().parse().unwrap();
        assert!(column <= 8, "{error}");
    }

    #[test]
    fn every_duplicate_key_is_reported() {
        let error = read("a: 1\nb: 2\na: 3\nb: 4\n").unwrap_err();
        assert_eq!(
            error,
            "p.yaml:3:1: error: found the key `a` a second time, expected it once\n\
             p.yaml:4:1: error: found the key `b` a second time, expected it once"
        );
    }

    #[test]
    fn aliases_are_followed_but_cannot_explode() {
        let node = read("a: &x [1, 2]\nb: *x\n").unwrap();
        assert_eq!(node.get("a").unwrap().value, node.get("b").unwrap().value);
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..10 {
            let previous = format!("*a{}, ", level - 1).repeat(10);
            bomb.push_str(&format!("a{level}: &a{level} [{previous}]\n"));
        }
        assert!(read(&bomb).unwrap_err().contains("aliases counted"));
    }

    #[test]
    fn a_long_text_behind_an_alias_cannot_explode() {
        let many = "*x, ".repeat(90_000);
        let bomb = format!("a: &x {}\nb: [{many}]\n", "y".repeat(500_000));
        assert!(read(&bomb).unwrap_err().contains("4 MiB of text"));
        assert!(read(&format!("a: &x y\nb: [{many}]\n")).is_ok());
    }

    #[test]
    fn aliases_cannot_nest_deeper_than_brackets() {
        let mut deep = format!("a0: &a0 {}{}\n", "[".repeat(40), "]".repeat(40));
        assert!(read(&format!("{deep}b: [*a0]\n")).is_ok());
        deep.push_str(&format!("a1: {}*a0{}\n", "[".repeat(40), "]".repeat(40)));
        assert!(read(&deep).unwrap_err().contains("levels of nesting"));
    }

    #[test]
    fn what_the_language_does_not_have_is_refused() {
        for (text, expected) in [
            ("", "empty document"),
            ("a: !!str 5", "tag"),
            ("a: 1\n---\nb: 2", "second document"),
            ("a: &x {b: 1}\nc: {<<: *x}", "merge key"),
            ("? [a]\n: b", "as a key"),
            ("a: [", "not valid YAML"),
            ("a: *nobody", "not valid YAML"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(read("a: {b: ${C:-1}/s}").unwrap_err().contains("quote a value that has braces"));
        assert!(read("a:\n\tb: 1").unwrap_err().contains("no tabs"));
        assert!(read(&"[".repeat(65)).is_err());
        assert!(read(&"- ".repeat(1_000)).unwrap_err().contains("levels of nesting"));
        assert!(read(&"a".repeat(BYTES_MAX + 1)).unwrap_err().contains("1 MiB"));
    }
}
