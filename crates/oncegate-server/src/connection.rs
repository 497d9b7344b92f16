//! A connection: it ends with its client, when it is told to stop, or when the head of a request takes too long to arrive.
//!
//! Each is polled for every request, beside all the others. So for a request it takes no lock and sets no timer: from its begin to its end what
//! they share is only read, and each has one alarm, which rings now and then and is set anew while it is not time yet.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use hyper_util::server::graceful::GracefulConnection;
use tokio::sync::Notify;
use tokio::task::coop::unconstrained;
use tokio::time::Instant;

/// How long a client may take to send the head of a request.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a connection was cut.
#[derive(Debug, thiserror::Error)]
pub enum Cut<E> {
    #[error("the head of a request took too long")]
    Late,
    #[error(transparent)]
    Broken(E),
}

/// Runs a connection until it ends. `head` hears from its service of requests and answers, and from its stream when these are written.
pub async fn run<C: GracefulConnection>(connection: C, head: Arc<Head>, stop: Arc<Stop>) -> Result<(), Cut<C::Error>> {
    let mut connection = pin!(connection);
    let mut alarm = pin!(tokio::time::sleep(HEAD_TIMEOUT));
    let (mut seat, mut is_told) = (None, false);
    poll_fn(|context| {
        // A task's waker is the same as long as it lives: both need it once.
        if seat.is_none() {
            seat = Some(stop.seat(context.waker()));
            ring_later(alarm.as_mut(), context);
        }
        if !is_told && stop.is_told() {
            connection.as_mut().graceful_shutdown();
            is_told = true;
        }
        let ended = connection.as_mut().poll(context);
        if ended.is_pending() && alarm.is_elapsed() {
            let now = Instant::now();
            let until = head.awaited_until().unwrap_or(now + HEAD_TIMEOUT);
            if until <= now {
                return Poll::Ready(Err(Cut::Late));
            }
            alarm.as_mut().reset(until);
            ring_later(alarm.as_mut(), context);
        }
        ended.map_err(Cut::Broken)
    })
    .await
}

/// It is not polled again before it rings, so it must learn whom to wake: also from a task that has done a lot already, and whose timers would be put off.
fn ring_later(alarm: Pin<&mut tokio::time::Sleep>, context: &mut Context<'_>) {
    // If this thread was held up so long that it has rung already, nobody was told.
    if pin!(unconstrained(alarm)).poll(context).is_ready() {
        context.waker().wake_by_ref();
    }
}

/// What a connection's stream, its requests and its alarm share: since when it waits for the head of a request, if it does (from its
/// begin, and whenever an answer has been written), and whether its client has closed its side.
pub struct Head {
    pub client: Client,
    opened: Instant,
    /// The number of the last request that has come.
    arrived: AtomicU64,
    /// Of the last of which the answer is all there.
    answered: AtomicU64,
    /// Of the last of which it has been written, and how long after the begin that was.
    written: AtomicU64,
    written_after_us: AtomicU64,
}

impl Default for Head {
    /// Of a connection that has just been opened.
    fn default() -> Self {
        let [arrived, answered, written, written_after_us] = Default::default();
        Head { client: Client::default(), opened: Instant::now(), arrived, answered, written, written_after_us }
    }
}

impl Head {
    /// A request has come, and has this number.
    pub fn arrives(&self) -> u64 {
        self.arrived.fetch_add(1, Relaxed) + 1
    }

    /// Nothing waits to be written.
    pub fn flushed(&self) {
        let answered = self.answered.load(Relaxed);
        if answered == self.arrived.load(Relaxed) && answered != self.written.load(Relaxed) {
            let after = u64::try_from(self.opened.elapsed().as_micros()).expect("no connection is that old");
            self.written_after_us.store(after, Relaxed);
            self.written.store(answered, Relaxed);
        }
    }

    fn awaited_until(&self) -> Option<Instant> {
        let is_awaited = self.written.load(Relaxed) == self.arrived.load(Relaxed);
        let after = Duration::from_micros(self.written_after_us.load(Relaxed));
        is_awaited.then(|| self.opened + after + HEAD_TIMEOUT)
    }
}

/// Whether a client has closed its side of the connection. It may still read: what it has asked for is done and answered. It is no
/// longer waited for, and a stream without an end is ended.
#[derive(Default)]
pub struct Client {
    has_left: AtomicBool,
    /// Told to all that wait: the claims of a batch are many.
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

