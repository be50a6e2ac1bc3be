//! One client's connection, from its first byte to its end.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};

use super::answer::Answer;
use super::reaper::{ConnectionEnd, Registration};
use super::timeouts::{ActivitySocket, InFlightRequest};
use super::{ConnectionPermit, Peer, Service, unread};
use crate::body::Body;
use crate::drain::Drain;
use crate::respond;

/// The most header lines of a request, where cookies are one line.
const HEADERS_MAX: usize = 100;
/// The longest head of a request, and the most bytes that are read ahead of one connection.
const HEAD_BYTES_MAX: u32 = 64 * 1024;
/// The most concurrent requests on one HTTP/2 connection.
const STREAMS_MAX: u32 = 256;
/// Why a request with an ambiguous head is refused.
const AMBIGUOUS: &str = "the head says more than once where the request ends (Content-Length, \
    Transfer-Encoding), has another coding than chunked, or has lines that end without CR LF";

pub(super) struct Connection<S> {
    pub(super) peer: Peer,
    pub(super) service: Arc<S>,
    pub(super) drain: Drain,
    pub(super) permit: Arc<ConnectionPermit>,
}

impl<S: Service> Connection<S> {
    /// Serves requests until the peer, the reaper or a drain ends the connection.
    pub(super) async fn serve<T>(self, socket: T, mut registration: Registration)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let activity = Arc::clone(registration.activity());
        let socket = TokioIo::new(ActivitySocket::new(socket, Arc::clone(&activity)));
        let this = Arc::new(self);
        let service = service_fn(move |request: Request<Incoming>| {
            let in_flight = activity.begin_request(request.version());
            let this = Arc::clone(&this);
            // On the heap, since hyper keeps room for this future in every connection, idle or not.
            Box::pin(async move { Ok::<_, Infallible>(this.answer(request, in_flight).await) })
        });
        let builder = http_builder();
        let mut connection = pin!(builder.serve_connection_with_upgrades(socket, service));
        loop {
            tokio::select! {
                biased;
                end = registration.next_end() => match end {
                    ConnectionEnd::Drop => return,
                    ConnectionEnd::Finish => connection.as_mut().graceful_shutdown(),
                },
                // How the connection ended concerns the peer alone.
                _ = connection.as_mut() => return,
            }
        }
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        in_flight: InFlightRequest,
    ) -> Response<Answer> {
        let is_http1 = request.version() < Version::HTTP_2;
        let is_head = request.method() == Method::HEAD;
        let is_ambiguous = in_flight.is_ambiguous() || has_two_lengths(request.headers());
        let (mut request, rest) = unread::watch(request, in_flight.activity());
        if is_http1 && request.headers().contains_key(header::UPGRADE) {
            request.extensions_mut().insert(Arc::clone(&self.permit));
        }
        let mut response = if is_ambiguous {
            drop(request);
            respond::problem(StatusCode::BAD_REQUEST, AMBIGUOUS)
        } else if has_too_many_lines(request.headers()) {
            let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            drop(request);
            respond::problem(status, "the head has too many lines")
        } else {
            self.service.call(self.peer, request).await
        };
        let is_read = match rest {
            None => true,
            // Nobody can tell where the body ends, or it was waited for long enough.
            Some(rest) if is_ambiguous || response.status() == StatusCode::REQUEST_TIMEOUT => {
                rest.cut()
            }
            Some(rest) if response.body().is_whole() => rest.discard().await,
            // A slow body must not hold what the answer holds: its place, its connection to the upstream.
            Some(rest) => rest.discard_later(),
        };
        if is_http1 && (is_ambiguous || !is_read || self.drain.is_announced()) {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if is_head && !is_http1 {
            response = without_body(response);
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            in_flight.set_switched();
        }
        response.map(|body| Answer::new(body, in_flight))
    }
}

/// The answer to a HEAD over HTTP/2, where hyper would send the body, which is an error to clients.
fn without_body(response: Response<Body>) -> Response<Body> {
    let length = response.body().size_hint().exact().filter(|length| *length > 0);
    let mut response = response.map(|_| Body::empty());
    if let Some(length) = length {
        response.headers_mut().entry(header::CONTENT_LENGTH).or_insert_with(|| length.into());
    }
    response
}

/// True if a head says its length twice, as HTTP/2 can. Forwarded over HTTP/1.1 it would be ambiguous.
fn has_two_lengths(headers: &HeaderMap) -> bool {
    headers.get_all(header::CONTENT_LENGTH).iter().nth(1).is_some()
}

/// True if a head has more lines than are served. Cookies, which HTTP/2 splits, are one line.
fn has_too_many_lines(headers: &HeaderMap) -> bool {
    let split_cookies = || headers.get_all(header::COOKIE).iter().count().saturating_sub(1);
    headers.len() > HEADERS_MAX && headers.len() - split_cookies() > HEADERS_MAX
}

fn http_builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // The reaper enforces the head's timeout, so HTTP/1.1 needs no timer. A head and a small body are
    // copied into one buffer, which costs less than to give the system two.
    builder.http1().max_headers(HEADERS_MAX).half_close(false).writev(false);
    builder.http1().max_buf_size(usize::try_from(HEAD_BYTES_MAX).unwrap_or(usize::MAX));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(HEAD_BYTES_MAX)
        .max_concurrent_streams(STREAMS_MAX);
    builder
}
