//! The user service: a type of operation for each URL, its number, and its name in the refusal.

use serde_json::{Value, json};

use super::{Caller, Example, assert_headers, assert_refusal};

const NAME: &str = "user-service";
const MESSAGE: &str = "Too many requests, please try again later";

/// The 429 of the user service, for a type.
fn body(kind: &str, message: &str) -> Value {
    json!({
        "statusCode": 429,
        "message": message,
        "error": "Too Many Requests",
        "type": kind,
        "retryAfter": 300,
    })
}

/// Exactly `limit` requests pass, and the next reads the printed refusal.
fn assert_limited(caller: &mut Caller, kind: &str, limit: u64, window: u64, request: (&str, &str)) {
    let (method, target) = request;
    caller.pass(usize::try_from(limit).unwrap(), method, target);
    let refusal = caller.send(method, target);
    assert_refusal(&refusal, limit, window, "retryAfter", body(kind, MESSAGE));
    assert_eq!(refusal.header("content-type"), Some("application/json"));
}

#[test]
fn each_type_has_its_number_and_its_name() {
    let example = Example::start(NAME);
    let mut user = example.behind_proxy(&[("X-User-Id", "u1")]);
    assert_limited(&mut user, "default", 60, 60, ("GET", "/users/1"));
    assert_limited(&mut user, "batch", 10, 300, ("POST", "/batch/users/create"));
    assert_limited(&mut user, "profile", 30, 60, ("POST", "/profiles/123/avatar"));
    assert_limited(&mut user, "upload", 5, 60, ("POST", "/upload"));
    assert_limited(&mut user, "search", 100, 60, ("GET", "/groups/search?q=john"));
    assert_limited(&mut user, "internal", 1000, 60, ("GET", "/internal/users/123"));
}

#[test]
fn decorated_routes_have_numbers_and_messages_of_their_own() {
    let example = Example::start(NAME);
    let mut user = example.behind_proxy(&[("X-User-Id", "u1")]);
    user.pass(50, "GET", "/users/search?q=john");
    let refusal = user.send("GET", "/users/search?q=john");
    let message = "Too many search requests, please try again later";
    assert_refusal(&refusal, 50, 60, "retryAfter", body("search", message));
    assert_limited(&mut user, "batch", 5, 300, ("POST", "/users/batch/create"));
    // The type's own count is unchanged.
    assert_headers(&user.send("POST", "/batch/users/create"), 10, 9);
}

#[test]
fn the_environment_sets_every_number() {
    let env = [("RATE_LIMIT_UPLOAD_LIMIT", "2"), ("RATE_LIMIT_BATCH_TTL", "60000")];
    let example = Example::start_with(NAME, &env, &[]);
    let mut user = example.behind_proxy(&[("X-User-Id", "u1")]);
    assert_limited(&mut user, "upload", 2, 60, ("POST", "/upload"));
    assert_limited(&mut user, "batch", 10, 60, ("POST", "/batch/users/create"));
}

#[test]
fn switched_off_nothing_is_limited() {
    let example = Example::start_with(NAME, &[("RATE_LIMIT_ENABLED", "false")], &[]);
    let mut user = example.caller();
    user.pass(20, "POST", "/upload");
    assert_eq!(user.send("POST", "/upload").header("x-ratelimit-limit"), None);
}

#[test]
fn profiles_are_the_settings_of_environments() {
    for (profile, default, batch) in
        [("development", 100, 20), ("test", 1000, 100), ("production", 60, 10)]
    {
        let example = Example::start_with(NAME, &[], &["--profile", profile]);
        let mut user = example.caller();
        assert_headers(&user.send("GET", "/users/1"), default, default - 1);
        assert_limited(&mut user, "batch", batch, 300, ("POST", "/batch/users/create"));
    }
}

#[test]
fn an_api_key_is_counted_on_each_path_from_wherever_it_calls() {
    let example = Example::start(NAME);
    for octet in 1..=60 {
        let address = format!("192.0.2.{octet}");
        let headers = [("X-Api-Key", "k1"), ("X-Forwarded-For", &address)];
        assert_eq!(example.behind_proxy(&headers).send("GET", "/users/1").status, 200);
    }
    let mut caller = example.behind_proxy(&[("X-Api-Key", "k1")]);
    let refusal = caller.send("GET", "/users/1");
    assert_refusal(&refusal, 60, 60, "retryAfter", body("default", MESSAGE));
    assert_eq!(caller.send("GET", "/users/2").status, 200);
}
