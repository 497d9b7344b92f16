//! A connection: the state that its stream and its requests share, and how hyper serves it.
//!
//! A connection ends in five cases: its client closes it; the server stops (after it has answered the requests that it has); the head of a
//! request takes longer than [`HEAD_TIMEOUT`]; its client reads too slowly (`ClientStream`); it has to make room for others
//! ([`Newcomers`]).

mod stream;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::http::{Request, Response};
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::HttpService;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::Watcher;
use oncegate::WorkspaceName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::auth::Peer;
use crate::problem::{Kind, Problem};
use crate::tenants::{Limit, Taken, Tenant, Tenants, Unread};
use stream::{ClientStream, Closes};

/// How long a client may take to send the head of a request.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum bytes of headers, and of a connection's buffer.
const BUFFER_BYTES: usize = 64 * 1024;

/// The state that a connection's stream and its requests share.
#[derive(Default)]
pub struct Connection {
    pub client: Client,
    pub peer: Peer,
    counted: Mutex<Membership>,
    /// The task that serves the connection. It is aborted when the connection has to make room for others.
    task: OnceLock<AbortHandle>,
}

/// Whether a connection counts as one of a workspace.
#[derive(Default)]
enum Membership {
    /// No request's workspace is known yet.
    #[default]
    No,
    /// As one of the workspace of the last request.
    As(WorkspaceName, Taken),
    /// It makes room for others, and takes no more requests.
    MadeRoom,
}

impl Connection {
    pub fn new(peer: Peer) -> Connection {
        Connection { peer, ..Connection::default() }
    }

    /// The request's workspace, for its limits. From now on the connection counts as one of that workspace.
    pub fn tenant(&self, tenants: &Tenants, workspace: &WorkspaceName) -> Result<Arc<Tenant>, Problem> {
        let mut counted = self.counted();
        match &*counted {
            Membership::As(name, taken) if name == workspace => return Ok(taken.tenant().clone()),
            Membership::MadeRoom => return Err(Kind::ServerBusy.because("the connection makes room for others")),
            Membership::As(..) | Membership::No => {}
        }
        let tenant = tenants.of(workspace);
        *counted = Membership::As(workspace.clone(), tenant.take(Limit::Connections, 1)?);
        Ok(tenant)
    }
}

impl Connection {
    /// Whether the connection counts as one of a workspace.
    pub fn is_counted(&self) -> bool {
        matches!(&*self.counted(), Membership::As(..))
    }

    /// Ends the connection, unless it counts as one of a workspace.
    fn make_room(&self) -> bool {
        let mut counted = self.counted();
        if let Membership::As(..) = *counted {
            return false;
        }
        // A request whose workspace becomes known just now is refused: it has done nothing.
        *counted = Membership::MadeRoom;
        tracing::debug!(event = "http.connection_made_room");
        _ = self.task.get().map(AbortHandle::abort);
        true
    }

    fn counted(&self) -> MutexGuard<'_, Membership> {
        self.counted.lock().expect("no holder of this lock panics")
    }

    pub fn is_served_by(&self, task: AbortHandle) {
        _ = self.task.set(task);
    }
}

/// The connections that were accepted last. A connection makes room when newer ones push it out and its workspace is still unknown: silent
/// connections cannot keep others out.
pub struct Newcomers {
    max: usize,
    /// The minimum time of each connection, however many arrive.
    patience: Duration,
    last: Mutex<VecDeque<(Instant, Weak<Connection>)>>,
}

impl Newcomers {
    pub fn new(max: usize, patience: Duration) -> Newcomers {
        Newcomers { max, patience, last: Mutex::default() }
    }

    pub fn admit(&self, connection: &Arc<Connection>) {
        let mut last = self.last();
        last.push_back((Instant::now(), Arc::downgrade(connection)));
        while last.len() > self.max
            && let Some(oldest) = self.pop_oldest(&mut last)
        {
            pushed_out(&oldest);
        }
    }

    /// There is no free connection left: the oldest newcomer makes room.
    pub fn make_room(&self) {
        let mut last = self.last();
        while let Some(oldest) = self.pop_oldest(&mut last) {
            if pushed_out(&oldest) {
                return;
            }
        }
    }

    fn pop_oldest(&self, last: &mut VecDeque<(Instant, Weak<Connection>)>) -> Option<Weak<Connection>> {
        last.pop_front_if(|(accepted, _)| accepted.elapsed() >= self.patience).map(|(_, oldest)| oldest)
    }

    fn last(&self) -> MutexGuard<'_, VecDeque<(Instant, Weak<Connection>)>> {
        self.last.lock().expect("no holder of this lock panics")
    }
}

