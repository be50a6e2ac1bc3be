//! The request of a step, which is read once: its repetitions write only what is numbered, in place.

use std::borrow::Cow;
use std::net::IpAddr;
use std::rc::Rc;

use super::request::{self, NUMBER};
use crate::policy::compile::fields::one_or_many;
use crate::policy::diagnostics::Reporter;
use crate::policy::document::{Entry, Node};
use crate::request::Request;

/// The requests that the repetitions of a step make.
pub(super) struct Template {
    node: Node,
    /// Of the latest repetition; shared with whoever still waits for its turn.
    request: Rc<Request<'static>>,
    numbered: Numbered,
}

/// What differs from one repetition to the next.
enum Numbered {
    /// These values; none if all repetitions are one request.
    Values(Vec<(Slot, Pattern)>),
    /// Something that must be read as a whole.
    Whole,
}

/// A value of a request that is written as it stands.
enum Slot {
    Text(for<'r> fn(&'r mut Request<'static>) -> &'r mut Option<Cow<'static, str>>),
    Address(for<'r> fn(&'r mut Request<'static>) -> &'r mut Option<IpAddr>),
    Attribute(usize),
    Header(usize),
}

/// A text with the number of the repetition between its pieces.
struct Pattern(Vec<String>);

impl Template {
    pub(super) fn new(node: Node) -> Self {
        let faults = Reporter::default();
        let request = Rc::new(request::read(&request::numbered(&node, 1), &faults));
        let numbered = match values(&node) {
            Some(values) if faults.len() == 0 => Numbered::Values(values),
            _ => Numbered::Whole,
        };
        Self { node, request, numbered }
    }

    /// The request of a repetition, or what is wrong with it.
    pub(super) fn request(&mut self, repetition: u32) -> Result<Rc<Request<'static>>, String> {
        match &self.numbered {
            Numbered::Values(values) => {
                if !values.is_empty() {
                    let request = Rc::make_mut(&mut self.request);
                    let mut digits = itoa::Buffer::new();
                    let number = digits.format(repetition);
                    for (slot, pattern) in values {
                        slot.write(pattern, number, request)?;
                    }
                }
            }
            Numbered::Whole => {
                let faults = Reporter::default();
                let node = request::numbered(&self.node, repetition);
                self.request = Rc::new(request::read(&node, &faults));
                if let Some(fault) = faults.first_message() {
                    return Err(fault);
                }
            }
        }
        Ok(Rc::clone(&self.request))
    }
}

impl Slot {
    fn write(
        &self,
        pattern: &Pattern,
        number: &str,
        request: &mut Request<'static>,
    ) -> Result<(), String> {
        match self {
            Self::Text(of) => pattern.write(number, of(request).get_or_insert_default().to_mut()),
            Self::Attribute(index) => {
                if let Some((_, value)) = request.attributes.get_mut(*index) {
                    pattern.write(number, value.to_mut());
                }
            }
            Self::Header(index) => {
                if let Some((_, value)) = request.headers.get_mut(*index) {
                    pattern.write(number, value.to_mut());
                }
            }
            Self::Address(of) => *of(request) = Some(request::address(&pattern.text(number))?),
        }
        Ok(())
    }
}

impl Pattern {
    fn of(node: &Node) -> Option<Self> {
        Some(Self(node.text()?.split(NUMBER).map(str::to_owned).collect()))
    }

    fn write(&self, number: &str, text: &mut String) {
        text.clear();
        for (index, piece) in self.0.iter().enumerate() {
            if index > 0 {
                text.push_str(number);
            }
            text.push_str(piece);
        }
    }

    fn text(&self, number: &str) -> String {
        let mut text = String::new();
        self.write(number, &mut text);
        text
    }
}

/// The values that are numbered; `None` if there are others than can be written in place.
fn values(node: &Node) -> Option<Vec<(Slot, Pattern)>> {
    let mut values = Vec::new();
    for Entry { key, value, .. } in node.entries()? {
        if !key.contains(NUMBER) && !request::is_numbered(value) {
            continue;
        }
        match key.as_str() {
            "attributes" => pairs(value, Slot::Attribute, &mut values)?,
            "headers" => pairs(value, Slot::Header, &mut values)?,
            key => values.push((slot(key)?, Pattern::of(value)?)),
        }
    }
    Some(values)
}

fn slot(key: &str) -> Option<Slot> {
    Some(match key {
        "method" => Slot::Text(|request| &mut request.method),
        "path" => Slot::Text(|request| &mut request.path),
        "user" => Slot::Text(|request| &mut request.user),
        "tier" => Slot::Text(|request| &mut request.tier),
        "country" => Slot::Text(|request| &mut request.country),
        "operation" => Slot::Text(|request| &mut request.operation),
        "ip" => Slot::Address(|request| &mut request.ip),
        "peer" => Slot::Address(|request| &mut request.peer),
        _ => return None,
    })
}

/// The values of attributes or headers, counted as a request has them.
fn pairs(
    node: &Node,
    slot: impl Fn(usize) -> Slot,
    values: &mut Vec<(Slot, Pattern)>,
) -> Option<()> {
    let mut index = 0;
    for Entry { key, value, .. } in node.entries()? {
        if key.contains(NUMBER) {
            return None;
        }
        for line in one_or_many(value) {
            if request::is_numbered(line) {
                values.push((slot(index), Pattern::of(line)?));
            }
            index += 1;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> Template {
        Template::new(Node::parse("t.yaml", text).unwrap())
    }

    fn read(text: &str, repetition: u32) -> Request<'static> {
        let node = request::numbered(&Node::parse("t.yaml", text).unwrap(), repetition);
        request::read(&node, &Reporter::default())
    }

    #[test]
    fn every_repetition_is_what_reading_it_alone_would_give() {
        let texts = [
            "{ method: GET, path: / }",
            "{ path: '/{n}/{n}', user: 'u{n}', tier: plus, ip: '10.0.{n}.1', peer: '10.1.1.{n}' }",
            "{ method: 'M{n}', country: 'C{n}', operation: '{n}', cost: 2, reserve: true }",
            "{ attributes: { a: x, b: '{n}b', c: y }, headers: { h: [one, 'two {n}'], i: '{n}' } }",
            "{ headers: { 'x-{n}': a } }",
            "{ cost: '{n}', claims: { sub: 'u{n}' }, body: { email: 'a{n}@b' } }",
        ];
        for text in texts {
            let mut template = template(text);
            for repetition in [1, 2, 40, 39] {
                let expected = format!("{:?}", read(text, repetition));
                let request = template.request(repetition).unwrap();
                assert_eq!(format!("{request:?}"), expected, "{text}");
            }
        }
    }

    #[test]
    fn a_request_that_waits_keeps_its_own_number() {
        let mut template = template("{ user: 'u{n}' }");
        let first = template.request(1).unwrap();
        let second = template.request(2).unwrap();
        assert_eq!((first.user.as_deref(), second.user.as_deref()), (Some("u1"), Some("u2")));
    }

    #[test]
    fn a_number_that_makes_no_address_is_said() {
        let mut template = template("{ ip: '10.0.0.{n}' }");
        assert!(template.request(255).is_ok());
        let fault = template.request(256).unwrap_err();
        assert_eq!(fault, "found `10.0.0.256`, expected an IP address");
    }
}
