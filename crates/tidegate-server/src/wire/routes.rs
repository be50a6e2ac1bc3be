//! Every call of the decision API and, in [`admin`], of the admin API: one row each. The router, the
//! roles and the OpenAPI documents are made from these rows, so that a new call needs one row and one
//! handler.

mod admin;

use http::Method;
use serde_json::json;

pub(crate) use self::admin::ADMIN;
use super::api::{self, challenge, check, examples, leases, limits, report, schemas};
use super::endpoint::{Call, Reply};
use super::openapi::{self, Docs, NO_EXAMPLE, StatusDocs, schema};
use crate::auth::{Access, Role};
use crate::respond;

/// The longest body of a call: a JSON body of 64 KiB with every character escaped, and the rest.
const CALL_BYTES_MAX: usize = 256 * 1024;
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A call.
pub(crate) struct Route {
    pub(super) method: Method,
    /// The path. One segment may be a parameter: `/admin/v1/requests/{id}/approve`.
    pub(super) path: &'static str,
    pub(super) access: Access,
    /// The longest body; 0 if the call takes none.
    pub(super) body_bytes_max: usize,
    pub(super) handler: Handler,
    /// `None` if the call is not part of the OpenAPI document.
    pub(super) docs: Option<Docs>,
}

type Handler = for<'c> fn(&'c Call<'_>) -> Reply<'c>;

