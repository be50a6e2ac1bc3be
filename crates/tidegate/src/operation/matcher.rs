//! All operations of a policy in one trie over path segments.
//!
//! A request walks the trie level by level with the set of nodes that its path could have reached
//! so far. Literals are looked up, so neighbours cost nothing; a `**` is one node that stays in
//! the set, so it is never tried over and over. The work depends on the path and on how many
//! wildcards stand side by side, not on how many operations there are.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use super::letter_case::LetterCase;
use super::path::NormalPath;
use super::pattern::{Pattern, Segment};

/// The node of `/`, where every path starts.
const ROOT: usize = 0;

/// A map by texts of the policy. Clients cannot add to it, so that its hash needs no secret.
type ByText<T> = HashMap<String, T, FixedState>;

/// The nodes that a path could have reached; more than a few need wildcards side by side.
type Active = SmallVec<[usize; 8]>;

/// Which operation a request is, and by which of its patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// The operation's number, as it was given.
    pub operation: u32,
    /// The pattern's place in the declared order.
    pub pattern: u32,
}

/// The operations of a policy; the first in declared order that matches wins.
#[derive(Clone, Debug)]
pub struct Matcher {
    case: LetterCase,
    nodes: Vec<Node>,
    rules: Vec<Rule>,
    /// The headers of all rules, each once.
    header_names: Vec<String>,
}

/// One pattern with what belongs to it.
#[derive(Clone, Debug)]
struct Rule {
    operation: u32,
    pattern: Pattern,
    /// Headers, by lower-case name, and the values they must have.
    headers: Vec<(String, String)>,
    /// The places of the segments that it captures, if they are the same in all paths.
    capture_places: Option<Vec<usize>>,
}

impl Rule {
    fn new(operation: u32, pattern: Pattern, headers: Vec<(String, String)>) -> Self {
        let capture_places = pattern.path().capture_places();
        Self { operation, pattern, headers, capture_places }
    }
}

#[derive(Clone, Debug, Default)]
struct Node {
    /// Where literal segments lead, by their folded text.
    literals: ByText<usize>,
    /// Where `*` and `{name}` lead.
    one: Option<usize>,
    /// Where `**` leads.
    many: Option<usize>,
    /// Whether this is the node of a `**`, which any further segment leaves active.
    stays: bool,
    ends: PathEnds,
}

/// The rules whose path ends at a node, each list in declared order.
#[derive(Clone, Debug, Default)]
struct PathEnds {
    plain: Vec<usize>,
    /// Rules with header conditions, under the first one's name and value: an API with one path
    /// and a thousand actions named in a header is as quick as one with a thousand paths.
    by_header: Vec<(String, ByText<Vec<usize>>)>,
}

impl Matcher {
    /// Builds the trie from operations in the order in which they are tried: the operation's
    /// number, a pattern, and the headers (lower-case names) that must have exactly these values.
    /// An operation with several patterns is given several times.
    pub fn new(
        case: LetterCase,
        operations: impl IntoIterator<Item = (u32, Pattern, Vec<(String, String)>)>,
    ) -> Self {
        let nodes = vec![Node::default()];
        let mut matcher = Self { case, nodes, rules: Vec::new(), header_names: Vec::new() };
        for (operation, pattern, headers) in operations {
            matcher.insert(Rule::new(operation, pattern.with_case(case), headers));
        }
        matcher
    }

