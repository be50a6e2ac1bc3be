//! The OpenAPI document of the decision API. What is read and written field by field is described by
//! types of its own, other answers by the types that are sent. The live tests hold both against what
//! the daemon does.

mod calls;
mod examples;
mod schemas;

use std::sync::LazyLock;

use bytes::Bytes;
use utoipa::OpenApi;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};

use super::limits::Limits;
use super::report::Answer as Consequences;
use crate::challenge::ChallengeJson;
use crate::respond::Problem;

/// `GET /openapi.json`.
pub(super) fn document() -> Bytes {
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| {
        let mut document = Schemas::openapi();
        document.paths = calls::paths();
        if let Some(components) = &mut document.components {
            components.schemas.insert("Acquire".to_owned(), schemas::acquire());
            components.schemas.insert("Report".to_owned(), schemas::report());
            components.schemas.insert("Solution".to_owned(), schemas::solution());
            let bearer = HttpBuilder::new()
                .scheme(HttpAuthScheme::Bearer)
                .description(Some("A token of the file that `--tokens` names, with the role client, operator or superadmin. Without that file no token is needed."));
            components.add_security_scheme("token", SecurityScheme::Http(bearer.build()));
        }
        let with_token = SecurityRequirement::new::<_, [&str; 0], &str>("token", []);
        document.security = Some(vec![SecurityRequirement::default(), with_token]);
        // Strings and numbers into memory: it cannot fail.
        Bytes::from(document.to_json().unwrap_or_default())
    });
    DOCUMENT.clone()
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tidegate decision API",
        description = "Ask whether a request may pass, and tell what became of it. Every decision is answered with 200; what is wrong with a call is told as problem details (RFC 9457). Unknown fields are refused; a field that is null is as good as left out. Numbers are exact decimals with at most six places.",
    ),
    components(schemas(
        schemas::Check,
        schemas::Reservation,
        schemas::Settle,
        schemas::Released,
        schemas::Renewed,
        schemas::Settled,
        schemas::Health,
        schemas::Scalar,
        schemas::Member,
        schemas::Lines,
        schemas::Decimal,
        schemas::Decision,
        schemas::LimitState,
        schemas::Challenged,
        schemas::Pass,
        ChallengeJson<'static>,
        Limits<'static>,
        Consequences<'static>,
        Problem<'static>,
    ))
)]
struct Schemas;

#[cfg(test)]
mod tests {
    #[test]
    fn the_document_is_openapi_3_1_and_every_reference_leads_somewhere() {
        let text = super::document();
        let document: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        let text = String::from_utf8(text.to_vec()).unwrap();
        for reference in text.split("\"$ref\":").skip(1) {
            let pointer = reference.split('"').nth(1).unwrap().strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{pointer}");
        }
    }
}
