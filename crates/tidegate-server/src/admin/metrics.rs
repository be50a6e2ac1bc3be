//! `GET /metrics`.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response};
use http_body_util::Full;

use crate::telemetry::{CONTENT_TYPE as EXPOSITION, Metrics, Present};

/// The metrics page.
#[must_use]
pub(crate) fn respond(metrics: &Metrics, present: &Present) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(metrics.render(present))));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(EXPOSITION));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_says_which_version_of_the_format_it_is() {
        let response = respond(&Metrics::new(7, &[]), &Present::default());
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()[CONTENT_TYPE], "text/plain; version=0.0.4; charset=utf-8");
    }
}