    /// Finds the first operation that matches; `header` gives a header's value by its lower-case
    /// name.
    pub fn find<'h>(
        &self,
        method: &str,
        path: &NormalPath<'_>,
        header: impl Fn(&str) -> Option<&'h str>,
    ) -> Option<Match> {
        let rule = self.first_rule(method, path, &header)?;
        Some(Match { operation: self.rules[rule].operation, pattern: u32::try_from(rule).ok()? })
    }

    fn first_rule<'h>(
        &self,
        method: &str,
        path: &NormalPath<'_>,
        header: &impl Fn(&str) -> Option<&'h str>,
    ) -> Option<usize> {
        let (mut segments, mut active) = (path.segments(), Active::new());
        // Nearly always it is one node all the way.
        let mut only = Some(ROOT).filter(|root| self.nodes[*root].many.is_none());
        if only.is_none() {
            self.enter(&mut active, Some(ROOT));
        }
        while let Some(at) = only {
            let Some(segment) = segments.next() else { return self.first(at, method, header) };
            only = self.only_way(at, segment);
            if only.is_none() {
                active.push(at);
                self.advance(&mut active, segment);
            }
        }
        for segment in segments {
            if active.is_empty() {
                return None;
            }
            self.advance(&mut active, segment);
        }
        active.iter().filter_map(|node| self.first(*node, method, header)).min()
    }

    /// The segment of a path that the matched pattern captures, by its place among the captures.
    #[must_use]
    pub fn capture<'p>(
        &self,
        found: Match,
        path: &'p NormalPath<'_>,
        place: usize,
    ) -> Option<&'p str> {
        let rule = self.rules.get(usize::try_from(found.pattern).ok()?)?;
        match &rule.capture_places {
            Some(places) => path.segments().nth(*places.get(place)?),
            None => rule.pattern.path().captures(path)?.get(place).copied(),
        }
    }

    /// The pattern by which an operation was found.
    pub(super) fn pattern(&self, found: Match) -> Option<&Pattern> {
        let rule = self.rules.get(usize::try_from(found.pattern).ok()?)?;
        Some(&rule.pattern)
    }

    /// The lower-case names of the headers that rules ask for, each once.
    pub(crate) fn header_names(&self) -> impl Iterator<Item = &str> {
        self.header_names.iter().map(String::as_str)
    }

    /// The patterns of one operation.
    pub(crate) fn patterns_of(&self, operation: u32) -> impl Iterator<Item = &Pattern> {
        let of_operation = move |rule: &&Rule| rule.operation == operation;
        self.rules.iter().filter(of_operation).map(|rule| &rule.pattern)
    }

    /// The first operation that matches all that a pattern does, whatever the headers; then the
    /// pattern stands behind the others. `None` may be overcautious, as [`Pattern::covers`].
    ///
    /// A matcher that is asked this must be made by this alone: how a pattern is written matters
    /// for what covers it, and only here is it rewritten.
    pub(crate) fn cover(
        &mut self,
        operation: u32,
        pattern: &Pattern,
        headers: Vec<(String, String)>,
    ) -> Option<u32> {
        let pattern = pattern.with_stars_last().with_case(self.case);
        let mut active = self.start();
        for segment in pattern.path().segments() {
            match segment {
                Segment::Literal(text) => self.advance(&mut active, text),
                Segment::One | Segment::Capture(_) => {
                    self.walk(&mut active, |node| [node.one, None]);
                }
                Segment::Many => self.walk(&mut active, |_| [None, None]),
            }
        }
        let covers = |rule: &&usize| self.rules[**rule].pattern.methods().covers(pattern.methods());
        let ends = active.iter().map(|node| &self.nodes[*node].ends.plain);
        let first = ends.filter_map(|plain| plain.iter().find(covers)).min();
        let first = first.map(|rule| self.rules[*rule].operation);
        self.insert(Rule::new(operation, pattern, headers));
        first
    }

    fn insert(&mut self, rule: Rule) {
        let mut at = ROOT;
        for segment in rule.pattern.path().segments() {
            at = self.child(at, segment);
        }
        self.nodes[at].ends.insert(self.rules.len(), rule.headers.first());
        for (name, _) in &rule.headers {
            if !self.header_names.contains(name) {
                self.header_names.push(name.clone());
            }
        }
        self.rules.push(rule);
    }

    /// The node behind another by one segment, made where there is none yet. All numbers of nodes
    /// come from here and no node is ever removed, so they can be used without asking.
    fn child(&mut self, parent: usize, segment: &Segment) -> usize {
        let (new, case) = (self.nodes.len(), self.case);
        let node = &mut self.nodes[parent];
        let child = match segment {
            Segment::Literal(text) => {
                *node.literals.entry(case.fold(text).into_owned()).or_insert(new)
            }
            Segment::One | Segment::Capture(_) => *node.one.get_or_insert(new),
            Segment::Many => *node.many.get_or_insert(new),
        };
        if child == new {
            self.nodes.push(Node { stays: *segment == Segment::Many, ..Node::default() });
        }
        child
    }

    fn start(&self) -> Active {
        let mut active = Active::new();
        self.enter(&mut active, Some(ROOT));
        active
    }

    /// Adds a node, and the `**` behind it, which may stand for nothing.
    fn enter(&self, active: &mut Active, mut entered: Option<usize>) {
        while let Some(at) = entered {
            active.push(at);
            entered = self.nodes[at].many;
        }
    }

    /// Replaces the active nodes by those that one more segment leads to.
    fn advance(&self, active: &mut Active, segment: &str) {
        let segment = self.case.fold(segment);
        self.walk(active, |node| [node.one, node.literals.get(&*segment).copied()]);
    }

    /// The one node that a segment leads to; `None` where it is none, or several.
    #[inline]
    fn only_way(&self, at: usize, segment: &str) -> Option<usize> {
        let node = &self.nodes[at];
        let next = match (node.one, node.literals.get(&*self.case.fold(segment))) {
            (Some(next), None) | (None, Some(&next)) if !node.stays => next,
            _ => return None,
        };
        self.nodes[next].many.is_none().then_some(next)
    }

    /// Replaces the active nodes by those that `next` leads to, and by each `**` among them.
    fn walk(&self, active: &mut Active, next: impl Fn(&Node) -> [Option<usize>; 2]) {
        let before = active.len();
        for index in 0..before {
            let at = active[index];
            let node = &self.nodes[at];
            if node.stays {
                active.push(at);
            }
            next(node).into_iter().for_each(|entered| self.enter(active, entered));
        }
        active.drain(..before);
        // A `**` that stayed may also have been entered again from the node before it.
        if active.len() > 1 {
            active.sort_unstable();
            active.dedup();
        }
    }

    /// The first rule that ends at a node and fits the method and the headers.
    fn first<'h>(
        &self,
        node: usize,
        method: &str,
        header: &impl Fn(&str) -> Option<&'h str>,
    ) -> Option<usize> {
        let fits = |rule: &usize| {
            let rule = &self.rules[*rule];
            let says = |(name, value): &(String, String)| header(name) == Some(value);
            rule.pattern.methods().contains(method) && rule.headers.iter().all(says)
        };
        let PathEnds { plain, by_header } = &self.nodes[node].ends;
        let first = plain.iter().copied().find(fits);
        let by_header = by_header
            .iter()
            .filter_map(|(name, by_value)| by_value.get(header(name)?)?.iter().copied().find(fits));
        by_header.chain(first).min()
    }

    /// How many nodes a path makes the walk look at: the cost of a search, without a clock.
    #[cfg(test)]
    fn visited(&self, path: &NormalPath<'_>) -> usize {
        let mut active = self.start();
        path.segments().fold(active.len(), |visited, segment| {
            self.advance(&mut active, segment);
            visited + active.len()
        })
    }
}