/// The calls of the decision API.
pub(crate) static API: &[Route] = &[
    post("/v1/check", Role::Client, CALL_BYTES_MAX, |call| {
        Reply::later(check::check(call.app, &call.parts.headers, &call.body))
    })
    .docs(
        Docs::new("check", "Decide a request, and charge it if it passes")
            .takes(schema::<schemas::Check>, examples::check)
            .answers("The decision", schema::<schemas::Decision>, examples::decision)
            .gives_lease(),
    ),
    post("/v1/check/batch", Role::Client, BATCH_BYTES_MAX, |call| {
        Reply::later(check::check_batch(call.app, &call.parts.headers, &call.body))
    })
    .docs(
        Docs::new("checkBatch", "Decide several requests, in order")
            .takes(schemas::check_batch, || json!([examples::check()]))
            .answers("Each decision", schemas::decision_batch, || json!([examples::decision()])),
    ),
    post("/v1/acquire", Role::Client, CALL_BYTES_MAX, |call| {
        Reply::later(check::acquire(call.app, &call.parts.headers, &call.body))
    })
    .docs(
        Docs::new("acquire", "Decide a request that may wait its turn")
            .takes(schema::<schemas::Acquire>, examples::acquire)
            .answers("The decision", schema::<schemas::Decision>, examples::acquired)
            .gives_lease(),
    ),
    post("/v1/release", Role::Client, CALL_BYTES_MAX, |call| {
        Reply::later(leases::release(call.app, &call.body))
    })
    .docs(
        Docs::new("release", "Give concurrency places back")
            .takes(schema::<schemas::Reservation>, || json!({ "lease": examples::LEASE }))
            .answers(PLACES_HELD, schema::<schemas::Released>, || json!({ "released": true }))
            .statuses(LEASE_STATUSES),
    ),
    post("/v1/renew", Role::Client, CALL_BYTES_MAX, |call| {
        Reply::later(leases::renew(call.app, &call.body))
    })
    .docs(
        Docs::new("renew", "Keep concurrency places")
            .takes(schema::<schemas::Reservation>, || json!({ "lease": examples::LEASE }))
            .answers(PLACES_HELD, schema::<schemas::Renewed>, || json!({ "renewed": true }))
            .statuses(LEASE_STATUSES),
    ),
    post("/v1/settle", Role::Client, CALL_BYTES_MAX, |call| {
        Reply::later(leases::settle(call.app, &call.body))
    })
    .docs(
        Docs::new("settle", "Tell the true cost, or the answer's status")
            .takes(schemas::settle, || json!({ "lease": examples::LEASE, "cost": 734 }))
            .answers("Settled", schema::<schemas::Settled>, || json!({ "settled": true }))
            .statuses(LEASE_STATUSES),
    ),
    post("/v1/report", Role::Client, CALL_BYTES_MAX, |call| {
        Reply::later(report::report(call.app, &call.body))
    })
    .docs(
        Docs::new("report", "Tell what befell a subject, or how loaded a service is")
            .takes(schemas::report, examples::report)
            .answers(
                "What follows from it",
                schema::<report::ConsequencesView<'static>>,
                examples::consequences,
            ),
    ),
    post("/v1/challenge", Role::Client, CALL_BYTES_MAX, |call| {
        Reply::later(challenge::challenge(call.app, &call.body))
    })
    .docs(
        Docs::new("challenge", "Give a client a challenge, or a pass for its solution")
            .takes(schemas::solution, examples::solution)
            .answers("The challenge, or the pass", schemas::challenge_or_pass, examples::pass)
            .statuses(&[
                ("403", "The solution earns no pass; or as for other calls"),
                ("404", "The policy challenges nobody"),
                ("503", "The CAPTCHA service does not answer"),
            ]),
    ),
    get("/v1/limits", Role::Client, |call| Reply::Now(limits::json(call.app, &call.parts)))
        .open_to(Access::Everybody)
        .docs(
            Docs::new("limits", "Tell the published limits")
                .query(&[POLICY_PARAMETER])
                .answers("The limits", schema::<limits::Limits<'static>>, examples::limits)
                .statuses(POLICY_STATUSES),
        ),
    get("/limits", Role::Client, |call| Reply::Now(limits::page(call.app, &call.parts)))
        .open_to(Access::Everybody)
        .docs(
            Docs::new("limitsPage", "Show the published limits to people")
                .query(&[POLICY_PARAMETER])
                .answers(
                    "A page, or JSON for whoever accepts that alone",
                    schema::<limits::Limits<'static>>,
                    examples::limits,
                )
                .or_html()
                .statuses(POLICY_STATUSES),
        ),
    get("/openapi.json", Role::Client, |call| {
        Reply::Now(Ok(respond::json(openapi::document(&call.app.engine.policies()))))
    })
    .docs(Docs::new("openapi", "Describe the API").answers(
        "This document",
        schemas::object,
        NO_EXAMPLE,
    )),
    get("/health", Role::Client, |_| Reply::Now(api::health())).open_to(Access::Anywhere).docs(
        Docs::new("health", "Tell that it is alive").answers(
            "Tell that it is alive",
            schema::<schemas::Health>,
            || json!({ "status": "ok" }),
        ),
    ),
    get("/ready", Role::Client, |call| Reply::Now(api::ready(call.app)))
        .open_to(Access::Anywhere)
        .docs(
            Docs::new("ready", "Tell that it takes requests")
                .answers(
                    "Tell that it takes requests",
                    schema::<schemas::Health>,
                    || json!({ "status": "ready" }),
                )
                .statuses(&[("503", "It is draining")]),
        ),
];

const PLACES_HELD: &str = "Whether all of them were still held";
const LEASE_STATUSES: StatusDocs =
    &[("404", "The lease is not known, or nothing of it may change any more")];
const POLICY_PARAMETER: StatusDocs =
    &[("policy", "The policy's name; the first policy without it")];
const POLICY_STATUSES: StatusDocs = &[
    ("304", "Nothing has changed since that ETag"),
    ("404", "No policy of this name is in force"),
];

const fn get(path: &'static str, role: Role, handler: Handler) -> Route {
    route(Method::GET, path, role, 0, handler)
}

const fn post(path: &'static str, role: Role, body_bytes_max: usize, handler: Handler) -> Route {
    route(Method::POST, path, role, body_bytes_max, handler)
}

const fn delete(path: &'static str, role: Role, handler: Handler) -> Route {
    route(Method::DELETE, path, role, 0, handler)
}

const fn route(
    method: Method,
    path: &'static str,
    role: Role,
    body_bytes_max: usize,
    handler: Handler,
) -> Route {
    Route { method, path, access: Access::Role(role), body_bytes_max, handler, docs: None }
}

impl Route {
    const fn docs(mut self, docs: Docs) -> Self {
        self.docs = Some(docs);
        self
    }

    const fn open_to(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// The parameter in a path of this route: empty if the route has none; `None` in any other path.
    pub(super) fn parameter_in<'p>(&self, path: &'p str) -> Option<&'p str> {
        let Some((before, after)) = self.around_parameter() else {
            return (self.path == path).then_some("");
        };
        let parameter = path.strip_prefix(before)?.strip_suffix(after)?;
        (!parameter.is_empty() && !parameter.contains('/')).then_some(parameter)
    }

    /// The name of the parameter in the path.
    pub(super) fn parameter_name(&self) -> Option<&'static str> {
        let (before, after) = self.around_parameter()?;
        self.path.strip_prefix(before)?.strip_suffix(after)?.strip_prefix('{')?.strip_suffix('}')
    }

    /// The path before and after its parameter.
    fn around_parameter(&self) -> Option<(&'static str, &'static str)> {
        let (before, rest) = self.path.split_once('{')?;
        rest.split_once('}').map(|(_, after)| (before, after))
    }

    /// True if the route answers this method. A route for GET answers HEAD too.
    pub(super) fn takes(&self, method: &Method) -> bool {
        self.method == *method || self.method == Method::GET && *method == Method::HEAD
    }

    /// The route's methods, for the `Allow` header.
    pub(super) fn methods(&self) -> &str {
        if self.method == Method::GET { "GET, HEAD" } else { self.method.as_str() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_to_one_route_for_each_method() {
        for routes in [API, ADMIN] {
            for (index, route) in routes.iter().enumerate() {
                let example = route.path.replace(['{', '}'], "");
                let is_same = |other: &Route| {
                    other.method == route.method && other.parameter_in(&example).is_some()
                };
                let others = routes[..index].iter().chain(&routes[index + 1..]);
                assert!(!others.into_iter().any(is_same), "{} {}", route.method, route.path);
            }
        }
    }

    #[test]
    fn a_parameter_is_one_whole_segment() {
        let route = post("/admin/v1/requests/{id}/approve", Role::Operator, 0, |_| unreachable!());
        let parameter = |path| route.parameter_in(path);
        assert_eq!(parameter("/admin/v1/requests/7f3a/approve"), Some("7f3a"));
        for other in [
            "/admin/v1/requests//approve",
            "/admin/v1/requests/approve",
            "/admin/v1/requests/a/b/approve",
            "/admin/v1/requests/a/deny",
            "/admin/v1/requests/a",
            "/admin/v1/requests/a/approve/",
        ] {
            assert_eq!(parameter(other), None, "{other}");
        }
        assert_eq!(route.parameter_name(), Some("id"));
        assert_eq!(API[0].parameter_in("/v1/check"), Some(""));
        assert_eq!((API[0].parameter_in("/v1/checks"), API[0].parameter_name()), (None, None));
    }

    #[test]
    fn without_a_token_there_are_health_and_limits_and_nothing_else() {
        let open = |routes: &[Route], access| -> Vec<&str> {
            let open = routes.iter().filter(|route| route.access == access);
            open.map(|route| route.path).collect()
        };
        assert_eq!(open(API, Access::Anywhere), ["/health", "/ready"]);
        assert_eq!(open(API, Access::Everybody), ["/v1/limits", "/limits"]);
        assert_eq!(open(ADMIN, Access::Anywhere), ["/health", "/ready"]);
        assert!(open(ADMIN, Access::Everybody).is_empty());
    }

    #[test]
    fn what_changes_something_on_the_admin_listener_takes_an_operator() {
        for route in ADMIN.iter().filter(|route| route.method != Method::GET) {
            let Access::Role(role) = route.access else { panic!("{}", route.path) };
            assert!(role.covers(Role::Operator), "{} {}", route.method, route.path);
        }
    }

    #[test]
    fn every_call_is_documented() {
        for route in API.iter().chain(ADMIN) {
            assert!(route.docs.is_some(), "{} {}", route.method, route.path);
        }
    }
}
