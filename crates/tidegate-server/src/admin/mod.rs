//! The admin listener: status, metrics, the keys of the store, bans and flags.

mod caller;
mod keys;
mod marks;
pub(crate) mod metrics;
mod status;

use std::sync::Arc;

use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;

pub(crate) use caller::Caller;
pub(crate) use status::{Listening, Status};

use crate::app::App;
use crate::body::Body;
use crate::guard::Guard;
use crate::listen::{Peer, Service};
use crate::respond;

/// Serves the admin listener.
#[derive(Clone)]
pub(crate) struct Admin {
    app: Arc<App>,
    status: Arc<Status>,
    guard: Arc<Guard>,
}

impl Admin {
    pub(crate) fn new(app: Arc<App>, status: Arc<Status>, guard: Arc<Guard>) -> Self {
        Self { app, status, guard }
    }
}

impl Service for Admin {
    async fn call(&self, peer: Peer, request: Request<Incoming>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let holder = match self.guard.admit(&parts) {
            Ok(holder) => holder,
            Err(refused) => return refused.into_response(),
        };
        let path = parts.uri.path();
        match marks::at(path) {
            Some(kind) => {
                let caller = Caller { holder, peer: peer.address.ip() };
                marks::answer(&self.app, kind, caller, &parts, body).await
            }
            None if path == keys::PATH => keys::answer(&self.app, &parts).await,
            None => self.answer(&parts),
        }
    }
}

impl Admin {
    fn answer(&self, parts: &Parts) -> Response<Body> {
        let path = parts.uri.path();
        let known = matches!(path, "/admin/v1/status" | "/metrics");
        match (&parts.method, path) {
            (&Method::GET | &Method::HEAD, "/admin/v1/status") => {
                respond::json(self.status.render(&self.app))
            }
            (&Method::GET | &Method::HEAD, "/metrics") => {
                let present = self.status.present(&self.app);
                metrics::respond(&self.app.metrics, &present)
            }
            _ if known => respond::wrong_method("GET, HEAD"),
            _ => {
                let detail = "there is nothing here; try /admin/v1/status, /admin/v1/keys, \
                              /admin/v1/bans, /admin/v1/flags or /metrics";
                respond::problem(StatusCode::NOT_FOUND, detail)
            }
        }
    }
}
