//! Tunnels: upgraded connections such as WebSockets, whose bytes are relayed both ways.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Request, Response, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf, split};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::pool::PooledConnection;
use super::reservation::ReservationGuard;
use super::{GatewayBounds, headers};
use crate::body::Body;
use crate::drain::Drain;
use crate::listen::{ConnectionPermit, RequestBody};

/// How long the two sides may take to switch protocols.
const SWITCH_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes that are read at once.
const PIECE_BYTES: usize = 8 * 1024;

/// An upgrade that a client asks for.
pub(super) struct Upgrade {
    client: OnUpgrade,
    protocol: HeaderValue,
    permit: Option<Arc<ConnectionPermit>>,
}

impl Upgrade {
    /// Takes the upgrade out of a request, if it asks for one. HTTP/2 in clear text is not forwarded: it
    /// would carry requests past the policy.
    pub(super) fn take(request: &mut Request<RequestBody>) -> Option<Self> {
        let headers = request.headers();
        let protocol = headers.get(header::UPGRADE)?.clone();
        let mut lines = headers.get_all(header::CONNECTION).iter();
        let is_asked = lines.any(|line| has_token(line, b"upgrade"));
        let is_plain = request.version() == Version::HTTP_11 && request.body().is_end_stream();
        if !is_asked || !is_plain || carries_requests(&protocol) {
            return None;
        }
        let permit = request.extensions_mut().remove::<Arc<ConnectionPermit>>();
        Some(Self { client: hyper::upgrade::on(request), protocol, permit })
    }

    /// Asks the upstream for the upgrade.
    pub(super) fn set_headers(&self, headers: &mut HeaderMap) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, self.protocol.clone());
    }

    /// Opens the tunnel that the upstream agrees to, and returns the answer for the client.
    pub(super) fn accept(
        self,
        mut response: Response<Incoming>,
        connection: PooledConnection,
        mut reservation: Option<ReservationGuard>,
        drain: Drain,
        bounds: GatewayBounds,
    ) -> Response<Body> {
        if let Some(reservation) = &mut reservation {
            // The answer ends with its head; how the tunnel ends is no part of it.
            reservation.settle();
        }
        let upstream = hyper::upgrade::on(&mut response);
        let protocol = response.headers().get(header::UPGRADE).unwrap_or(&self.protocol).clone();
        let (mut parts, _) = response.into_parts();
        headers::clean_answer(&mut parts.headers);
        parts.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        parts.headers.insert(header::UPGRADE, protocol);
        tokio::spawn(async move {
            let switched = async { tokio::try_join!(self.client, upstream) };
            if let Ok(Ok((client, upstream))) = timeout(SWITCH_TIMEOUT, switched).await {
                relay(TokioIo::new(client), TokioIo::new(upstream), &drain, &bounds).await;
            }
            // The tunnel holds its place and both permits until both sockets are closed.
            drop((reservation, connection, self.permit));
        });
        Response::from_parts(parts, Body::empty())
    }
}

/// True if a protocol would carry further requests past the policy.
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

/// Relays bytes both ways until both sides have closed, one fails, both are silent for too long, or the
/// daemon ends. Once one side has closed, the other must close soon, whatever it still sends.
async fn relay<A, B>(client: A, upstream: B, drain: &Drain, bounds: &GatewayBounds)
where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    let activity = TunnelActivity::default();
    let half_closed = async {
        activity.closed.notified().await;
        sleep(bounds.tunnel_linger).await;
    };
    let draining = async {
        drain.started().await;
        sleep(bounds.tunnel_drain).await;
    };
    tokio::select! {
        // How the tunnel ended concerns the two sides alone.
        _ = copy_both(client, upstream, &activity) => {}
        () = half_closed => {}
        () = activity.idle_for(bounds.tunnel_idle) => {}
        () = draining => {}
    }
}

