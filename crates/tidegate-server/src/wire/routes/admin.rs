//! The calls of the admin API.

use serde_json::json;
use tidegate::engine::marks::MarkKind;

use super::{Route, delete, get, post};
use crate::admin::{self, keys, marks, schemas};
use crate::auth::{Access, Role};
use crate::respond;
use crate::wire::api::{self, schemas as api_schemas};
use crate::wire::endpoint::Reply;
use crate::wire::openapi::{self, Docs, NO_EXAMPLE, StatusDocs, schema};

/// The longest body of a call.
const BYTES_MAX: usize = 16 * 1024;

/// The calls of the admin API.
pub(crate) static ADMIN: &[Route] = &[
    get("/health", Role::Viewer, |_| Reply::Now(api::health())).open_to(Access::Anywhere).docs(
        Docs::new("health", "Tell that it is alive").answers(
            "It is alive",
            schema::<api_schemas::Health>,
            || json!({ "status": "ok" }),
        ),
    ),
    get("/ready", Role::Viewer, |call| Reply::Now(api::ready(call.app)))
        .open_to(Access::Anywhere)
        .docs(
            Docs::new("ready", "Tell that it takes requests")
                .answers(
                    "It takes requests",
                    schema::<api_schemas::Health>,
                    || json!({ "status": "ready" }),
                )
                .statuses(&[("503", "It is draining")]),
        ),
    get("/metrics", Role::Viewer, |call| Reply::Now(admin::metrics(call))).docs(
        Docs::new("metrics", "Count for Prometheus")
            .answers_text("Metrics in Prometheus' text format", "text/plain"),
    ),
    get("/admin/v1/openapi.json", Role::Viewer, |_| {
        Reply::Now(Ok(respond::json(openapi::admin_document())))
    })
    .docs(Docs::new("openapi", "Describe the admin API").answers(
        "This document",
        api_schemas::object,
        NO_EXAMPLE,
    )),
    get("/admin/v1/status", Role::Viewer, |call| Reply::Now(admin::status(call))).docs(
        Docs::new("status", "Tell policies, store, state directory and listeners").answers(
            "The status",
            schema::<admin::StatusView<'static>>,
            NO_EXAMPLE,
        ),
    ),
    get("/admin/v1/keys", Role::Viewer, |call| Reply::later(keys::list(call.app, call.query())))
        .docs(
            Docs::new("listKeys", "List the keys of the store, and their use")
                .query(&[KEYS, PAGE])
                .answers("A page of keys", schema::<keys::KeyList<'static>>, NO_EXAMPLE)
                .statuses(STORE_STATUSES),
        ),
    delete("/admin/v1/keys", Role::Operator, |call| {
        Reply::later(keys::delete(call.app, call.query()))
    })
    .docs(
        Docs::new("deleteKeys", "Delete keys of the store: their subjects start afresh")
            .query(&[KEYS, PAGE, DRY_RUN])
            .answers("What was deleted", schema::<keys::Deletion<'static>>, NO_EXAMPLE)
            .statuses(STORE_STATUSES),
    ),
    get("/admin/v1/bans", Role::Viewer, |call| Reply::Now(marks::list(call, MarkKind::Ban))).docs(
        Docs::new("listBans", "List bans").query(&[MARKS, PAGE]).answers(
            "A page of bans",
            schema::<schemas::BanList>,
            NO_EXAMPLE,
        ),
    ),
    post("/admin/v1/bans", Role::Operator, BYTES_MAX, |call| {
        Reply::Now(marks::add(call, MarkKind::Ban))
    })
    .docs(
        Docs::new("ban", "Ban a subject")
            .takes(schema::<schemas::NewBan>, schemas::new_ban)
            .answers("The ban", schema::<marks::MarkView<'static>>, NO_EXAMPLE),
    ),
    delete("/admin/v1/bans", Role::Operator, |call| {
        Reply::later(marks::remove(call, MarkKind::Ban))
    })
    .docs(Docs::new("unban", "End bans").query(&[MARKS]).answers(
        REMOVED,
        schema::<marks::Removal>,
        || json!({ "removed": 1 }),
    )),
    get("/admin/v1/flags", Role::Viewer, |call| Reply::Now(marks::list(call, MarkKind::Flag)))
        .docs(Docs::new("listFlags", "List flags").query(&[FLAG, MARKS, PAGE]).answers(
            "A page of flags",
            schema::<schemas::FlagList>,
            NO_EXAMPLE,
        )),
    post("/admin/v1/flags", Role::Operator, BYTES_MAX, |call| {
        Reply::Now(marks::add(call, MarkKind::Flag))
    })
    .docs(
        Docs::new("flag", "Flag a subject")
            .takes(schema::<schemas::NewFlag>, schemas::new_flag)
            .answers("The flag", schema::<marks::MarkView<'static>>, NO_EXAMPLE),
    ),
    delete("/admin/v1/flags", Role::Operator, |call| {
        Reply::later(marks::remove(call, MarkKind::Flag))
    })
    .docs(Docs::new("unflag", "Take flags away").query(&[FLAG, MARKS]).answers(
        REMOVED,
        schema::<marks::Removal>,
        || json!({ "removed": 1 }),
    )),
];

const REMOVED: &str = "How many were removed";
const STORE_STATUSES: StatusDocs = &[("503", "The store does not answer")];

/// The parameters that select marks.
const MARKS: StatusDocs = &[
    ("id", "The id of one mark"),
    ("policy", "Only marks of this policy"),
    ("user", "A part of the subject; so are `client` and any attribute"),
    ("ip", "A part of the subject: an address"),
    ("network", "A part of the subject: a network"),
];
const FLAG: StatusDocs = &[("flag", "Only flags of this name")];
/// The parameters that select keys.
const KEYS: StatusDocs = &[
    ("key", "The name of one key"),
    ("policy", "The policy of the limit, the penalty or the subject"),
    ("limit", "All keys of this limit"),
    ("penalty", "All keys of this penalty"),
    ("user", "The subject's user; `attribute.NAME` and `header.NAME` say more of the subject"),
    ("ip", "The subject's address"),
    ("tier", "The subject's tier"),
    ("country", "The subject's country"),
    ("operation", "Only limits and penalties of this operation"),
    ("method", "The method of a request, with `path`"),
    ("path", "The path of a request"),
];
const DRY_RUN: StatusDocs = &[("dry_run", "`true` deletes nothing")];
/// The parameters of every list.
const PAGE: StatusDocs = &[
    ("count", "How many there are on a page: 1 to 1,000, 100 by default"),
    ("cursor", "The cursor of the page before"),
];
