//! The OpenAPI documents of the decision API and of the admin API, made from the tables of routes.
//!
//! The live tests compare the documents with the daemon's answers.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use serde_json::{Value, json};
use tidegate::Policy;
use utoipa::openapi::content::{Content, ContentBuilder};
use utoipa::openapi::link::LinkBuilder;
use utoipa::openapi::path::{
    HttpMethod, Operation, OperationBuilder, ParameterBuilder, ParameterIn, PathItem, PathsBuilder,
};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, Ref, RefOr, Required, Response, ResponseBuilder, Schema};
use utoipa::{OpenApi, ToSchema};

use super::api::schemas;
use super::routes::{ADMIN, API, Route};
use crate::auth::Access;
use crate::respond::Problem;

const JSON: &str = "application/json";

/// The named schemas of the document.
pub(crate) type Schemas = Vec<(String, RefOr<Schema>)>;
/// Adds the named schemas that a schema needs, and returns the schema.
pub(crate) type SchemaFn = fn(&mut Schemas) -> RefOr<Schema>;
/// An example; null for none.
type ExampleFn = fn() -> Value;
/// Statuses or parameters, each with its description.
pub(crate) type StatusDocs = &'static [(&'static str, &'static str)];

pub(crate) const NO_EXAMPLE: ExampleFn = || Value::Null;

/// What the document says of a call.
pub(crate) struct Docs {
    id: &'static str,
    summary: &'static str,
    /// What the parameter of the path is.
    parameter: &'static str,
    takes: Option<(SchemaFn, ExampleFn)>,
    query: &'static [StatusDocs],
    answers: Option<(&'static str, Option<(SchemaFn, ExampleFn)>)>,
    /// The media type of the answer as text.
    text: Option<&'static str>,
    statuses: StatusDocs,
    gives_lease: bool,
}

impl Docs {
    pub(crate) const fn new(id: &'static str, summary: &'static str) -> Self {
        Self {
            id,
            summary,
            parameter: "",
            takes: None,
            query: &[],
            answers: None,
            text: None,
            statuses: &[],
            gives_lease: false,
        }
    }

    /// What the parameter of the path is.
    #[allow(dead_code, reason = "no call has a parameter yet")]
    pub(crate) const fn parameter(mut self, description: &'static str) -> Self {
        self.parameter = description;
        self
    }

    /// The body of the request.
    pub(crate) const fn takes(mut self, schema: SchemaFn, example: ExampleFn) -> Self {
        self.takes = Some((schema, example));
        self
    }

    /// The optional parameters of the query string.
    pub(crate) const fn query(mut self, parameters: &'static [StatusDocs]) -> Self {
        self.query = parameters;
        self
    }

    /// The answer with status 200.
    pub(crate) const fn answers(
        mut self,
        description: &'static str,
        schema: SchemaFn,
        example: ExampleFn,
    ) -> Self {
        self.answers = Some((description, Some((schema, example))));
        self
    }

    /// The answer with status 200 is text of this media type.
    pub(crate) const fn answers_text(
        mut self,
        description: &'static str,
        media_type: &'static str,
    ) -> Self {
        (self.answers, self.text) = (Some((description, None)), Some(media_type));
        self
    }

    /// The answer is HTML for those who accept HTML.
    pub(crate) const fn or_html(mut self) -> Self {
        self.text = Some("text/html");
        self
    }

    /// The answer may have a lease, which other calls take.
    pub(crate) const fn gives_lease(mut self) -> Self {
        self.gives_lease = true;
        self
    }