/// What has come from both sides of a tunnel.
#[derive(Default)]
struct TunnelActivity {
    pieces: AtomicU64,
    closed: Notify,
}

impl TunnelActivity {
    /// Waits until nothing has come for the idle timeout, and at most twice as long.
    async fn idle_for(&self, idle_timeout: Duration) {
        loop {
            let before = self.pieces.load(Ordering::Relaxed);
            sleep(idle_timeout).await;
            if self.pieces.load(Ordering::Relaxed) == before {
                return;
            }
        }
    }
}

/// Copies bytes both ways until both sides have closed, or one fails.
async fn copy_both<A, B>(one: A, other: B, activity: &TunnelActivity) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    let ((one_read, one_write), (other_read, other_write)) = (split(one), split(other));
    let there = copy(one_read, other_write, activity);
    let back = copy(other_read, one_write, activity);
    tokio::try_join!(there, back).map(drop)
}

async fn copy<R, W>(mut from: R, mut to: W, activity: &TunnelActivity) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    loop {
        let piece = read_piece(&mut from).await?;
        if piece.is_empty() {
            activity.closed.notify_one();
            return to.shutdown().await;
        }
        activity.pieces.fetch_add(1, Ordering::Relaxed);
        to.write_all(&piece).await?;
        to.flush().await?;
    }
}

/// Reads onto the stack and copies what came to the heap, so that an idle tunnel holds no buffer.
async fn read_piece<R: AsyncRead + Unpin>(from: &mut R) -> io::Result<Bytes> {
    poll_fn(|context| {
        let mut stack = [MaybeUninit::uninit(); PIECE_BYTES];
        let mut buffer = ReadBuf::uninit(&mut stack);
        ready!(Pin::new(&mut *from).poll_read(context, &mut buffer))?;
        Poll::Ready(Ok(Bytes::copy_from_slice(buffer.filled())))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};
    use tokio::task::JoinHandle;

    /// More than any buffer on the way holds.
    const MANY: usize = 300_000;

    fn pattern(seed: u8) -> Vec<u8> {
        (0u8..251).cycle().map(|byte| byte ^ seed).take(MANY).collect()
    }

    fn spawn_copy(one: DuplexStream, other: DuplexStream) -> JoinHandle<io::Result<()>> {
        tokio::spawn(async move { copy_both(one, other, &TunnelActivity::default()).await })
    }

    #[tokio::test]
    async fn all_bytes_arrive_in_order_both_ways_however_slowly_they_are_taken() {
        // One side takes less than a piece at once, the other a little more.
        let ((client, one), (other, server)) = (duplex(1_000), duplex(9_000));
        let copied = spawn_copy(one, other);
        let talk = |side: DuplexStream, says: Vec<u8>| async move {
            let (mut hears, mut mouth) = tokio::io::split(side);
            let saying = async {
                mouth.write_all(&says).await.unwrap();
                mouth.shutdown().await.unwrap();
            };
            let mut heard = Vec::new();
            let (_, read) = tokio::join!(saying, hears.read_to_end(&mut heard));
            read.unwrap();
            heard
        };
        let (back, there) = tokio::join!(talk(client, pattern(0)), talk(server, pattern(255)));
        assert!(there == pattern(0) && back == pattern(255));
        copied.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_side_that_has_closed_still_hears_the_other() {
        let ((mut client, one), (other, mut server)) = (duplex(64), duplex(64));
        let copied = spawn_copy(one, other);
        client.shutdown().await.unwrap();
        assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0);
        server.write_all(b"later").await.unwrap();
        let mut heard = [0; 5];
        client.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"later");
        drop(server);
        copied.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_side_that_fails_ends_it() {
        let ((mut client, one), (other, server)) = (duplex(64), duplex(64));
        let copied = spawn_copy(one, other);
        drop(server);
        client.write_all(b"hello").await.unwrap();
        assert!(copied.await.unwrap().is_err());
    }
}