    /// Returns when the client has closed its side.
    pub async fn left(&self) {
        let mut told = pin!(self.leaves.notified());
        // Before it looks: otherwise it may not be told of what happens in between.
        told.as_mut().enable();
        if !self.has_left() {
            told.await;
        }
    }
}

/// The body of an answer. When hyper lets go of it, it has all of it. A stream that has nothing to say ends once its client has left.
pub struct Last<B> {
    body: B,
    request: u64,
    head: Arc<Head>,
}

impl<B> Last<B> {
    pub fn new(body: B, request: u64, head: Arc<Head>) -> Self {
        Last { body, request, head }
    }
}

impl<B: Body + Unpin> Body for Last<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Pending if self.head.client.has_left() => Poll::Ready(None),
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

impl<B> Drop for Last<B> {
    fn drop(&mut self) {
        // The next request may have come already: then this says nothing.
        self.head.answered.fetch_max(self.request, Relaxed);
    }
}

/// Tells all connections to end: each answers what it has been asked already.
#[derive(Default)]
pub struct Stop {
    is_told: AtomicBool,
    seats: Mutex<Seats>,
}

#[derive(Default)]
struct Seats {
    taken: u64,
    wakers: HashMap<u64, Waker>,
}

impl Stop {
    pub fn tell(&self) {
        // First: who takes a seat from now on looks after that, and sees it.
        self.is_told.store(true, Ordering::SeqCst);
        let wakers: Vec<Waker> = self.seats().wakers.values().cloned().collect();
        wakers.iter().for_each(Waker::wake_by_ref);
    }

    fn is_told(&self) -> bool {
        self.is_told.load(Ordering::SeqCst)
    }

    fn seat(self: &Arc<Self>, waker: &Waker) -> Seat {
        let mut seats = self.seats();
        seats.taken += 1;
        let number = seats.taken;
        seats.wakers.insert(number, waker.clone());
        Seat { number, stop: self.clone() }
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().expect("no holder of this lock panics")
    }
}

/// Where a connection is found when it is to be told.
struct Seat {
    number: u64,
    stop: Arc<Stop>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.stop.seats().wakers.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::http::{Request, Response};
    use bytes::Bytes;
    use http_body_util::Full;
    use hyper::body::Incoming;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::task::JoinHandle;
    use tokio::time::sleep;

    use super::*;
    use crate::patience::Patient;

    const ALARM: Duration = Duration::from_millis(10);
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    /// Longer than a head may take to arrive.
    const ANSWER_AFTER: Duration = Duration::from_secs(25);

    type Ended = JoinHandle<Result<(), Cut<hyper::Error>>>;

    fn connect(stop: &Arc<Stop>) -> (DuplexStream, Ended) {
        connect_to(ANSWER_AFTER, stop)
    }

    /// A connection whose requests take a while to answer, and all that a task may do at once in the end.
    fn connect_to(answer_after: Duration, stop: &Arc<Stop>) -> (DuplexStream, Ended) {
        serve(stop, move || async move {
            sleep(answer_after).await;
            while tokio::task::coop::has_budget_remaining() {
                tokio::task::coop::consume_budget().await;
            }
            Full::<Bytes>::from("done")
        })
    }

