//! The demo: a policy and an upstream, so that a newcomer sees Tidegate work at once.

use http::{Method, Request, Response, StatusCode};

use crate::body::Body;
use crate::listen::{Peer, RequestBody, Service};
use crate::respond;

/// The demo's policy.
pub(crate) const POLICY: &str = include_str!("policy.yaml");
/// Its name in diagnostics and in the status.
pub(crate) const POLICY_NAME: &str = "demo policy";

/// A small service without limits of its own.
#[derive(Clone)]
pub(crate) struct DemoService;

impl Service for DemoService {
    async fn call(&self, _peer: Peer, request: Request<RequestBody>) -> Response<Body> {
        let said = match (request.method(), request.uri().path()) {
            (_, "/health") => "ok\n",
            (&Method::POST, "/login") => "hello, whoever you are\n",
            (_, "/strict") => "a page that you may see once in ten seconds\n",
            _ => "an answer of the service behind Tidegate\n",
        };
        respond::with_type(StatusCode::OK, "text/plain; charset=utf-8", said)
    }
}

/// Three things to try.
pub(crate) fn invitation(gateway: &str) -> String {
    format!(
        "
The demo is running: a gateway in front of a small service. Try it in another terminal.

  A page with the tightest limit, twice:
    curl -i {gateway}/strict {gateway}/strict
  Six attempts to log in, of which five pass:
    for n in 1 2 3 4 5 6; do curl -s -o /dev/null -w '%{{http_code}}\\n' -X POST {gateway}/login; done
  The same address as a premium user, with more to spend:
    curl -i -H 'X-User-Id: ada' -H 'X-User-Tier: premium' {gateway}/

Then write a policy of your own and start `tidegate serve policy.yaml --upstream http://127.0.0.1:3000`.
"
    )
}
