//! Upgraded connections, such as WebSockets: bytes both ways, until one side closes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderValue};
use http::{Request, Response, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::sleep;

use super::carry::carry_both;
use super::held::LeaseGuard;
use super::{GatewayBounds, headers};
use crate::body::Body;
use crate::drain::Drain;
use crate::listen::ClientPlace;

/// For how long the two sides of an upgrade may take to switch.
const SWITCH: Duration = Duration::from_secs(10);

/// An upgrade that a client asks for.
pub(super) struct Upgrade {
    client: OnUpgrade,
    protocol: HeaderValue,
    place: Option<ClientPlace>,
}

impl Upgrade {
    /// The upgrade that a request asks for, if it does. HTTP/2 in clear text is not passed on: it
    /// would carry requests past the policy.
    pub(super) fn asked(request: &mut Request<Incoming>) -> Option<Self> {
        let headers = request.headers();
        let protocol = headers.get(header::UPGRADE)?.clone();
        let mut lines = headers.get_all(header::CONNECTION).iter();
        let is_asked = lines.any(|line| has_token(line, b"upgrade"));
        let is_plain = request.version() == Version::HTTP_11 && request.body().is_end_stream();
        if !is_asked || !is_plain || carries_requests(&protocol) {
            return None;
        }
        let place = request.extensions_mut().remove::<ClientPlace>();
        Some(Self { client: hyper::upgrade::on(request), protocol, place })
    }

    /// Asks the upstream for it.
    pub(super) fn ask(&self, headers: &mut HeaderMap) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, self.protocol.clone());
    }

    /// The upstream agrees: the answer for the client, behind which bytes go both ways.
    pub(super) fn accept(
        self,
        mut response: Response<Incoming>,
        mut held: Option<LeaseGuard>,
        drain: &Drain,
        bounds: &GatewayBounds,
    ) -> Response<Body> {
        if let Some(held) = &mut held {
            // The answer is over with its head; how the tunnel ends is no part of it.
            held.settle();
        }
        let upstream = hyper::upgrade::on(&mut response);
        let protocol = response.headers().get(header::UPGRADE).unwrap_or(&self.protocol).clone();
        let (mut parts, _) = response.into_parts();
        headers::clean_answer(&mut parts.headers);
        parts.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        parts.headers.insert(header::UPGRADE, protocol);
        let (drain, bounds) = (drain.clone(), *bounds);
        tokio::spawn(async move {
            let switched = async { tokio::try_join!(self.client, upstream) };
            if let Ok(Ok((client, upstream))) = tokio::time::timeout(SWITCH, switched).await {
                carry(client, upstream, held, &drain, &bounds).await;
            }
            drop(self.place);
        });
        Response::from_parts(parts, Body::empty())
    }
}

/// Whether a protocol would carry further requests past the policy.
fn carries_requests(protocol: &HeaderValue) -> bool {
    let names = protocol.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let name = |protocol: &[u8]| {
        protocol.split(|byte| *byte == b'/').next().map(<[u8]>::to_ascii_lowercase)
    };
    names.filter_map(name).any(|name| matches!(&*name, b"h2c" | b"h2" | b"http" | b"tls"))
}

fn has_token(line: &HeaderValue, token: &[u8]) -> bool {
    line.as_bytes().split(|b| *b == b',').any(|t| t.trim_ascii().eq_ignore_ascii_case(token))
}

/// Copies both ways until both sides have closed, one fails, nothing is said for too long, or the
/// daemon ends. A side that has not closed soon follows the other, whatever it says: what is held is
/// held until the end.
async fn carry(
    client: Upgraded,
    upstream: Upgraded,
    held: Option<LeaseGuard>,
    drain: &Drain,
    bounds: &GatewayBounds,
) {
    let life = Arc::new(Life::default());
    let mut client = Watched { socket: TokioIo::new(client), life: Arc::clone(&life) };
    let mut upstream = Watched { socket: TokioIo::new(upstream), life: Arc::clone(&life) };
    let half_closed = async {
        life.closed.notified().await;
        sleep(bounds.tunnel_linger).await;
    };
    let draining = async {
        drain.started().await;
        sleep(bounds.tunnel_drain).await;
    };
    tokio::select! {
        // How it ended concerns the two sides alone.
        _ = carry_both(&mut client, &mut upstream) => {}
        () = half_closed => {}
        () = life.silent_for(bounds.tunnel_idle) => {}
        () = draining => {}
    }
    drop(held);
}

/// What both sides of a tunnel have said.
#[derive(Default)]
struct Life {
    pieces: AtomicU64,
    closed: Notify,
}

impl Life {
    /// Waits until nothing has come for as long as this, and at most twice as long.
    async fn silent_for(&self, bound: Duration) {
        loop {
            let before = self.pieces.load(Ordering::Relaxed);
            sleep(bound).await;
            if self.pieces.load(Ordering::Relaxed) == before {
                return;
            }
        }
    }
}

/// A socket that tells when something comes from it, and when nothing more will.
struct Watched {
    socket: TokioIo<Upgraded>,
    life: Arc<Life>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buffer.filled().len();
        let result = Pin::new(&mut self.socket).poll_read(context, buffer);
        match &result {
            Poll::Ready(Ok(())) if buffer.filled().len() > filled => {
                self.life.pieces.fetch_add(1, Ordering::Relaxed);
            }
            Poll::Ready(_) => self.life.closed.notify_one(),
            Poll::Pending => {}
        }
        result
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