    /// A connection whose requests are answered like this.
    fn serve<F, B>(stop: &Arc<Stop>, answer: impl Fn() -> F + Clone + Send + 'static) -> (DuplexStream, Ended)
    where
        F: Future<Output = B> + Send,
        B: Body<Data = Bytes, Error = Infallible> + Unpin + Send + 'static,
    {
        let (client, server) = tokio::io::duplex(1024);
        let head = Arc::new(Head::default());
        let of_answers = head.clone();
        let service = service_fn(move |_: Request<Incoming>| {
            let (request, head, answer) = (of_answers.arrives(), of_answers.clone(), answer.clone());
            async move { Ok::<_, Infallible>(Response::new(Last::new(answer().await, request, head))) }
        });
        let stream = TokioIo::new(Patient::new(server, head.clone()));
        let connection = http1::Builder::new().half_close(true).serve_connection(stream, service);
        (client, tokio::spawn(run(connection, head, stop.clone())))
    }

    async fn answered(client: &mut DuplexStream) -> bool {
        let mut answer = [0; 1024];
        let length = client.read(&mut answer).await.unwrap();
        answer[..length].starts_with(b"HTTP/1.1 200") && answer[..length].ends_with(b"done")
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_may_take_its_time_and_no_longer_whatever_came_before() {
        let stop = Arc::default();
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
        assert!(matches!(error, Cut::Late), "{error}");
        let waited = waits.elapsed();
        assert!((HEAD_TIMEOUT..HEAD_TIMEOUT + Duration::from_secs(1)).contains(&waited), "{waited:?}");
        assert!(stop.seats().wakers.is_empty(), "who has gone is not told");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_may_take_longer_than_a_head_to_make_or_to_read() {
        const PIECES: u64 = 30;
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
        let stop = Arc::default();
        // All there at once, and read slowly: a piece a second.
        let (client, ended) =
            serve(&stop, || async { Full::from([vec![b'x'; 512 * PIECES as usize], b"end".to_vec()].concat()) });
        drop(read_to_the_end(client, Duration::from_secs(1)).await);
        ended.await.unwrap().unwrap();
        // Made slowly, and read at once.
        let slowly = || async {
            let pieces = futures::stream::unfold(0, |sent| async move {
                sleep(Duration::from_secs(1)).await;
                let piece = if sent < PIECES { "piece" } else { "end" };
                (sent <= PIECES).then(|| (Ok(Frame::data(Bytes::from(piece))), sent + 1))
            });
            http_body_util::StreamBody::new(Box::pin(pieces))
        };
        let (client, ended) = serve(&stop, slowly);
        let _client = read_to_the_end(client, Duration::ZERO).await;
        let waits = Instant::now();
        assert!(matches!(ended.await.unwrap(), Err(Cut::Late)), "the next one has its time from then on");
        assert!((HEAD_TIMEOUT..HEAD_TIMEOUT + Duration::from_secs(1)).contains(&waits.elapsed()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_alarm_that_is_set_anew_when_the_task_has_done_enough_rings_all_the_same() {
        // The answer is made when the first alarm rings.
        let (mut client, ended) = connect_to(HEAD_TIMEOUT, &Arc::default());
        client.write_all(REQUEST).await.unwrap();
        assert!(answered(&mut client).await);
        client.write_all(&REQUEST[..10]).await.unwrap();
        let ended = tokio::time::timeout(10 * HEAD_TIMEOUT, ended).await.expect("the head does not come");
        assert!(matches!(ended.unwrap(), Err(Cut::Late)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_alarm_that_has_rung_before_it_knew_whom_to_wake_is_not_missed() {
        let mut alarm = pin!(sleep(ALARM));
        tokio::time::advance(10 * ALARM).await;
        let (mut polls, rung) = (0, Instant::now());
        let woken = poll_fn(|context| {
            polls += 1;
            ring_later(alarm.as_mut(), context);
            if polls > 1 { Poll::Ready(()) } else { Poll::Pending }
        });
        let _ = tokio::time::timeout(HEAD_TIMEOUT, woken).await;
        assert!(rung.elapsed() < HEAD_TIMEOUT, "it is woken, and not by the end of our patience");
    }

    #[tokio::test(start_paused = true)]
    async fn told_to_stop_it_ends_at_once_or_with_the_answer_that_it_owes() {
        let stop = Arc::default();
        let (mut idle, idle_ended) = connect(&stop);
        idle.write_all(REQUEST).await.unwrap();
        assert!(answered(&mut idle).await);
        let (mut busy, busy_ended) = connect(&stop);
        let (_silent, silent_ended) = connect(&stop);
        let (mut half, half_ended) = connect(&stop);
        half.write_all(&REQUEST[..10]).await.unwrap();
        busy.write_all(REQUEST).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        let told = Instant::now();
        stop.tell();
        idle_ended.await.unwrap().unwrap();
        silent_ended.await.unwrap().unwrap();
        assert!(told.elapsed() < Duration::from_secs(1));
        assert!(matches!(half_ended.await.unwrap(), Err(Cut::Late)), "it has its time, and no more");
        assert!(answered(&mut busy).await);
        busy_ended.await.unwrap().unwrap();
        let (_late, late_ended) = connect(&stop);
        late_ended.await.unwrap().unwrap();
    }
}
