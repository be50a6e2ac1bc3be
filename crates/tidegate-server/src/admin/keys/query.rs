//! What an operator asks for: the parameters of the call, each of them checked.

use std::borrow::Cow;

use tidegate::Request;

use super::Failure;

/// How many keys a page holds unless told otherwise, and at most.
const COUNT_DEFAULT: usize = 100;
const COUNT_MAX: usize = 1_000;

/// The parameters, in the order of the documents.
const PARAMETERS: &str = "policy, limit, key, user, ip, tier, country, operation, method, path, \
                          attribute.NAME, header.NAME, count, cursor, dry_run";

/// Which keys, and which page of them.
pub(super) struct Query<'q> {
    pub(super) limit: Option<Cow<'q, str>>,
    pub(super) key: Option<Cow<'q, str>>,
    /// The policy and the subject, if one is said.
    pub(super) request: Request<'q>,
    /// What was said to choose them by: names alone.
    pub(super) by: Vec<String>,
    pub(super) count: usize,
    pub(super) cursor: Option<Cow<'q, str>>,
    pub(super) dry_run: bool,
    /// Whether what is found is to go.
    pub(super) deletes: bool,
}

impl<'q> Query<'q> {
    pub(super) fn parse(text: &'q str, deletes: bool) -> Result<Self, Failure> {
        let mut query = Self {
            limit: None,
            key: None,
            request: Request::default(),
            by: Vec::new(),
            count: COUNT_DEFAULT,
            cursor: None,
            dry_run: false,
            deletes,
        };
        let mut said: Vec<Cow<'q, str>> = Vec::new();
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            if said.contains(&name) {
                return Err(Failure::of_field(shown(&name), "is there twice, expected it once"));
            }
            if value.is_empty() {
                return Err(Failure::of_field(shown(&name), "is empty"));
            }
            query.set(&name, value)?;
            said.push(name);
        }
        query.checked()
    }

    /// Whether keys are asked for by whose they are.
    pub(super) fn has_subject(&self) -> bool {
        self.by.iter().any(|name| !matches!(&**name, "policy" | "limit" | "key"))
    }

    fn set(&mut self, name: &str, value: Cow<'q, str>) -> Result<(), Failure> {
        let request = &mut self.request;
        match name {
            "count" => {
                self.count = whole(name, &value)?;
                return Ok(());
            }
            "cursor" => {
                self.cursor = Some(value);
                return Ok(());
            }
            "dry_run" if self.deletes => {
                self.dry_run = truth(name, &value)?;
                return Ok(());
            }
            "policy" => request.policy = Some(value),
            "limit" => self.limit = Some(value),
            "key" => self.key = Some(value),
            "user" => request.user = Some(value),
            "ip" => request.ip = Some(address(name, &value)?),
            "tier" => request.tier = Some(value),
            "country" => request.country = Some(value),
            "operation" => request.operation = Some(value),
            "method" => request.method = Some(value),
            "path" => request.path = Some(value),
            _ => self.set_pair(name, value)?,
        }
        self.by.push(name.to_owned());
        Ok(())
    }

    fn set_pair(&mut self, name: &str, value: Cow<'q, str>) -> Result<(), Failure> {
        let request = &mut self.request;
        if let Some(attribute) = name.strip_prefix("attribute.") {
            request.attributes.push((Cow::Owned(attribute.to_owned()), value));
        } else if let Some(header) = name.strip_prefix("header.") {
            request.headers.push((Cow::Owned(header.to_owned()), value));
        } else {
            let detail = format!("is not a parameter here, expected one of {PARAMETERS}");
            return Err(Failure::of_field(shown(name), detail));
        }
        Ok(())
    }

    fn checked(self) -> Result<Self, Failure> {
        if self.key.is_some() && self.by.len() > 1 {
            return Err(Failure::of_field("key", "names one key: say it alone"));
        }
        if self.request.path.is_none() && self.request.method.is_some() {
            return Err(Failure::of_field("method", "says nothing without a path"));
        }
        if self.cursor.is_some() && (self.key.is_some() || self.has_subject()) {
            let detail = "is for pages of a limit: the keys of a subject are on one page";
            return Err(Failure::of_field("cursor", detail));
        }
        let chosen = self.key.is_some() || self.limit.is_some() || self.has_subject();
        if self.deletes && !chosen {
            let detail = "say which keys: a key, a limit or a subject, such as user";
            return Err(Failure::of_field("", detail));
        }
        Ok(self)
    }
}

fn whole(name: &str, value: &str) -> Result<usize, Failure> {
    let number = value.parse().ok().filter(|number| (1..=COUNT_MAX).contains(number));
    let detail = || format!("found `{}`, expected 1 to {COUNT_MAX}", shown(value));
    number.ok_or_else(|| Failure::of_field(name, detail()))
}

fn truth(name: &str, value: &str) -> Result<bool, Failure> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(Failure::of_field(name, "expected true or false")),
    }
}

fn address(name: &str, value: &str) -> Result<std::net::IpAddr, Failure> {
    let detail = || format!("found `{}`, expected an IP address", shown(value));
    value.parse().map_err(|_| Failure::of_field(name, detail()))
}

/// As much of a text as a message holds.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field_of(text: &str, deletes: bool) -> Option<String> {
        match Query::parse(text, deletes) {
            Err(Failure::Request { field, .. }) => Some(field),
            _ => None,
        }
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
        for text in ["limit=l", "key=k", "user=u&dry_run=true", "attribute.room=7", "header.x=1"] {
            assert!(Query::parse(text, true).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_subject_is_read_with_all_that_is_said_of_it() {
        let query = Query::parse("user=a%20b&attribute.room=r9&header.X-Key=k&path=/a", false);
        let query = query.unwrap_or_else(|failure| panic!("{failure:?}"));
        assert_eq!(query.request.user.as_deref(), Some("a b"));
        assert_eq!(query.request.attributes, [("room".into(), "r9".into())]);
        assert_eq!(query.request.headers, [("X-Key".into(), "k".into())]);
        assert_eq!(query.by, ["user", "attribute.room", "header.X-Key", "path"]);
        assert!(query.has_subject());
    }
}