/// Whether the connection makes room.
fn pushed_out(connection: &Weak<Connection>) -> bool {
    connection.upgrade().is_some_and(|connection| connection.make_room())
}

/// Serves a connection until it ends.
pub async fn serve<S, V, B>(stream: S, connection: Arc<Connection>, stop: Watcher, service: V) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Closes + Unpin + 'static,
    V: HttpService<Incoming, ResBody = B, Error = Infallible> + 'static,
    B: Body<Data = Bytes, Error: Into<axum::BoxError>> + 'static,
{
    let stream = TokioIo::new(ClientStream::new(stream, connection));
    let served = http1::Builder::new()
        // `ClientStream` notices clients that close their side.
        .half_close(true)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(stream, service);
    stop.watch(served).await
}

/// Whether a client has closed its side of the connection. The client may still read: the requests it sent are handled and answered.
/// Nothing
/// waits for the client any longer, and an endless stream ends.
#[derive(Default)]
pub struct Client {
    has_left: AtomicBool,
    /// Notified for all waiters: a batch has many claims.
    leaves: Notify,
}

impl Client {
    pub fn leaves(&self) {
        self.has_left.store(true, Ordering::SeqCst);
        self.leaves.notify_waiters();
    }

    pub fn has_left(&self) -> bool {
        self.has_left.load(Ordering::SeqCst)
    }

    /// Returns once the client has closed its side.
    pub async fn left(&self) {
        let mut told = pin!(self.leaves.notified());
        // Registers before the check, because it could otherwise miss a notification in between.
        told.as_mut().enable();
        if !self.has_left() {
            told.await;
        }
    }
}

/// The body of a request. After a refusal, the unread rest is read and discarded for a moment, while the answer is sent. A client that
/// writes
/// its whole request before it reads would otherwise find its connection reset, and get no answer.
pub struct Asked(
    /// None once the body is handed over to be drained.
    Option<Incoming>,
);

/// How many bytes of a body are drained, and for how long.
const DRAIN_BYTES_MAX: usize = 64 * 1024 * 1024;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

impl Asked {
    pub fn of(request: Request<Incoming>) -> Request<Asked> {
        request.map(|body| Asked(Some(body)))
    }
}

impl Body for Asked {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.0 {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let Some(mut body) = self.0.take().filter(|body| !body.is_end_stream()) else { return };
        let drains = async move {
            let mut left = DRAIN_BYTES_MAX;
            while let Some(Ok(frame)) = http_body_util::BodyExt::frame(&mut body).await {
                match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                    Some(less) => left = less,
                    None => return,
                }
            }
        };
        tokio::spawn(async { tokio::time::timeout(DRAIN_TIMEOUT, drains).await });
    }
}

/// The body of an answer. An idle stream ends once its client has left.
pub struct Answer<B> {
    body: B,
    connection: Arc<Connection>,
    /// The answer's share of its workspace's bytes. It is released with the bytes themselves, which hyper keeps until they are written.
    unread: Option<Arc<Unread>>,
}

impl<B> Answer<B> {
    pub fn of(response: Response<B>, connection: Arc<Connection>, unread: Option<Arc<Unread>>) -> Response<Answer<B>> {
        response.map(|body| Answer { body, connection, unread })
    }
}

/// Bytes that count as answers that a workspace's clients have not read.
struct Counted {
    bytes: Bytes,
    _unread: Arc<Unread>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Answer<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Pending if self.connection.client.has_left() => Poll::Ready(None),
            Poll::Ready(Some(Ok(frame))) => Poll::Ready(Some(Ok(match &self.unread {
                Some(unread) => frame.map_data(|bytes| Bytes::from_owner(Counted { bytes, _unread: unread.clone() })),
                None => frame,
            }))),
            frame => frame,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use http_body_util::Full;
    use hyper::service::service_fn;
    use hyper_util::server::graceful::GracefulShutdown;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::task::JoinHandle;
    use tokio::time::{Instant, sleep};

    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    /// Longer than the time-out of a request's head.
    const ANSWER_AFTER: Duration = Duration::from_secs(25);

    type Ended = JoinHandle<hyper::Result<()>>;

    /// A connection whose requests take a while to answer.
    fn connect(stop: &GracefulShutdown) -> (DuplexStream, Ended) {
        serve_with(stop, || async {
            sleep(ANSWER_AFTER).await;
            Full::<Bytes>::from("done")
        })
    }