impl PathEnds {
    fn insert(&mut self, rule: usize, condition: Option<&(String, String)>) {
        let Some((name, value)) = condition else { return self.plain.push(rule) };
        let place = self.by_header.iter().position(|(known, _)| known == name);
        let place = place.unwrap_or_else(|| {
            self.by_header.push((name.clone(), ByText::default()));
            self.by_header.len() - 1
        });
        if let Some((_, by_value)) = self.by_header.get_mut(place) {
            by_value.entry(value.clone()).or_default().push(rule);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(raw: &str) -> NormalPath<'_> {
        NormalPath::parse(raw).unwrap()
    }

    fn matcher<T: AsRef<str>>(patterns: &[T]) -> Matcher {
        matcher_of(LetterCase::Matters, patterns)
    }

    fn matcher_of<T: AsRef<str>>(case: LetterCase, patterns: &[T]) -> Matcher {
        let parsed = patterns.iter().map(|text| Pattern::parse(text.as_ref()).unwrap());
        Matcher::new(case, (0..).zip(parsed).map(|(number, pattern)| (number, pattern, Vec::new())))
    }

    fn found(matcher: &Matcher, method: &str, raw: &str) -> Option<u32> {
        matcher.find(method, &path(raw), |_| None).map(|found| found.operation)
    }

    #[test]
    fn the_first_in_declared_order_wins() {
        let matcher = matcher(&["POST /a/*", "/a/b", "/**", "/a/c"]);
        assert_eq!(found(&matcher, "POST", "/a/b"), Some(0));
        assert_eq!(found(&matcher, "GET", "/a/b"), Some(1));
        assert_eq!(found(&matcher, "GET", "/a/c"), Some(2));
        assert_eq!(found(&matcher, "GET", "/"), Some(2));
        assert_eq!(found(&self::matcher(&["/a"]), "GET", "/b"), None);
        assert_eq!(found(&self::matcher(&[""; 0]), "GET", "/"), None);
    }

    #[test]
    fn headers_choose_among_operations_of_one_path() {
        let action = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let rpc = || Pattern::parse("POST /rpc").unwrap();
        let rules = [
            (7, rpc(), vec![action("x-action", "send"), action("x-mode", "dry")]),
            (8, rpc(), vec![action("x-action", "send")]),
            (9, rpc(), vec![]),
            (10, rpc(), vec![action("x-mode", "dry")]),
        ];
        let matcher = Matcher::new(LetterCase::Matters, rules);
        let find = |headers: &'static [(&str, &str)]| {
            let header = |name: &str| {
                headers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
            };
            matcher.find("POST", &path("/rpc"), header).unwrap()
        };
        assert_eq!(
            find(&[("x-action", "send"), ("x-mode", "dry")]),
            Match { operation: 7, pattern: 0 }
        );
        assert_eq!(find(&[("x-action", "send")]), Match { operation: 8, pattern: 1 });
        assert_eq!(find(&[("x-mode", "dry")]), Match { operation: 9, pattern: 2 });
        assert_eq!(find(&[]), Match { operation: 9, pattern: 2 });
    }

