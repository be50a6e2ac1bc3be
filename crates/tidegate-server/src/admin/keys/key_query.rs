//! The parameters of `/admin/v1/keys`.

use std::borrow::Cow;

use tidegate::Request;

use crate::wire::fields::FieldError;
use crate::wire::query::{Query, address, boolean, unknown_parameter};

const PARAMETERS: &str = "one of policy, limit, penalty, key, user, ip, tier, country, operation, \
                          method, path, attribute.NAME, header.NAME, count, cursor, dry_run";

/// Which keys, and which page of them.
pub(super) struct KeyQuery<'q> {
    pub(super) limit: Option<Cow<'q, str>>,
    pub(super) penalty: Option<Cow<'q, str>>,
    pub(super) key: Option<Cow<'q, str>>,
    /// The policy, and the subject as a request.
    pub(super) request: Request<'q>,
    /// The names of the parameters that select keys.
    pub(super) selected_by: Vec<String>,
    pub(super) count: usize,
    pub(super) cursor: Option<Cow<'q, str>>,
    pub(super) dry_run: bool,
    pub(super) is_delete: bool,
}

impl<'q> KeyQuery<'q> {
    pub(super) fn parse(text: &'q str, is_delete: bool) -> Result<Self, FieldError> {
        let mut query = Query::parse_selection(text)?;
        let (count, cursor) = (query.take_count()?, query.take("cursor"));
        let dry_run = if is_delete { query.take_parsed("dry_run", boolean)? } else { None };
        let selected_by = query.names().map(str::to_owned).collect();
        let (key, limit) = (query.take("key"), query.take("limit"));
        let penalty = query.take("penalty");
        let mut request = Request::default();
        request.policy = query.take("policy");
        request.user = query.take("user");
        request.ip = query.take_parsed("ip", address)?;
        request.tier = query.take("tier");
        request.country = query.take("country");
        request.operation = query.take("operation");
        request.method = query.take("method");
        request.path = query.take("path");
        for (name, value) in query.into_rest() {
            if let Some(attribute) = name.strip_prefix("attribute.") {
                request.attributes.push((attribute.to_owned().into(), value));
            } else if let Some(header) = name.strip_prefix("header.") {
                request.headers.push((header.to_owned().into(), value));
            } else {
                return Err(unknown_parameter(&name, PARAMETERS));
            }
        }
        let dry_run = dry_run.unwrap_or_default();
        Self { limit, penalty, key, request, selected_by, count, cursor, dry_run, is_delete }
            .validate()
    }

    /// True if the query names a subject, whose keys are found without a scan.
    pub(super) fn has_subject(&self) -> bool {
        self.selected_by
            .iter()
            .any(|name| !matches!(&**name, "policy" | "limit" | "penalty" | "key"))
    }

    /// True if the query names a limit or a penalty.
    pub(super) const fn names_owner(&self) -> bool {
        self.limit.is_some() || self.penalty.is_some()
    }

    fn validate(self) -> Result<Self, FieldError> {
        if self.key.is_some() && self.selected_by.len() > 1 {
            return Err(FieldError::new("key", "names one key: say it alone"));
        }
        if self.limit.is_some() && self.penalty.is_some() {
            return Err(FieldError::new("penalty", "is no limit: say one of them"));
        }
        if self.request.path.is_none() && self.request.method.is_some() {
            return Err(FieldError::new("method", "says nothing without a path"));
        }
        if self.cursor.is_some() && (self.key.is_some() || self.has_subject()) {
            let detail =
                "is for pages of a limit or penalty: the keys of a subject are on one page";
            return Err(FieldError::new("cursor", detail));
        }
        let is_selective = self.key.is_some() || self.names_owner() || self.has_subject();
        if self.is_delete && !is_selective {
            let detail = "say which keys: a key, a limit, a penalty or a subject, such as user";
            return Err(FieldError::new("", detail));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field_of(text: &str, deletes: bool) -> Option<String> {
        KeyQuery::parse(text, deletes).err().map(|error| error.field)
    }

    #[test]
    fn what_is_wrong_is_told_with_its_parameter() {
        for (text, field) in [
            ("usr=u1", "usr"),
            ("user=", "user"),
            ("user=a&user=b", "user"),
            ("ip=localhost", "ip"),
            ("count=0", "count"),
            ("count=1001", "count"),
            ("count=many", "count"),
            ("key=a&user=u1", "key"),
            ("key=a&policy=p", "key"),
            ("method=GET", "method"),
            ("limit=l&penalty=p", "penalty"),
            ("user=u1&cursor=0-1", "cursor"),
            ("dry_run=true", "dry_run"),
        ] {
            assert_eq!(field_of(text, false).as_deref(), Some(field), "{text}");
        }
    }

    #[test]
    fn to_delete_one_must_say_what() {
        for text in ["", "policy=p", "count=5", "dry_run=true", "cursor=0-1"] {
            assert_eq!(field_of(text, true).as_deref(), Some(""), "{text}");
        }
        assert_eq!(field_of("limit=l&dry_run=1", true).as_deref(), Some("dry_run"));
        for text in [
            "limit=l",
            "penalty=p",
            "key=k",
            "user=u&dry_run=true",
            "attribute.room=7",
            "header.x=1",
        ] {
            assert!(KeyQuery::parse(text, true).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_subject_is_read_with_all_that_is_said_of_it() {
        let text = "user=a%20b&attribute.room=r9&header.X-Key=k&path=/a";
        let query = KeyQuery::parse(text, false).unwrap_or_else(|error| panic!("{error:?}"));
        assert_eq!(query.request.user.as_deref(), Some("a b"));
        assert_eq!(query.request.attributes, [("room".into(), "r9".into())]);
        assert_eq!(query.request.headers, [("X-Key".into(), "k".into())]);
        assert_eq!(query.selected_by, ["user", "attribute.room", "header.X-Key", "path"]);
        assert!(query.has_subject());
    }
}
