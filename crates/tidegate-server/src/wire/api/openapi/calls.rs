//! The calls of the decision API, with what they take and answer.

use serde_json::{Value, json};
use utoipa::openapi::content::{Content, ContentBuilder};
use utoipa::openapi::path::{
    HttpMethod, Operation, OperationBuilder, ParameterBuilder, ParameterIn, PathItem, Paths,
    PathsBuilder,
};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, OneOfBuilder, Type};
use utoipa::openapi::security::SecurityRequirement;
use utoipa::openapi::{Ref, RefOr, Required, ResponseBuilder, Schema};

use super::examples;

const JSON: &str = "application/json";

/// Every call.
pub(super) fn paths() -> Paths {
    let calls = [
        ("/v1/check", HttpMethod::Post, check()),
        ("/v1/check/batch", HttpMethod::Post, batch()),
        ("/v1/acquire", HttpMethod::Post, acquire()),
        (
            "/v1/release",
            HttpMethod::Post,
            lease("release", "Give concurrency places back", "Released"),
        ),
        ("/v1/renew", HttpMethod::Post, lease("renew", "Keep concurrency places", "Renewed")),
        ("/v1/settle", HttpMethod::Post, settle()),
        ("/v1/report", HttpMethod::Post, report()),
        ("/v1/challenge", HttpMethod::Post, challenge()),
        ("/v1/limits", HttpMethod::Get, limits()),
        ("/limits", HttpMethod::Get, page()),
        ("/openapi.json", HttpMethod::Get, openapi()),
        ("/health", HttpMethod::Get, health("health", "Tell that it is alive", "ok")),
        ("/ready", HttpMethod::Get, ready()),
    ];
    let add = |paths: PathsBuilder, (path, method, operation): (&str, _, Operation)| {
        paths.path(path, PathItem::new(method, operation))
    };
    calls.into_iter().fold(PathsBuilder::new(), add).build()
}

fn check() -> Operation {
    let call = operation("check", "Decide a request, and charge it if it passes");
    let call = takes(call, schema("Check"), examples::check());
    let call = answers(call, "The decision", schema("Decision"), examples::decision());
    problems(call, BODY_PROBLEMS).build()
}

fn batch() -> Operation {
    let each = OneOfBuilder::new().item(schema("Decision")).item(schema("Problem"));
    let checks = ArrayBuilder::new().items(schema("Check")).max_items(Some(1_000));
    let call = operation("checkBatch", "Decide several requests, in order");
    let call = takes(call, checks, json!([examples::check()]));
    let told = ArrayBuilder::new().items(each);
    let call = answers(call, "Each decision", told, json!([examples::decision()]));
    problems(call, BODY_PROBLEMS).build()
}

fn acquire() -> Operation {
    let (mut said, mut told) = (examples::check(), examples::decision());
    said["max_wait_ms"] = json!(2_000);
    told["waited_ms"] = json!(0);
    let call = operation("acquire", "Decide a request that may wait its turn");
    let call = takes(call, schema("Acquire"), said);
    let call = answers(call, "The decision", schema("Decision"), told);
    problems(call, BODY_PROBLEMS).build()
}

fn lease(id: &str, summary: &str, answer: &str) -> Operation {
    let mut told = json!({});
    told[answer.to_lowercase()] = json!(true);
    let call = operation(id, summary);
    let call = takes(call, schema("Reservation"), json!({ "lease": examples::LEASE }));
    let call = answers(call, "Whether all of them were still held", schema(answer), told);
    problems(problems(call, BODY_PROBLEMS), LEASE_PROBLEMS).build()
}

fn settle() -> Operation {
    let call = operation("settle", "Tell the true cost, or the answer's status");
    let call = takes(call, schema("Settle"), json!({ "lease": examples::LEASE, "cost": 734 }));
    let call = answers(call, "Settled", schema("Settled"), json!({ "settled": true }));
    problems(problems(call, BODY_PROBLEMS), LEASE_PROBLEMS).build()
}

fn report() -> Operation {
    let said = json!({ "event": "auth_failure", "attributes": { "email": "a@b.c" } });
    let told = json!({ "delay_ms": 2_000, "warnings": [], "banned": false, "challenged": false,
                       "flags": [], "degraded": false });
    let call = operation("report", "Tell what befell a subject, or how loaded a service is");
    let call = takes(call, schema("Report"), said);
    let call = answers(call, "What follows from it", schema("Consequences"), told);
    problems(call, BODY_PROBLEMS).build()
}

