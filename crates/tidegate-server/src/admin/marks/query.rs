//! Which marks an operator asks for: the parameters of the call, each of them checked.

use tidegate::Key;
use tidegate::identity::Networks;
use tidegate::marks::{Mark, MarkKind, Subject};

use super::order::part;
use crate::engine::Engine;
use crate::wire::api::fields::FieldError;

/// How many marks a page holds unless told otherwise, and at most.
const COUNT_DEFAULT: usize = 100;
const COUNT_MAX: usize = 1_000;

/// Which marks, and which page of them.
#[derive(Debug)]
pub(super) struct Query {
    pub(super) id: Option<Key>,
    pub(super) count: usize,
    pub(super) cursor: Option<Key>,
    policy: Option<String>,
    flag: Option<String>,
    /// Each of them, in any of its spellings, whatever else the mark is by.
    parts: Vec<Vec<Subject>>,
}

impl Query {
    /// Reads the parameters. What is to go must be said.
    pub(super) fn parse(text: &str, kind: MarkKind, removes: bool) -> Result<Self, FieldError> {
        let mut query = Self {
            id: None,
            count: if removes { usize::MAX } else { COUNT_DEFAULT },
            cursor: None,
            policy: None,
            flag: None,
            parts: Vec::new(),
        };
        let mut said: Vec<String> = Vec::new();
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            if said.iter().any(|earlier| *earlier == name) {
                return Err(FieldError::new(shown(&name), "is there twice, expected it once"));
            }
            if value.is_empty() {
                return Err(FieldError::new(shown(&name), "is empty"));
            }
            match &*name {
                "id" => query.id = Some(key(&name, &value)?),
                "policy" => query.policy = Some(value.into_owned()),
                "flag" if kind == MarkKind::Flag => query.flag = Some(value.into_owned()),
                "count" if !removes => query.count = whole(&name, &value)?,
                "cursor" if !removes => query.cursor = Some(key(&name, &value)?),
                _ => query.parts.push(vec![asked(&name, &value)?]),
            }
            said.push(name.into_owned());
        }
        if removes && query.id.is_none() && query.parts.is_empty() {
            let detail = "say whose: an id, or a subject such as user";
            return Err(FieldError::new("", detail));
        }
        Ok(query)
    }

    /// The same with whom it asks for as the engine marks them.
    pub(super) fn spelled(mut self, engine: &Engine) -> Self {
        let policy = self.policy.as_deref();
        let spellings = |part: &Subject| engine.spellings(policy, part);
        for part in &mut self.parts {
            *part = part.iter().flat_map(spellings).collect();
        }
        self
    }

    /// Whether it takes looking at marks to tell which are meant.
    pub(super) fn chooses(&self) -> bool {
        self.policy.is_some() || self.flag.is_some() || !self.parts.is_empty()
    }

    /// Whether a mark is meant.
    pub(super) fn fits(&self, mark: &Mark) -> bool {
        let is =
            |wanted: &Option<String>, found: &Option<String>| wanted.is_none() || wanted == found;
        let says =
            |part: &Subject| part.parts().all(|part| mark.subject.parts().any(|one| one == part));
        let has = |spellings: &Vec<Subject>| spellings.iter().any(says);
        is(&self.policy, &mark.policy) && is(&self.flag, &mark.flag) && self.parts.iter().all(has)
    }
}

/// A part that is asked for. An address may be written as marks show that of an IPv6 client.
fn asked(name: &str, value: &str) -> Result<Subject, FieldError> {
    match Networks::parse_net(value) {
        Ok(net) if name == "ip" && value.contains('/') => {
            Ok(Subject::part(name, net.trunc().to_string()))
        }
        _ => part(name, value),
    }
}

fn key(name: &str, value: &str) -> Result<Key, FieldError> {
    let digits = Some(value).filter(|value| value.len() == 32);
    let number = digits.and_then(|digits| u128::from_str_radix(digits, 16).ok());
    number.map(Key).ok_or_else(|| FieldError::new(name, "expected 32 hexadecimal digits"))
}

fn whole(name: &str, value: &str) -> Result<usize, FieldError> {
    let number = value.parse().ok().filter(|number| (1..=COUNT_MAX).contains(number));
    number.ok_or_else(|| FieldError::new(name, format!("expected 1 to {COUNT_MAX}")))
}

/// As much of a text as a message holds.
fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use tidegate::NewMark;

    use super::*;
    use crate::app::App;

    #[test]
    fn what_is_wrong_is_told_with_its_parameter() {
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
            let error = Query::parse(text, MarkKind::Ban, removes).unwrap_err();
            assert_eq!(error.field, field, "{text}");
        }
        assert!(Query::parse("user=a&count=5", MarkKind::Ban, false).is_ok());
        assert!(Query::parse("user=a&flag=f", MarkKind::Flag, true).is_ok());
    }

    #[test]
    fn an_ipv6_client_is_found_by_its_address_however_it_is_marked() {
        let text = "{ tidegate: 1, name: a, identity: { ipv6_prefix: 56 } }";
        let app = App::new(tidegate::Policy::parse("a.yaml", text).unwrap());
        let mark = |subject: Subject, policy: Option<&str>| {
            let mut order = NewMark::new(subject);
            order.policy = policy.map(str::to_owned);
            app.engine.flag("f", &order).unwrap()
        };
        let ip = Subject::ip("2001:db8::5".parse().unwrap());
        let everywhere = mark(ip.clone(), None);
        let in_one = mark(ip, Some("a"));
        let client = mark(Subject::client("ip:2001:db8::5"), Some("a"));
        let parts = [("user", "u1"), ("ip", "2001:db8::5")];
        let parts = parts.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let several = mark(Subject::of_parts(parts.to_vec()), None);
        let fits = |text: &str, mark: &Mark| {
            let query = Query::parse(text, MarkKind::Flag, true).unwrap();
            query.spelled(&app.engine).fits(mark)
        };
        for text in ["ip=2001:db8::5", "ip=2001:db8:0:7::1", "ip=2001:db8::5&flag=f"] {
            assert!(fits(text, &everywhere) && fits(text, &in_one), "{text}");
            assert!(fits(text, &several) && !fits(text, &client), "{text}");
        }
        assert!(fits("ip=2001:db8::/56", &in_one) && fits("network=2001:db8::/56", &everywhere));
        assert!(fits("client=ip:2001:db8::9", &client));
        assert!(fits("ip=2001:db8::5&policy=a", &in_one));
        assert!(!fits("ip=2001:db8::5&policy=a", &everywhere));
        assert!(!fits("ip=2001:db8:1::5", &everywhere) && !fits("ip=2001:db8:1::5", &in_one));
    }
}