    #[test]
    fn captures_belong_to_the_pattern_that_matched() {
        let matcher = matcher(&["/rooms/{room}/bookings", "/**/{last}"]);
        let captures = |raw| {
            let path = path(raw);
            let found = matcher.find("GET", &path, |_| None).unwrap();
            [0, 1].map(|place| matcher.capture(found, &path, place).map(str::to_owned))
        };
        assert_eq!(captures("/rooms/7/bookings"), [Some("7".to_owned()), None]);
        assert_eq!(captures("/rooms/7"), [Some("7".to_owned()), None]);
        let unknown = Match { operation: 0, pattern: 9 };
        assert_eq!(matcher.capture(unknown, &path("/"), 0), None);
    }

    #[test]
    fn where_case_is_ignored_letters_match_in_either_and_captures_keep_theirs() {
        let patterns = ["/Users/{user}/Posts", "/a/**/{last}/Z", "/caf%C3%A9"];
        let matcher = matcher_of(LetterCase::Ignored, &patterns);
        let captured = |raw| {
            let path = path(raw);
            let found = matcher.find("GET", &path, |_| None)?;
            Some((found.operation, matcher.capture(found, &path, 0).unwrap_or("").to_owned()))
        };
        assert_eq!(captured("/users/Ada/posts"), Some((0, "Ada".to_owned())));
        assert_eq!(captured("/%55SERS/ada/PoSTS"), Some((0, "ada".to_owned())));
        assert_eq!(captured("/A/b/C/z"), Some((1, "C".to_owned())));
        assert_eq!(captured("/CAFé"), Some((2, String::new())));
        assert_eq!(captured("/cafÉ"), None, "only ASCII letters have two cases");
        assert_eq!(found(&self::matcher(&patterns), "GET", "/users/Ada/posts"), None);
        let mut before = Matcher::new(LetterCase::Ignored, []);
        let cover = |text| Pattern::parse(text).unwrap();
        assert_eq!(before.cover(1, &cover("/Login"), Vec::new()), None);
        assert_eq!(before.cover(2, &cover("/LOGIN"), Vec::new()), Some(1));
    }