    /// Statuses besides 200 and those that authorisation and the body bring.
    pub(crate) const fn statuses(mut self, statuses: StatusDocs) -> Self {
        self.statuses = statuses;
        self
    }
}

const AUTH_STATUSES: StatusDocs = &[
    ("401", "A token is needed, and there is none or it is not known"),
    ("403", "The token's role is not served here; on loopback, a foreign Host or Origin"),
];
const PAGE_STATUSES: StatusDocs = &[("403", "On loopback, a foreign Host or Origin")];
const QUERY_STATUSES: StatusDocs = &[("400", "A parameter is wrong or not known")];
const BODY_STATUSES: StatusDocs = &[
    ("400", "A field is wrong, missing or unknown; nothing was decided"),
    ("408", "The body did not arrive in time"),
    ("413", "The body is too large"),
];

/// The calls that take the lease of a decision, each with its body.
const LEASE_CALLS: [(&str, ExampleFn); 3] = [
    ("release", || json!({ "lease": "$response.body#/lease" })),
    ("renew", || json!({ "lease": "$response.body#/lease" })),
    ("settle", || json!({ "lease": "$response.body#/lease", "status": 200 })),
];

/// Adds a type's schema and those that it refers to, and returns a reference to it.
pub(crate) fn schema<T: ToSchema>(schemas: &mut Schemas) -> RefOr<Schema> {
    let name = T::name();
    schemas.push((name.to_string(), T::schema()));
    T::schemas(schemas);
    Ref::from_schema_name(&*name).into()
}

/// `GET /openapi.json`, with the names that these policies know.
pub(crate) fn document(policies: &[Arc<Policy>]) -> Bytes {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
        let token = "A token of the file that `--tokens` names, with the role client, operator or superadmin. Without that file no token is needed.";
        describe(ApiInfo::openapi(), token, API)
    });
    let mut document = DOCUMENT.clone();
    list_names(&mut document, policies);
    Bytes::from(document.to_string())
}

/// `GET /admin/v1/openapi.json`.
pub(crate) fn admin_document() -> Bytes {
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| {
        let token = "A token of the file that `--tokens` names, with the role viewer, operator or superadmin. Without that file only loopback is served, as operator.";
        Bytes::from(describe(AdminInfo::openapi(), token, ADMIN).to_string())
    });
    DOCUMENT.clone()
}

/// The document of a table of routes.
fn describe(mut document: utoipa::openapi::OpenApi, token: &str, routes: &[Route]) -> Value {
    let (mut paths, mut schemas) = (PathsBuilder::new(), Schemas::new());
    for route in routes {
        if let Some(docs) = &route.docs {
            let operation = operation(route, docs, &mut schemas);
            paths = paths.path(route.path, PathItem::new(http_method(route), operation));
        }
    }
    document.paths = paths.build();
    let mut components = Components::new();
    components.schemas.extend(schemas);
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(token));
    components.add_security_scheme("token", SecurityScheme::Http(bearer.build()));
    document.components = Some(components);
    let with_token = SecurityRequirement::new::<_, [&str; 0], &str>("token", []);
    document.security = Some(vec![SecurityRequirement::default(), with_token]);
    // Strings and numbers into memory: neither can fail.
    serde_json::to_value(&document).unwrap_or_default()
}

/// Lists the names that a call may say: others are a 400.
fn list_names(document: &mut Value, policies: &[Arc<Policy>]) {
    let policies = || policies.iter().map(|policy| &**policy);
    let names: [(&str, BTreeSet<&str>); 3] = [
        ("policy", policies().map(Policy::name).collect()),
        ("operation", policies().flat_map(Policy::operations).collect()),
        ("event", policies().flat_map(Policy::events).collect()),
    ];
    for schema in schemas::WITH_NAMES {
        for (field, names) in &names {
            let pointer = format!("/components/schemas/{schema}/properties/{field}");
            let Some(field) = document.pointer_mut(&pointer) else { continue };
            let may_be_null = field["type"].is_array();
            let names = names.iter().map(|name| json!(name));
            let null = may_be_null.then_some(Value::Null);
            field["enum"] = names.chain(null).collect();
        }
    }
}

#[derive(OpenApi)]
#[openapi(info(
    title = "Tidegate decision API",
    description = "Ask whether a request may pass, and tell what became of it. Every decision is answered with 200; what is wrong with a call is told as problem details (RFC 9457). Unknown fields are refused; a field that is null is as good as left out. Numbers are exact decimals with at most six places.",
))]
struct ApiInfo;

#[derive(OpenApi)]
#[openapi(info(
    title = "Tidegate admin API",
    description = "See and change what the daemon does. What is wrong with a call is told as problem details (RFC 9457). Unknown fields and parameters are refused; a field that is null is as good as left out.",
))]
struct AdminInfo;

fn http_method(route: &Route) -> HttpMethod {
    match route.method.as_str() {
        "POST" => HttpMethod::Post,
        "DELETE" => HttpMethod::Delete,
        _ => HttpMethod::Get,
    }
}