    /// A connection whose requests are answered by `answer`.
    fn serve_with<F, B>(
        stop: &GracefulShutdown,
        answer: impl Fn() -> F + Clone + Send + 'static,
    ) -> (DuplexStream, Ended)
    where
        F: Future<Output = B> + Send,
        B: Body<Data = Bytes, Error = Infallible> + Unpin + Send + 'static,
    {
        let (client, server) = tokio::io::duplex(1024);
        let connection = Arc::new(Connection::default());
        let of_answers = connection.clone();
        let service = service_fn(move |_: Request<Incoming>| {
            let (connection, answer) = (of_answers.clone(), answer.clone());
            async move { Ok::<_, Infallible>(Answer::of(Response::new(answer().await), connection, None)) }
        });
        (client, tokio::spawn(serve(server, connection, stop.watcher(), service)))
    }

    async fn answered(client: &mut DuplexStream) -> bool {
        let mut answer = [0; 1024];
        let length = client.read(&mut answer).await.unwrap();
        answer[..length].starts_with(b"HTTP/1.1 200") && answer[..length].ends_with(b"done")
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_may_take_its_time_and_no_longer_whatever_came_before() {
        let stop = GracefulShutdown::new();
        let (mut client, ended) = connect(&stop);
        for pause in [HEAD_TIMEOUT - Duration::from_secs(1), Duration::ZERO, HEAD_TIMEOUT / 2] {
            client.write_all(&REQUEST[..10]).await.unwrap();
            sleep(pause).await;
            client.write_all(&REQUEST[10..]).await.unwrap();
            assert!(answered(&mut client).await, "after {pause:?}");
        }
        client.write_all(&REQUEST[..10]).await.unwrap();
        let waits = Instant::now();
        let error = ended.await.unwrap().unwrap_err();
        assert!(error.is_timeout(), "{error}");
        let waited = waits.elapsed();
        assert!((HEAD_TIMEOUT..HEAD_TIMEOUT + Duration::from_secs(1)).contains(&waited), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_may_take_longer_than_a_head_to_make_or_to_read() {
        const PIECES: u64 = 25;
        let read_to_the_end = async |mut client: DuplexStream, pause: Duration| {
            client.write_all(REQUEST).await.unwrap();
            let (mut answer, mut piece) = (vec![], [0; 512]);
            while !answer.ends_with(b"end") && !answer.ends_with(b"end\r\n0\r\n\r\n") {
                sleep(pause).await;
                let length = client.read(&mut piece).await.unwrap();
                assert!(length > 0, "cut after {} bytes", answer.len());
                answer.extend_from_slice(&piece[..length]);
            }
            client
        };
        let stop = GracefulShutdown::new();
        // The whole answer is available at once, and read slowly: a piece a second.
        let (client, ended) =
            serve_with(&stop, || async { Full::from([vec![b'x'; 512 * PIECES as usize], b"end".to_vec()].concat()) });
        drop(read_to_the_end(client, Duration::from_secs(1)).await);
        ended.await.unwrap().unwrap();
        // The answer is made slowly, and read at once.
        let slowly = || async {
            let pieces = futures::stream::unfold(0, |sent| async move {
                sleep(Duration::from_secs(1)).await;
                let piece = if sent < PIECES { "piece" } else { "end" };
                (sent <= PIECES).then(|| (Ok(Frame::data(Bytes::from(piece))), sent + 1))
            });
            http_body_util::StreamBody::new(Box::pin(pieces))
        };
        let (client, ended) = serve_with(&stop, slowly);
        let _client = read_to_the_end(client, Duration::ZERO).await;
        let waits = Instant::now();
        assert!(ended.await.unwrap().unwrap_err().is_timeout(), "the next one has its time from then on");
        assert!((HEAD_TIMEOUT..HEAD_TIMEOUT + Duration::from_secs(1)).contains(&waits.elapsed()));
    }

    #[tokio::test(start_paused = true)]
    async fn told_to_stop_it_ends_at_once_or_with_the_answer_that_it_owes() {
        let stop = GracefulShutdown::new();
        let (mut idle, idle_ended) = connect(&stop);
        idle.write_all(REQUEST).await.unwrap();
        assert!(answered(&mut idle).await);
        let (mut busy, busy_ended) = connect(&stop);
        let (_silent, silent_ended) = connect(&stop);
        busy.write_all(REQUEST).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        let told = Instant::now();
        let stopped = tokio::spawn(stop.shutdown());
        idle_ended.await.unwrap().unwrap();
        silent_ended.await.unwrap().unwrap();
        assert!(told.elapsed() < Duration::from_secs(1));
        assert!(answered(&mut busy).await);
        busy_ended.await.unwrap().unwrap();
        stopped.await.unwrap();
    }
}