    fn many_operations(count: usize) -> Matcher {
        let patterns = (0..count).map(|n| match n % 4 {
            0 => format!("GET /api/r{n}/{{id}}"),
            1 => format!("POST /api/r{n}/{{id}}/items/*"),
            2 => format!("/files/**/f{n}"),
            _ => format!("/**/z{n}/**"),
        });
        matcher(&patterns.collect::<Vec<_>>())
    }

    #[test]
    fn two_thousand_operations_cost_no_more_than_twice_twenty() {
        let (few, many) = (many_operations(20), many_operations(2_000));
        for raw in ["/api/r1/7/items/9", "/files/a/b/f2", "/x/z3/y", "/nothing", "/api/r16/x"] {
            let path = path(raw);
            assert!(many.visited(&path) <= 2 * few.visited(&path), "{raw}");
        }
    }

    #[test]
    fn stars_upon_stars_stay_small() {
        let matcher = matcher(&["/**/a/**/a/**/a/**/a/**/a/**/a/**/b"]);
        let raw = "/a".repeat(256);
        let path = path(&raw);
        assert_eq!(matcher.find("GET", &path, |_| None), None);
        assert!(matcher.visited(&path) <= 257 * matcher.nodes.len());
    }

    proptest! {
        #[test]
        fn the_trie_agrees_with_trying_every_pattern(
            texts in prop::collection::vec("(|GET |PUT\\|GET )(/(a|b|A|\\*|\\{x\\}|\\*\\*)){1,5}", 0..12),
            raw in "/([abcAB]/){0,6}",
            method in "GET|HEAD|PUT|POST",
            case in prop::sample::select(vec![LetterCase::Matters, LetterCase::Ignored]),
        ) {
            let patterns = texts.iter().filter_map(|text| Pattern::parse(text).ok());
            let patterns: Vec<_> = patterns.map(|pattern| pattern.with_case(case)).collect();
            let path = path(&raw);
            let expected = patterns.iter().position(|pattern| pattern.matches(&method, &path));
            let rules = (0..).zip(patterns).map(|(n, pattern)| (n, pattern, Vec::new()));
            let found = Matcher::new(case, rules).find(&method, &path, |_| None);
            prop_assert_eq!(found.map(|found| found.pattern as usize), expected);
        }

        #[test]
        fn the_trie_covers_what_comparing_all_with_all_does(
            texts in prop::collection::vec("(|GET |PUT\\|GET )(/(a|b|A|\\*|\\{x\\}|\\*\\*)){1,5}", 0..12),
            case in prop::sample::select(vec![LetterCase::Matters, LetterCase::Ignored]),
        ) {
            let patterns = texts.iter().filter_map(|text| Pattern::parse(text).ok());
            let patterns: Vec<_> = patterns.map(|pattern| pattern.with_case(case)).collect();
            let mut matcher = Matcher::new(case, []);
            for (index, later) in patterns.iter().enumerate() {
                let first = patterns[..index].iter().position(|earlier| earlier.covers(later));
                let number = u32::try_from(index).unwrap();
                let found = matcher.cover(number, later, Vec::new());
                prop_assert_eq!(found.map(|found| found as usize), first, "{:?}", later);
            }
        }
    }
}