fn operation(route: &Route, docs: &Docs, schemas: &mut Schemas) -> Operation {
    let mut operation =
        OperationBuilder::new().operation_id(Some(docs.id)).summary(Some(docs.summary));
    if let Some(name) = route.parameter_name() {
        let (of_path, required) = (ParameterIn::Path, Required::True);
        operation = operation.parameter(parameter(name, docs.parameter, of_path, required));
    }
    for (name, description) in docs.query.iter().copied().flatten() {
        let (of_query, optional) = (ParameterIn::Query, Required::False);
        operation = operation.parameter(parameter(name, description, of_query, optional));
    }
    let mut statuses = Vec::new();
    match route.access {
        Access::Role(role) => {
            let needs = format!("Needs the role {}.", role.name());
            operation = operation.description(Some(needs));
            statuses.extend(AUTH_STATUSES);
        }
        Access::Everybody => statuses.extend(PAGE_STATUSES),
        Access::Anywhere => {}
    }
    if !matches!(route.access, Access::Role(_)) {
        operation = operation.security(SecurityRequirement::default());
    }
    if !docs.query.is_empty() {
        statuses.extend(QUERY_STATUSES);
    }
    if let Some((schema, example)) = docs.takes {
        let body = RequestBodyBuilder::new().required(Some(Required::True));
        let body = body.content(JSON, content(schema(schemas), example));
        operation = operation.request_body(Some(body.build()));
        statuses.extend(BODY_STATUSES);
    }
    if let Some(answer) = answer(docs, schemas) {
        operation = operation.response("200", answer);
    }
    for (status, description) in statuses.into_iter().chain(docs.statuses) {
        operation = operation.response(*status, other_answer(status, description, schemas));
    }
    operation.build()
}

fn parameter(
    name: &str,
    description: &str,
    place: ParameterIn,
    required: Required,
) -> ParameterBuilder {
    let text = ObjectBuilder::new().schema_type(Type::String);
    let parameter = ParameterBuilder::new().name(name).parameter_in(place).required(required);
    parameter.description(Some(description)).schema(Some(text))
}

/// The answer with status 200.
fn answer(docs: &Docs, schemas: &mut Schemas) -> Option<Response> {
    let (description, json) = docs.answers?;
    let mut answer = ResponseBuilder::new().description(description);
    if let Some((schema, example)) = json {
        answer = answer.content(JSON, content(schema(schemas), example));
    }
    if docs.gives_lease {
        for (id, body) in LEASE_CALLS {
            let link = LinkBuilder::new().operation_id(id).request_body(Some(body()));
            answer = answer.link(id, link.build());
        }
    }
    if let Some(media_type) = docs.text {
        let text = ObjectBuilder::new().schema_type(Type::String);
        answer = answer.content(media_type, content(text.into(), NO_EXAMPLE));
    }
    Some(answer.build())
}

/// An answer other than 200: problem details for an error.
fn other_answer(status: &str, description: &str, schemas: &mut Schemas) -> Response {
    let answer = ResponseBuilder::new().description(description);
    if status < "400" {
        return answer.build();
    }
    let problem = content(schema::<Problem<'static>>(schemas), NO_EXAMPLE);
    answer.content("application/problem+json", problem).build()
}

fn content(schema: RefOr<Schema>, example: ExampleFn) -> Content {
    let example = Some(example()).filter(|example| !example.is_null());
    ContentBuilder::new().schema(Some(schema)).example(example).build()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_document_is_openapi_3_1_and_every_reference_leads_somewhere() {
        let policy = "{ tidegate: 1, name: shop, operations: { login: POST /login } }";
        let policy = tidegate::Policy::parse("shop.yaml", policy).unwrap();
        let text = super::document(&[std::sync::Arc::new(policy)]);
        let document: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        let check = &document["components"]["schemas"]["Check"]["properties"];
        assert_eq!(check["policy"]["enum"], serde_json::json!(["shop", null]));
        assert_eq!(check["operation"]["enum"], serde_json::json!(["default", "login", null]));
        let event = &document["components"]["schemas"]["EventReport"]["properties"]["event"];
        assert!(event["enum"].as_array().is_some_and(|names| names.contains(&"limited".into())));
        let links = &document["paths"]["/v1/check"]["post"]["responses"]["200"]["links"];
        assert_eq!(links["settle"]["operationId"], "settle", "{links}");
        let text = String::from_utf8(text.to_vec()).unwrap();
        for reference in text.split("\"$ref\":").skip(1) {
            let pointer = reference.split('"').nth(1).unwrap().strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{pointer}");
        }
    }
}
