//! The request of a step, which is read once. Its repetitions write only what is numbered.

use std::borrow::Cow;
use std::net::IpAddr;
use std::rc::Rc;

use super::request::{self, NUMBER};
use crate::policy::diagnostics::Reporter;
use crate::policy::document::{Entry, Node};
use crate::request::Request;

/// The requests that the repetitions of a step make.
pub(super) struct Template {
    node: Node,
    /// The request of the latest repetition; shared with the requests that still wait.
    request: Rc<Request<'static>>,
    /// The values that are numbered, with `{n}` in their texts. `None` if another value is numbered,
    /// so that each request is read anew.
    numbered: Option<Vec<(Slot, String)>>,
}

/// A value of a request that can be written in place.
enum Slot {
    Text(for<'r> fn(&'r mut Request<'static>) -> &'r mut Option<Cow<'static, str>>),
    Address(for<'r> fn(&'r mut Request<'static>) -> &'r mut Option<IpAddr>),
}

impl Template {
    pub(super) fn new(node: Node) -> Self {
        let faults = Reporter::default();
        let request = Rc::new(request::read(&request::numbered(&node, 1), &faults));
        let numbered = numbered_values(&node).filter(|_| faults.len() == 0);
        Self { node, request, numbered }
    }

    /// The request of a repetition, or what is wrong with it.
    pub(super) fn request(&mut self, repetition: u32) -> Result<Rc<Request<'static>>, String> {
        let Some(values) = &self.numbered else {
            let faults = Reporter::default();
            let request = request::read(&request::numbered(&self.node, repetition), &faults);
            return faults.first_message().map_or_else(|| Ok(Rc::new(request)), Err);
        };
        for (slot, text) in values {
            let request = Rc::make_mut(&mut self.request);
            let text = text.replace(NUMBER, itoa::Buffer::new().format(repetition));
            match slot {
                Slot::Address(of) => *of(request) = Some(request::address(&text)?),
                Slot::Text(of) => *of(request) = Some(text.into()),
            }
        }
        Ok(Rc::clone(&self.request))
    }
}

/// The values that are numbered; `None` if one of them cannot be written in place.
fn numbered_values(node: &Node) -> Option<Vec<(Slot, String)>> {
    let is_numbered =
        |entry: &&Entry| entry.key.contains(NUMBER) || request::is_numbered(&entry.value);
    let value = |entry: &Entry| Some((slot(&entry.key)?, entry.value.text()?.to_owned()));
    node.entries()?.iter().filter(is_numbered).map(value).collect()
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
