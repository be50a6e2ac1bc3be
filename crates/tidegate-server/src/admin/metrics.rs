//! `GET /metrics`.

use http::header::CACHE_CONTROL;
use http::{HeaderValue, Response, StatusCode};

use crate::body::Body;
use crate::respond::with_type;
use crate::telemetry::{CONTENT_TYPE as EXPOSITION, Metrics, Present};

/// The metrics page.
#[must_use]
pub(crate) fn respond(metrics: &Metrics, present: &Present) -> Response<Body> {
    let mut response = with_type(StatusCode::OK, EXPOSITION, metrics.render(present));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use http::header::CONTENT_TYPE;

    use super::*;

    #[test]
    fn the_page_says_which_version_of_the_format_it_is() {
        let response = respond(&Metrics::new(7, &[]), &Present::default());
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()[CONTENT_TYPE], "text/plain; version=0.0.4; charset=utf-8");
    }
}