fn challenge() -> Operation {
    let either = OneOfBuilder::new().item(schema("Challenged")).item(schema("Pass"));
    let call = operation("challenge", "Give a client a challenge, or a pass for its solution");
    let call = takes(call, schema("Solution"), examples::solution());
    let call = answers(call, "The challenge, or the pass", either, examples::pass());
    problems(problems(call, BODY_PROBLEMS), CHALLENGE_PROBLEMS).build()
}

fn limits() -> Operation {
    let call = operation("limits", "Tell the published limits");
    let call = answers(call, "The limits", schema("Limits"), examples::limits());
    problems(of_policy(call), POLICY_PROBLEMS).build()
}

fn page() -> Operation {
    let call = operation("limitsPage", "Show the published limits to people");
    let text = ObjectBuilder::new().schema_type(Type::String);
    let response = ResponseBuilder::new()
        .description("A page, or JSON for whoever accepts that alone")
        .content("text/html", ContentBuilder::new().schema(Some(text)).build())
        .content(JSON, content(schema("Limits"), examples::limits()));
    problems(of_policy(call.response("200", response.build())), POLICY_PROBLEMS).build()
}

fn openapi() -> Operation {
    let object = ObjectBuilder::new().schema_type(Type::Object);
    let call = operation("openapi", "Describe the API");
    let content = ContentBuilder::new().schema(Some(object)).build();
    let response = ResponseBuilder::new().description("This document").content(JSON, content);
    problems(call.response("200", response.build()), GUARD_PROBLEMS).build()
}

fn health(id: &str, summary: &str, status: &str) -> Operation {
    let call = operation(id, summary).security(SecurityRequirement::default());
    answers(call, summary, schema("Health"), json!({ "status": status })).build()
}

fn ready() -> Operation {
    let call = OperationBuilder::from(health("ready", "Tell that it takes requests", "ready"));
    problems(call, &[("503", "It is draining")]).build()
}

type Problems = &'static [(&'static str, &'static str)];

const GUARD_PROBLEMS: Problems = &[
    ("401", "A token is needed, and there is none or it is not known"),
    ("403", "The token's role is not served here; on loopback, a foreign Host or Origin"),
];
const BODY_PROBLEMS: Problems = &[
    ("400", "A field is wrong, missing or unknown; nothing was decided"),
    GUARD_PROBLEMS[0],
    GUARD_PROBLEMS[1],
    ("408", "The body did not arrive in time"),
    ("413", "The body is too large"),
];
const LEASE_PROBLEMS: Problems =
    &[("404", "The lease is not known, or nothing of it may change any more")];
const CHALLENGE_PROBLEMS: Problems = &[
    ("403", "The solution earns no pass; or as for other calls"),
    ("404", "The policy challenges nobody"),
    ("503", "The CAPTCHA service does not answer"),
];
const POLICY_PROBLEMS: Problems = &[
    ("400", "A parameter is not known"),
    GUARD_PROBLEMS[0],
    GUARD_PROBLEMS[1],
    ("404", "No policy of this name is in force"),
];

fn operation(id: &str, summary: &str) -> OperationBuilder {
    OperationBuilder::new().operation_id(Some(id)).summary(Some(summary))
}

fn takes(
    call: OperationBuilder,
    schema: impl Into<RefOr<Schema>>,
    example: Value,
) -> OperationBuilder {
    let body = RequestBodyBuilder::new().required(Some(Required::True));
    call.request_body(Some(body.content(JSON, content(schema, example)).build()))
}

fn answers(
    call: OperationBuilder,
    what: &str,
    schema: impl Into<RefOr<Schema>>,
    example: Value,
) -> OperationBuilder {
    let response = ResponseBuilder::new().description(what).content(JSON, content(schema, example));
    call.response("200", response.build())
}

fn problems(call: OperationBuilder, problems: Problems) -> OperationBuilder {
    problems.iter().fold(call, |call, (status, why)| {
        let content = ContentBuilder::new().schema(Some(schema("Problem"))).build();
        let response =
            ResponseBuilder::new().description(*why).content("application/problem+json", content);
        call.response(*status, response.build())
    })
}

/// One of several policies; answers that have not changed are not sent again.
fn of_policy(call: OperationBuilder) -> OperationBuilder {
    let name = ParameterBuilder::new()
        .name("policy")
        .parameter_in(ParameterIn::Query)
        .required(Required::False)
        .description(Some("The policy's name; the first policy without it"))
        .schema(Some(ObjectBuilder::new().schema_type(Type::String)));
    let unchanged = ResponseBuilder::new().description("Nothing has changed since that ETag");
    call.parameter(name).response("304", unchanged.build())
}

fn content(schema: impl Into<RefOr<Schema>>, example: Value) -> Content {
    ContentBuilder::new().schema(Some(schema)).example(Some(example)).build()
}

fn schema(name: &str) -> Ref {
    Ref::from_schema_name(name)
}
