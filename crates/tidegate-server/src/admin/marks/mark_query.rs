//! The parameters of `/admin/v1/bans` and `/admin/v1/flags`.

use tidegate::engine::Key;
use tidegate::engine::identity::Networks;
use tidegate::engine::marks::{Mark, MarkKind, Subject};

use super::new_mark::subject_part;
use crate::engine::Engine;
use crate::wire::fields::FieldError;
use crate::wire::query::Query;

/// Which marks, and which page of them.
#[derive(Debug)]
pub(super) struct MarkQuery {
    pub(super) id: Option<Key>,
    pub(super) count: usize,
    pub(super) cursor: Option<Key>,
    policy: Option<String>,
    flag: Option<String>,
    /// Parts that the subject of a mark has, each in every form that a mark may have it.
    parts: Vec<Vec<Subject>>,
}

impl MarkQuery {
    /// Parses the parameters. A removal must select something.
    pub(super) fn parse(
        text: &str,
        kind: MarkKind,
        is_removal: bool,
        engine: &Engine,
    ) -> Result<Self, FieldError> {
        let mut query = Query::parse_selection(text)?;
        let id = query.take_parsed("id", key)?;
        let policy = query.take("policy").map(String::from);
        let flag = if kind == MarkKind::Flag { query.take("flag") } else { None };
        let (count, cursor) = if is_removal {
            (usize::MAX, None)
        } else {
            (query.take_count()?, query.take_parsed("cursor", key)?)
        };
        let mut parts = Vec::new();
        for (name, value) in query.into_rest() {
            parts.push(engine.subject_aliases(policy.as_deref(), &selected_part(&name, &value)?));
        }
        if is_removal && id.is_none() && parts.is_empty() {
            let detail = "say whose: an id, or a subject such as user";
            return Err(FieldError::new("", detail));
        }
        Ok(Self { id, count, cursor, policy, flag: flag.map(String::from), parts })
    }

    /// True if some marks may not be selected.
    pub(super) fn is_selective(&self) -> bool {
        self.policy.is_some() || self.flag.is_some() || !self.parts.is_empty()
    }

    pub(super) fn selects(&self, mark: &Mark) -> bool {
        let is =
            |wanted: &Option<String>, found: &Option<String>| wanted.is_none() || wanted == found;
        let contains = |form: &Subject| {
            form.parts().all(|part| mark.subject.parts().any(|other| other == part))
        };
        let has = |forms: &Vec<Subject>| forms.iter().any(contains);
        is(&self.policy, &mark.policy) && is(&self.flag, &mark.flag) && self.parts.iter().all(has)
    }
}

/// A part of a subject. An address may be a network, as marks show that of an IPv6 client.
fn selected_part(name: &str, value: &str) -> Result<Subject, FieldError> {
    match Networks::parse_net(value) {
        Ok(net) if name == "ip" && value.contains('/') => {
            Ok(Subject::part(name, net.trunc().to_string()))
        }
        _ => subject_part(name, value),
    }
}

fn key(name: &str, value: &str) -> Result<Key, FieldError> {
    let digits = Some(value).filter(|value| value.len() == 32);
    let number = digits.and_then(|digits| u128::from_str_radix(digits, 16).ok());
    number.map(Key).ok_or_else(|| FieldError::new(name, "expected 32 hexadecimal digits"))
}

#[cfg(test)]
mod tests {
    use tidegate::NewMark;

    use super::*;
    use crate::app::App;

    #[test]
    fn what_is_wrong_is_told_with_its_parameter() {
        let app = App::new(tidegate::Policy::parse("a.yaml", "{ tidegate: 1, name: a }").unwrap());
        let parse = |text, kind, is_removal| MarkQuery::parse(text, kind, is_removal, &app.engine);
        for (text, removes, field) in [
            ("user=", false, "user"),
            ("user=a&user=b", false, "user"),
            ("ip=localhost", false, "ip"),
            ("network=10.0.0.0/99", false, "network"),
            ("count=0", false, "count"),
            ("count=1001", false, "count"),
            ("cursor=1", false, "cursor"),
            ("id=zz", true, "id"),
            ("", true, ""),
            ("policy=p", true, ""),
        ] {
            let error = parse(text, MarkKind::Ban, removes).unwrap_err();
            assert_eq!(error.field, field, "{text}");
        }
        assert!(parse("user=a&count=5", MarkKind::Ban, false).is_ok());
        assert!(parse("user=a&flag=f", MarkKind::Flag, true).is_ok());
    }

    #[test]
    fn an_ipv6_client_is_found_by_its_address_however_it_is_marked() {
        let text = "{ tidegate: 1, name: a, identity: { ipv6_prefix: 56 } }";
        let app = App::new(tidegate::Policy::parse("a.yaml", text).unwrap());
        let mark = |subject: Subject, policy: Option<&str>| {
            let mut new_mark = NewMark::new(subject);
            new_mark.policy = policy.map(str::to_owned);
            app.engine.flag("f", &new_mark).unwrap()
        };
        let ip = Subject::ip("2001:db8::5".parse().unwrap());
        let everywhere = mark(ip.clone(), None);
        let in_one = mark(ip, Some("a"));
        let client = mark(Subject::client("ip:2001:db8::5"), Some("a"));
        let parts = [("user", "u1"), ("ip", "2001:db8::5")];
        let parts = parts.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let several = mark(Subject::of_parts(parts.to_vec()), None);
        let selects = |text: &str, mark: &Mark| {
            let query = MarkQuery::parse(text, MarkKind::Flag, true, &app.engine).unwrap();
            query.selects(mark)
        };
        for text in ["ip=2001:db8::5", "ip=2001:db8:0:7::1", "ip=2001:db8::5&flag=f"] {
            assert!(selects(text, &everywhere) && selects(text, &in_one), "{text}");
            assert!(selects(text, &several) && !selects(text, &client), "{text}");
        }
        assert!(
            selects("ip=2001:db8::/56", &in_one) && selects("network=2001:db8::/56", &everywhere)
        );
        assert!(selects("client=ip:2001:db8::9", &client));
        assert!(selects("ip=2001:db8::5&policy=a", &in_one));
        assert!(!selects("ip=2001:db8::5&policy=a", &everywhere));
        assert!(!selects("ip=2001:db8:1::5", &everywhere) && !selects("ip=2001:db8:1::5", &in_one));
    }
}
