//! The operations of a policy: their names, and the one that a request is.

use super::{LetterCase, Match, Matcher, NormalPath, PathPattern, Pattern};
use crate::policy::diagnostics::{nearest, shown};
use crate::policy::model::{AttributeId, OperationId};
use crate::policy::names::Names;
use crate::request::{Request, RequestError};

/// All operations of a policy. The first name is `default`.
#[derive(Debug)]
pub(crate) struct Operations {
    names: Names,
    matcher: Matcher,
    /// The attributes that each pattern captures, in the order of its segments.
    captured: Vec<Vec<Option<AttributeId>>>,
}

/// An operation, and the pattern that it was found by, if it was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperationMatch {
    pub(crate) operation: OperationId,
    pub(crate) matched: Option<Match>,
}

impl Operations {
    pub(crate) fn new(
        names: Names,
        case: LetterCase,
        patterns: impl IntoIterator<Item = (OperationId, Pattern, Vec<(String, String)>)>,
        attributes: &Names,
    ) -> Self {
        let mut captured = Vec::new();
        let patterns = patterns.into_iter().inspect(|(_, pattern, _)| {
            captured.push(pattern.path().names().map(|name| attributes.id(name)).collect());
        });
        let matcher = Matcher::new(case, patterns);
        Self { names, matcher, captured }
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    pub(crate) fn name(&self, id: OperationId) -> &str {
        self.names.name(id)
    }

    /// The headers that distinguish operations.
    pub(crate) fn header_names(&self) -> impl Iterator<Item = &str> {
        self.matcher.header_names()
    }

    /// An operation's patterns.
    pub(crate) fn patterns_of(&self, id: OperationId) -> impl Iterator<Item = &Pattern> {
        self.matcher.patterns_of(id)
    }

    /// The paths of an operation's patterns.
    pub(crate) fn paths_of(&self, id: OperationId) -> impl Iterator<Item = &PathPattern> {
        self.patterns_of(id).map(Pattern::path)
    }

    /// The operation that a request names, or the first that its method and path match.
    pub(crate) fn find(
        &self,
        request: &Request<'_>,
        method: Option<&str>,
        path: Option<&NormalPath<'_>>,
    ) -> Result<OperationMatch, RequestError> {
        let named = request.operation.as_deref().map(|name| self.id_of(name)).transpose()?;
        let method = method.unwrap_or_default();
        let header = |name: &str| request.header_value(name);
        let matched = path.and_then(|path| self.matcher.find(method, path, header));
        let matched = matched.filter(|found| named.is_none_or(|named| named == found.operation));
        let operation = named.or(matched.map(|found| found.operation)).unwrap_or_default();
        Ok(OperationMatch { operation, matched })
    }

    /// True if the pattern that a path matched also matches the form in which it is forwarded.
    pub(crate) fn matches_as_forwarded(&self, found: Match, path: &NormalPath<'_>) -> bool {
        let pattern = self.matcher.pattern(found);
        pattern.is_some_and(|pattern| pattern.path().matches_as_forwarded(path))
    }

    /// The segment of a path that the matched pattern captures as an attribute.
    pub(crate) fn captured<'p>(
        &self,
        found: Match,
        path: &'p NormalPath<'_>,
        attribute: AttributeId,
    ) -> Option<&'p str> {
        let captured = usize::try_from(found.pattern).ok().and_then(|at| self.captured.get(at))?;
        let place = captured.iter().position(|id| *id == Some(attribute))?;
        self.matcher.capture(found, path, place)
    }

    fn id_of(&self, name: &str) -> Result<OperationId, RequestError> {
        self.names.id(name).ok_or_else(|| {
            let known: Vec<&str> = self.names.iter().collect();
            let meant = nearest(name, &known).map(|word| format!("; did you mean `{word}`?"));
            let found = format!("found `{}`, expected a declared operation", shown(name));
            RequestError::new("operation", found + &meant.unwrap_or_default())
        })
    }
}
