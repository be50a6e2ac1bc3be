//! A client of the decision API or the admin API that holds every answer against the API's document.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::client::{Answer, Client};
use super::daemon::Daemon;

/// The document of a daemon, and the answers that a test has seen.
pub(crate) struct Contract {
    pub(crate) client: Client,
    pub(crate) document: Value,
    /// `POST /v1/check 200`.
    seen: RefCell<BTreeSet<String>>,
}

impl Contract {
    pub(crate) fn of(daemon: &Daemon) -> Self {
        Self::with_headers(daemon, &[])
    }

    /// For a daemon whose document needs a token.
    pub(crate) fn with_headers(daemon: &Daemon, headers: &[(&str, &str)]) -> Self {
        Self::read(daemon.api(), "/openapi.json", headers)
    }

    /// Of the admin API.
    pub(crate) fn of_admin(daemon: &Daemon, headers: &[(&str, &str)]) -> Self {
        Self::read(daemon.admin(), "/admin/v1/openapi.json", headers)
    }

    fn read(client: Client, path: &str, headers: &[(&str, &str)]) -> Self {
        let answer = client.send("GET", path, headers, None);
        assert_eq!(answer.status, 200, "{}", answer.text());
        Self { client, document: answer.json(), seen: RefCell::default() }
    }

    pub(crate) fn get(&self, target: &str) -> Answer {
        self.send("GET", target, &[], None)
    }

    pub(crate) fn post(&self, target: &str, body: &Value) -> Answer {
        self.post_text(target, &body.to_string())
    }

    /// For numbers that a `Value` could not hold.
    pub(crate) fn post_text(&self, target: &str, body: &str) -> Answer {
        self.send("POST", target, &[("Content-Type", "application/json")], Some(body))
    }

    pub(crate) fn send(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: Option<&str>,
    ) -> Answer {
        let answer = self.client.send(method, target, headers, body);
        self.hold(method, target, &answer);
        answer
    }

    /// Fails unless the document describes this answer.
    pub(crate) fn hold(&self, method: &str, target: &str, answer: &Answer) {
        let path = self.documented_path(target.split('?').next().unwrap());
        let call = &self.document["paths"][path][method.to_ascii_lowercase()];
        let kind = answer.header("content-type").map(|kind| kind.split(';').next().unwrap());
        if call.is_null() {
            let is_known_path = self.document["paths"][path].is_object();
            assert_eq!(answer.status, if is_known_path { 405 } else { 404 }, "{method} {path}");
            assert_eq!(kind, Some("application/problem+json"));
            return self.fits(&json!({ "$ref": "#/components/schemas/Problem" }), &answer.json());
        }
        let told = &call["responses"][answer.status.to_string()];
        assert!(told.is_object(), "{method} {path} {}: {}", answer.status, answer.text());
        self.seen.borrow_mut().insert(format!("{method} {path} {}", answer.status));
        let Some(contents) = told["content"].as_object() else {
            assert_eq!(answer.text(), "", "{method} {path} {}", answer.status);
            return;
        };
        let content = &contents[kind.unwrap()];
        match kind {
            Some("text/html") => assert!(answer.text().starts_with("<!doctype html>")),
            Some("text/plain") => {}
            _ => self.fits(&content["schema"], &answer.json()),
        }
    }

    /// The path as the document has it: `/v1/requests/{id}`.
    fn documented_path<'p>(&'p self, path: &'p str) -> &'p str {
        let fits = |known: &&String| {
            let (known, found) = (known.split('/'), path.split('/'));
            known.clone().count() == found.clone().count()
                && known.zip(found).all(|(known, found)| known == found || known.starts_with('{'))
        };
        let mut paths = self.document["paths"].as_object().unwrap().keys();
        paths.find(fits).map_or(path, String::as_str)
    }

    /// Every call: its method, its path with a parameter filled in, and the role that it needs.
    pub(crate) fn calls(&self) -> Vec<(String, String, Option<String>)> {
        let mut calls = Vec::new();
        for (path, methods) in self.document["paths"].as_object().unwrap() {
            for (method, call) in methods.as_object().unwrap() {
                let role = call["description"].as_str().and_then(|text| {
                    Some(text.strip_prefix("Needs the role ")?.strip_suffix('.')?.to_owned())
                });
                let path = path.replace(['{', '}'], "");
                calls.push((method.to_uppercase(), path, role));
            }
        }
        calls
    }

    /// The documented answers that no test has seen.
    pub(crate) fn unseen<'c>(&self, others: impl IntoIterator<Item = &'c Contract>) -> Vec<String> {
        let mut seen = self.seen.borrow().clone();
        others.into_iter().for_each(|other| seen.extend(other.seen.borrow().iter().cloned()));
        let mut unseen = Vec::new();
        for (path, calls) in self.document["paths"].as_object().unwrap() {
            for (method, call) in calls.as_object().unwrap() {
                let statuses = call["responses"].as_object().unwrap().keys();
                let all =
                    statuses.map(|status| format!("{} {path} {status}", method.to_uppercase()));
                unseen.extend(all.filter(|one| !seen.contains(one)));
            }
        }
        unseen
    }

    pub(crate) fn fits(&self, schema: &Value, value: &Value) {
        let mut schema = schema.clone();
        schema["components"] = self.document["components"].clone();
        let validator = jsonschema::draft202012::new(&schema).unwrap();
        let errors: Vec<String> = validator
            .iter_errors(value)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{errors:#?} in {value:#}");
    }
}
