//! Bodies: whatever a form holds, the value that is counted is the only one that it has.

#![allow(clippy::unwrap_used, reason = "a target that cannot be set up must fail")]

use std::sync::LazyLock;

use bolero::check;
use tidegate::{Limiter, Policy, Request, Unreadable};
use tidegate_fuzz::{Choices, bytes, corpus, mutate};

const POLICY: &str = "
tidegate: 1
name: bodies
identity: { attributes: { email: { body: /email } } }
limits: { one: { by: email, total: 1, key: 'one:{email:raw}' } }
";
const FORM: &str = "application/x-www-form-urlencoded";
const MULTIPART: &str = "multipart/form-data; boundary=b";
const WORDS: [&str; 34] = [
    "email",
    "EMAIL",
    "email[]",
    "=",
    "=a",
    "&",
    ";",
    "%",
    "%40",
    "%zz",
    "%00",
    "+",
    "{",
    "[",
    "\r\n",
    "\n",
    "--b",
    "--b\r\n",
    "--b--",
    "--b--\r\n",
    "Content-Disposition: form-data; name=",
    "\"email\"",
    "\"x\"",
    "\\\"",
    "; filename=\"f\"",
    "; filename*=utf-8''f",
    "; name=\"y\"",
    "\r\n\r\n",
    "Content-Type: text/plain",
    "Content-Transfer-Encoding: base64",
    " ",
    "\t",
    "é",
    "-",
];

/// The value that is read out of a body, none if there is none, or why it cannot be read.
fn read(content_type: &str, body: &str) -> Result<Option<String>, Unreadable> {
    let request = Request::new("POST", "/login")
        .peer([192, 0, 2, 1].into())
        .header("Content-Type", content_type)
        .body(body.as_bytes());
    let Ok(explained) = LIMITER.explain(&request) else { return Err(Unreadable::Ambiguous) };
    if let Some((_, why)) = explained.unreadable.first() {
        return Err(*why);
    }
    let key = explained.limits[0].applies.as_ref().unwrap().key.clone();
    Ok(key.strip_prefix("one:").filter(|_| !is_shared(&key)).map(str::to_owned))
}

/// Whether this is the key of requests without an email.
fn is_shared(key: &str) -> bool {
    let without = LIMITER.explain(&Request::new("POST", "/login")).unwrap();
    without.limits[0].applies.as_ref().unwrap().key == key
}

static LIMITER: LazyLock<Limiter> =
    LazyLock::new(|| Limiter::new(Policy::parse("bodies.yaml", POLICY).unwrap()));

/// A body of the corpus, with the line ends that its type has.
fn written(text: &str) -> (&'static str, String) {
    match text.starts_with("--b") {
        true => (MULTIPART, text.replace('\n', "\r\n")),
        false => (FORM, text.to_owned()),
    }
}

#[test]
fn the_corpus_is_read() {
    for text in corpus("bodies") {
        let (content_type, body) = written(&text);
        let email = read(content_type, &body);
        assert_eq!(email, Ok(Some("ada@example.com".to_owned())), "{text}");
        another_value_is_refused(content_type, &body);
    }
}

#[test]
fn arbitrary_forms() {
    let documents = corpus("bodies");
    check!().with_iterations(5_000).with_generator(bytes(256)).for_each(|bytes: &Vec<u8>| {
        let mut choices = Choices::new(bytes);
        let body = match choices.below(3) {
            0 => choices.text(&WORDS, 24),
            1 => choices.rest(),
            _ => {
                let document = choices.pick(&documents).cloned().unwrap_or_default();
                written(&mutate(&document, &documents, &mut choices)).1
            }
        };
        [FORM, MULTIPART].iter().for_each(|one| another_value_is_refused(one, &body));
    });
}

/// Where a value is read, a second one before or behind it is noticed.
fn another_value_is_refused(content_type: &str, body: &str) {
    if !matches!(read(content_type, body), Ok(Some(_))) {
        return;
    }
    let part = "--b\r\nContent-Disposition: form-data; name=\"EMAIL\"\r\n\r\nx\r\n";
    let (before, behind) = match content_type {
        MULTIPART => {
            let end = body.rfind("--b--").unwrap();
            (format!("{part}{body}"), format!("{}{part}{}", &body[..end], &body[end..]))
        }
        _ => (format!("email[]=x&{body}"), format!("{body}&EMAIL=x")),
    };
    for twice in [before, behind] {
        assert_eq!(read(content_type, &twice), Err(Unreadable::Ambiguous), "{twice:?}");
    }
}
