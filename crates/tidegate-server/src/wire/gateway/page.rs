//! Refusals and errors as a small page, for people. Programs read problem details, and a policy's own
//! `body` is for both.

use std::fmt::{self, Write as _};
use std::sync::LazyLock;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde::Deserialize;
use tidegate::{Decision, Outcome};

use crate::body::Body;
use crate::html::{CARD_STYLE, Escaped, hash_source, write_card_head};
use crate::respond;

/// Allows the page's style and nothing else.
static CONTENT_SECURITY_POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; style-src '{}'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'",
        hash_source(CARD_STYLE)
    )
});

/// What the page shows of problem details.
#[derive(Deserialize)]
struct Problem {
    status: u16,
    detail: String,
    #[serde(rename = "retryAfter")]
    retry_after: Option<u64>,
}

/// True if a browser asks for a page: `text/html` is what it accepts first.
pub(super) fn is_preferred(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|line| line.to_str().ok());
    let range = accept.and_then(|line| line.split(',').next()).unwrap_or_default();
    let mut parts = range.split(';').map(str::trim);
    let is_html = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("text/html"));
    is_html && !parts.any(is_zero_quality)
}

/// True if a parameter of a media range says that it is not accepted: `q=0`, `q=0.000`.
pub(super) fn is_zero_quality(parameter: &str) -> bool {
    let quality = parameter.strip_prefix("q=").or_else(|| parameter.strip_prefix("Q="));
    quality.is_some_and(|q| q.bytes().all(|byte| matches!(byte, b'0' | b'.')))
}

/// The refusal that a decision asks for.
pub(super) fn refusal(decision: &Decision, headers: &HeaderMap) -> Response<Body> {
    if decision.has_own_body() || !is_preferred(headers) {
        return respond::refusal(decision);
    }
    let heading = match decision.outcome {
        Outcome::Limited => "Too many requests",
        Outcome::Banned => "Access is suspended",
        _ => "Access denied",
    };
    let mut response = respond::refusal_with(decision, |problem| {
        match serde_json::from_slice::<Problem>(&problem) {
            Ok(problem) => Bytes::from(html(heading, &problem)),
            Err(_) => problem,
        }
    });
    set_page_headers(&mut response);
    response
}

/// The answer to a request that the upstream does not answer.
pub(super) fn unavailable(status: StatusCode) -> Response<Body> {
    let detail = "The service behind this site does not answer. Please try again in a moment.";
    let problem = Problem { status: status.as_u16(), detail: detail.to_owned(), retry_after: None };
    let html = html("Not available right now", &problem);
    let mut response = respond::with_type(status, "text/html", html);
    set_page_headers(&mut response);
    response
}

/// Makes an answer a page that browsers load nothing for but what its policy allows.
pub(super) fn set_headers(response: &mut Response<Body>, content_security_policy: &str) {
    let headers = response.headers_mut();
    let html = HeaderValue::from_static("text/html; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, html);
    if let Ok(csp) = HeaderValue::from_str(content_security_policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, csp);
    }
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}

fn set_page_headers(response: &mut Response<Body>) {
    set_headers(response, &CONTENT_SECURITY_POLICY);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.append(header::VARY, HeaderValue::from_static("accept"));
}

fn html(heading: &str, problem: &Problem) -> String {
    let mut html = String::with_capacity(CARD_STYLE.len() + 1024);
    // Writing to a String cannot fail.
    let _ = write_page(&mut html, heading, problem);
    html
}

fn write_page(out: &mut String, heading: &str, problem: &Problem) -> fmt::Result {
    write_card_head(out, heading)?;
    write!(out, "<body><main><h1>{heading}</h1>")?;
    if !problem.detail.eq_ignore_ascii_case(heading) {
        write!(out, "<p>{}</p>", Escaped(&problem.detail))?;
    }
    if let Some(seconds) = problem.retry_after {
        write!(out, "<p>You can try again in {}.</p>", Wait(seconds))?;
    }
    let status = StatusCode::from_u16(problem.status).ok();
    let reason = status.and_then(|status| status.canonical_reason()).unwrap_or_default();
    let status = format!("{} {reason}", problem.status);
    writeln!(out, "<footer><p>{}</p></footer></main></body></html>", status.trim_end())
}

/// A wait in words, rounded up: nobody is asked to come back too early.
struct Wait(u64);

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = match self.0 {
            seconds @ ..120 => (seconds, "second"),
            seconds @ ..7_200 => (seconds.div_ceil(60), "minute"),
            seconds @ ..172_800 => (seconds.div_ceil(3_600), "hour"),
            seconds => (seconds.div_ceil(86_400), "day"),
        };
        write!(f, "{number} {unit}{}", if number == 1 { "" } else { "s" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browsers_prefer_the_page_and_programs_do_not() {
        let prefers = |accept: &'static str| {
            let headers = [(header::ACCEPT, HeaderValue::from_static(accept))];
            is_preferred(&headers.into_iter().collect())
        };
        assert!(prefers("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"));
        assert!(prefers("Text/HTML; charset=utf-8"));
        for accept in ["*/*", "application/json, text/html", "text/html;q=0, */*", ""] {
            assert!(!prefers(accept), "{accept}");
        }
        assert!(!is_preferred(&HeaderMap::new()));
    }

    #[test]
    fn a_message_is_text_on_the_page_and_stands_there_once() {
        let detail = "<script>alert('x')</script>".to_owned();
        let page =
            html("Too many requests", &Problem { status: 429, detail, retry_after: Some(1) });
        assert!(page.contains("<p>&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;</p>"), "{page}");
        assert!(page.contains("in 1 second.") && page.contains("429 Too Many Requests"), "{page}");
        let detail = "Too many requests".to_owned();
        let page = html("Too many requests", &Problem { status: 420, detail, retry_after: None });
        assert!(!page.contains("<p>Too many") && page.contains("<p>420</p>"), "{page}");
        assert!(!page.contains("<script") && !page.contains("try again"), "{page}");
    }

    #[test]
    fn a_wait_is_rounded_up() {
        let said = [1, 119, 121, 7_200, 90_001, 172_801].map(|seconds| Wait(seconds).to_string());
        assert_eq!(said, ["1 second", "119 seconds", "3 minutes", "2 hours", "26 hours", "3 days"]);
    }
}
