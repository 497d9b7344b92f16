//! A connection: it ends with its client, when it is told to stop, or when the head of a request takes too long to arrive.
//!
//! Each is polled for every request, beside all the others. So for a request it takes no lock that they take, and sets no timer: from its begin to its end what
//! they share is only read, and each has one alarm, which rings now and then and is set anew while it is not time yet.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hyper::rt::{Sleep, Timer};
use hyper_util::server::graceful::GracefulConnection;
use tokio::task::coop::unconstrained;
use tokio::time::Instant;

/// How long a client may take to send the head of a request.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// An alarm is set no nearer than this: whatever a connection makes of a time that is over, it is not asked again and again.
const ALARM_MIN: Duration = Duration::from_millis(10);

/// Runs a connection that was made with `head` as its timer, until it ends.
pub async fn run<C: GracefulConnection>(connection: C, head: Head, stop: Arc<Stop>) -> Result<(), C::Error> {
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
        // If the time of a head is over, it finds out here.
        let ended = connection.as_mut().poll(context);
        if ended.is_pending() && alarm.is_elapsed() {
            let soon = Instant::now() + ALARM_MIN;
            alarm.as_mut().reset(head.awaited_until().unwrap_or(soon + HEAD_TIMEOUT).max(soon));
            ring_later(alarm.as_mut(), context);
        }
        ended
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

/// A connection's timer for the heads of its requests. It only notes until when one is waited for; [`run`] sees to it that the connection looks again by then.
#[derive(Clone, Default)]
pub struct Head(Arc<Mutex<Option<Instant>>>);

impl Head {
    fn awaited_until(&self) -> Option<Instant> {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl Timer for Head {
    fn sleep(&self, span: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + span)
    }

    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        let deadline = deadline.into();
        *self.lock() = Some(deadline);
        Box::pin(Awaited { deadline, head: self.clone() })
    }

    fn now(&self) -> std::time::Instant {
        Instant::now().into_std()
    }
}

/// A head that is waited for.
struct Awaited {
    deadline: Instant,
    head: Head,
}

impl Sleep for Awaited {}

impl Future for Awaited {
    type Output = ();

    /// Wakes nobody by itself.
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.deadline { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Awaited {
    /// The next may be waited for already.
    fn drop(&mut self) {
        self.head.lock().take_if(|until| *until == self.deadline);
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

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    /// Longer than a head may take to arrive.
    const ANSWER_AFTER: Duration = Duration::from_secs(25);

    fn connect(stop: &Arc<Stop>) -> (DuplexStream, JoinHandle<hyper::Result<()>>) {
        connect_to(ANSWER_AFTER, stop)
    }

    /// A connection whose requests take a while to answer, and all that a task may do at once in the end.
    fn connect_to(answer_after: Duration, stop: &Arc<Stop>) -> (DuplexStream, JoinHandle<hyper::Result<()>>) {
        let (client, server) = tokio::io::duplex(1024);
        let answer = service_fn(move |_: Request<Incoming>| async move {
            sleep(answer_after).await;
            while tokio::task::coop::has_budget_remaining() {
                tokio::task::coop::consume_budget().await;
            }
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("done")))
        });
        let head = Head::default();
        let connection = http1::Builder::new()
            .timer(head.clone())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(server), answer);
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
        assert!(error.is_timeout(), "{error}");
        let waited = waits.elapsed();
        assert!((HEAD_TIMEOUT..HEAD_TIMEOUT + Duration::from_secs(1)).contains(&waited), "{waited:?}");
        assert!(stop.seats().wakers.is_empty(), "who has gone is not told");
    }

    #[tokio::test(start_paused = true)]
    async fn an_alarm_that_is_set_anew_when_the_task_has_done_enough_rings_all_the_same() {
        // The answer is made when the first alarm rings.
        let (mut client, ended) = connect_to(HEAD_TIMEOUT, &Arc::default());
        client.write_all(REQUEST).await.unwrap();
        assert!(answered(&mut client).await);
        client.write_all(&REQUEST[..10]).await.unwrap();
        let ended = tokio::time::timeout(10 * HEAD_TIMEOUT, ended).await.expect("the head does not come");
        assert!(ended.unwrap().unwrap_err().is_timeout());
    }

    #[tokio::test(start_paused = true)]
    async fn an_alarm_that_has_rung_before_it_knew_whom_to_wake_is_not_missed() {
        let mut alarm = pin!(sleep(ALARM_MIN));
        tokio::time::advance(10 * ALARM_MIN).await;
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
        assert!(half_ended.await.unwrap().unwrap_err().is_timeout(), "it has its time, and no more");
        assert!(answered(&mut busy).await);
        busy_ended.await.unwrap().unwrap();
        let (_late, late_ended) = connect(&stop);
        late_ended.await.unwrap().unwrap();
    }
}
