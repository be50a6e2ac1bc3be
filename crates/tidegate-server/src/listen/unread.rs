//! Requests that are answered before their bodies are read.
//!
//! An answer can be lost while its client still sends: curl 7.88 forgets an answer whose HTTP/2 stream is
//! reset, and a system resets a connection that is closed with bytes unread. So the rest of a body is read
//! first and thrown away, up to a bound. Of what lies beyond the bound, HTTP/2 is told by a reset without
//! an error; an HTTP/1.1 connection lingers: it says that it ends, and reads on for a while.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep, timeout};

use super::timeouts::ConnectionActivity;

/// The most bytes that are thrown away: of a body, and of a connection that lingers.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// The most time that an answer waits for its body, and that a connection lingers.
const TIME_MAX: Duration = Duration::from_secs(2);
/// The most bytes that a lingering connection reads at once.
const PIECE_BYTES: usize = 8 * 1024;

/// The body of a request. Where it is dropped before its end, the rest is thrown away.
pub(crate) struct RequestBody {
    body: Option<Incoming>,
    /// `None` once the body is at its end.
    rest: Option<Arc<Rest>>,
}

/// What a service leaves of a body.
pub(super) struct Rest {
    activity: Arc<ConnectionActivity>,
    state: Mutex<RestState>,
}

enum RestState {
    /// The client sends its body only when it is told to go on, which reading would do.
    Unasked,
    Reading,
    Dropped(Incoming),
    /// The client waits for nothing any more.
    Answered,
}

/// A request whose body can be thrown away once its answer is known.
pub(super) fn watch(
    request: Request<Incoming>,
    activity: &Arc<ConnectionActivity>,
) -> (Request<RequestBody>, Option<Arc<Rest>>) {
    if request.body().is_end_stream() {
        return (request.map(|body| RequestBody { body: Some(body), rest: None }), None);
    }
    let is_unasked = request.headers().contains_key(header::EXPECT);
    let state = if is_unasked { RestState::Unasked } else { RestState::Reading };
    let rest = Arc::new(Rest { activity: Arc::clone(activity), state: Mutex::new(state) });
    let known = Arc::clone(&rest);
    (request.map(|body| RequestBody { body: Some(body), rest: Some(rest) }), Some(known))
}

impl Rest {
    /// Throws away what the service has dropped, before the answer goes out. False if there is more of it
    /// than may be thrown away.
    pub(super) async fn discard(self: Arc<Self>) -> bool {
        let state = std::mem::replace(&mut *self.lock(), RestState::Answered);
        match state {
            RestState::Dropped(body) => self.discard_body(body).await,
            RestState::Unasked => self.cut(),
            RestState::Reading | RestState::Answered => true,
        }
    }

    /// Throws away what the service has dropped or will drop, while the answer goes out.
    pub(super) fn discard_later(self: Arc<Self>) -> bool {
        let state = std::mem::replace(&mut *self.lock(), RestState::Answered);
        match state {
            RestState::Dropped(body) => self.spawn_discard(body),
            RestState::Unasked => return self.cut(),
            RestState::Reading | RestState::Answered => {}
        }
        true
    }

    fn spawn_discard(self: Arc<Self>, body: Incoming) {
        // Without a runtime nobody is left to read for.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { self.discard_body(body).await });
        }
    }

    async fn discard_body(&self, body: Incoming) -> bool {
        // A body that announces too many bytes need not be waited for.
        let is_short = usize::try_from(body.size_hint().lower()).is_ok_and(|n| n <= BYTES_MAX);
        if is_short && timeout(TIME_MAX, read_to_end(body)).await.unwrap_or(false) {
            return true;
        }
        self.cut()
    }

    /// Leaves the rest unread: false.
    pub(super) fn cut(&self) -> bool {
        self.activity.lock().set_lingering();
        false
    }

    fn lock(&self) -> MutexGuard<'_, RestState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a body to its end; false if it is too long.
async fn read_to_end(mut body: Incoming) -> bool {
    let mut room = BYTES_MAX;
    // A body that breaks off is at its end too.
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        match room.checked_sub(length) {
            Some(left) => room = left,
            None => return false,
        }
    }
    true
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(rest) = &self.rest {
            let mut state = rest.lock();
            if matches!(*state, RestState::Unasked) {
                *state = RestState::Reading;
            }
        }
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            self.rest = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let (Some(body), Some(rest)) = (self.body.take(), self.rest.take()) else { return };
        if body.is_end_stream() {
            return;
        }
        let mut state = rest.lock();
        match &*state {
            RestState::Reading => *state = RestState::Dropped(body),
            RestState::Unasked | RestState::Dropped(_) => {}
            // The upstream has answered before it had the whole body, and takes no more of it.
            RestState::Answered => {
                drop(state);
                rest.spawn_discard(body);
            }
        }
    }
}

/// How long a connection that ends with bytes unread reads on.
pub(super) struct Linger {
    timer: Pin<Box<Sleep>>,
    room: usize,
}

impl Linger {
    pub(super) fn new() -> Self {
        Self { timer: Box::pin(sleep(TIME_MAX)), room: BYTES_MAX }
    }

    /// Reads until the peer has closed, or a bound is reached.
    pub(super) fn poll<T>(&mut self, socket: &mut T, context: &mut Context<'_>) -> Poll<()>
    where
        T: AsyncRead + Unpin,
    {
        let mut piece = [0; PIECE_BYTES];
        while self.timer.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut piece);
            let read: io::Result<()> =
                ready!(Pin::new(&mut *socket).poll_read(context, &mut buffer));
            let length = buffer.filled().len();
            if read.is_err() || length == 0 || length > self.room {
                break;
            }
            self.room -= length;
        }
        Poll::Ready(())
    }
}
