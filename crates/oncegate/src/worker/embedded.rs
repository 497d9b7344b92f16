//! The worker that a program runs in its own process.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncegate_core::Policy;
use oncegate_core::job::Failure;
use oncegate_core::limits::{LEASE_MAX, SPAN_MIN};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use tokio::time::Instant;

#[cfg(feature = "sagas")]
use super::sagas::SagaJobs;
use super::{
    ActionJobs, Channel, Handler, Handlers, NotRun, Queue, Reconcile, ReminderJobs, Run, RunJob, SendJobs, Watcher,
};
use crate::gate::Gate;
use crate::messages::{self, Messages, Reply};
use crate::reminders::{self, Reminders};
#[cfg(feature = "sagas")]
use crate::sagas::{self, Sagas};
use crate::sends::{self, Sends};

/// How many jobs run at once, unless [`Worker::concurrency`] says otherwise.
const CONCURRENCY: usize = 16;
/// How long running jobs may take to end once the worker is told to stop.
const STOP_WITHIN: Duration = Duration::from_secs(8);

/// Runs jobs in this process, on the gate's store: actions by their handlers, reminders by their channels, and the timers of sagas. Any
/// number of workers, in any number of processes, share the jobs of a store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use oncegate::Gate;
/// use oncegate::actions::{Schedule, When};
/// use oncegate::worker::Run;
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// #[serde(rename_all = "camelCase")]
/// struct Saved {
///     entity_id: String,
///     name: String,
/// }
///
/// let gate = Gate::open("memory:").await?; // or sqlite:FILE, postgres://…
/// let saved = Saved { entity_id: "lead 7".into(), name: "Ada".into() };
/// gate.actions().schedule(Schedule::new("crm:sync", &saved)?.when(When::After(std::time::Duration::ZERO))).await?;
///
/// let (done, is_done) = tokio::sync::oneshot::channel();
/// let done = std::sync::Mutex::new(Some(done));
/// let sync = move |saved: Saved, run: Run| {
///     // Here the CRM is called, with run.effect_key as the idempotency key.
///     let told = done.lock().unwrap().take().map(|done| done.send((saved.name, run.attempt)));
///     async move { Ok::<_, std::io::Error>(told.is_some()) }
/// };
/// let synced = async { is_done.await.map(|(name, attempt)| assert_eq!((&name[..], attempt), ("Ada", 1))).unwrap() };
/// gate.worker().on::<Saved>("crm:sync", sync).concurrency(16).run(synced).await;
/// # Ok(())
/// # }
/// ```
#[must_use = "a worker does nothing until it is run"]
pub struct Worker {
    gate: Gate,
    handlers: Handlers,
    channels: BTreeMap<String, Arc<dyn Channel>>,
    reminders: Option<Reminders>,
    sends: Option<Sends>,
    /// The messages, and the queue that gives them their slots.
    messages: Option<(Arc<Queue>, Arc<dyn RunJob>)>,
    reconcile: Option<Arc<dyn Reconcile>>,
    #[cfg(feature = "sagas")]
    sagas: Option<Sagas>,
    watcher: Arc<dyn Watcher>,
    concurrency: usize,
    lease: Duration,
    stop_within: Duration,
}

impl Gate {
    /// A worker for this process. It runs the jobs of all workspaces.
    pub fn worker(&self) -> Worker {
        Worker {
            gate: self.clone(),
            handlers: Handlers::default(),
            channels: BTreeMap::new(),
            reminders: None,
            sends: None,
            messages: None,
            reconcile: None,
            #[cfg(feature = "sagas")]
            sagas: None,
            watcher: Arc::new(()),
            concurrency: CONCURRENCY,
            lease: Policy::DEFAULT_LEASE,
            stop_within: STOP_WITHIN,
        }
    }
}

impl Worker {
    /// Runs actions of this type with `handler`: a closure of the payload and the [`Run`] that returns a future. The value of `Ok` is
    /// kept with the action, as JSON.
    ///
    /// `Err` with a `std::error::Error` counts as an attempt that may have happened. Return a [`Failure`] to say more.
    ///
    /// The lease is renewed while the handler waits. A handler that blocks its thread for longer than the lease loses it: use
    /// `spawn_blocking`.
    pub fn on<P: DeserializeOwned>(mut self, action_type: &str, handler: impl IntoHandler<P>) -> Worker {
        self.handlers.set(action_type, handler.into_handler());
        self
    }

    /// Runs actions of this type with a [`Handler`].
    pub fn handler(mut self, action_type: &str, handler: impl Handler) -> Worker {
        self.handlers.set(action_type, Arc::new(handler));
        self
    }

    /// Sends the reminders that name this channel. A worker that sends reminders needs every channel that they name.
    pub fn channel(mut self, name: &str, channel: impl Channel) -> Worker {
        self.channels.insert(name.to_owned(), Arc::new(channel));
        self
    }

    /// Sends due reminders, through the channels that they name.
    pub fn reminders(self, reminders: &Reminders) -> Worker {
        Worker { reminders: Some(reminders.clone()), ..self }
    }

    /// Handles the sends whose worker has died. Without [`Worker::reconcile`], a send whose outcome is unknown is left to people, even if
    /// another process on the same store could ask the provider.
    pub fn sends(self, sends: &Sends) -> Worker {
        Worker { sends: Some(sends.clone()), ..self }
    }

    /// Sends the messages that their posts have left: those that waited for a slot, failed and are retried, or whose process died. It needs
    /// every channel that messages of this store name: a message for a channel that it lacks fails. Posts go on sending at once after this
    /// worker has stopped.
    pub fn messages<R: Reply>(self, messages: &Arc<Messages<R>>) -> Worker {
        Worker { messages: Some((messages.queue().clone(), messages.clone())), ..self }
    }

    /// Asks the provider about sends whose outcome is unknown.
    pub fn reconcile(self, reconcile: impl Reconcile) -> Worker {
        Worker { reconcile: Some(Arc::new(reconcile)), ..self }
    }

    /// Fires the timers of these sagas, and removes records whose retention is over. Their commands are actions: they need handlers.
    #[cfg(feature = "sagas")]
    pub fn sagas(self, sagas: &Sagas) -> Worker {
        Worker { sagas: Some(sagas.clone()), ..self }
    }

    /// Hears what the worker does.
    pub fn watcher(self, watcher: impl Watcher) -> Worker {
        Worker { watcher: Arc::new(watcher), ..self }
    }

    /// How many jobs run at once.
    pub fn concurrency(self, jobs: usize) -> Worker {
        Worker { concurrency: jobs.max(1), ..self }
    }

    /// How long a worker may be silent before its jobs go to others. The lease is renewed while a handler runs.
    pub fn lease(self, lease: Duration) -> Worker {
        Worker { lease: lease.clamp(SPAN_MIN, LEASE_MAX), ..self }
    }

    /// How long running jobs may take to end once `shutdown` is ready. Handlers that still run shortly before are dropped: their attempts
    /// count as ones that may have happened, so an action at least once is tried again, and one at most once is `unknown`.
    pub fn stop_within(self, limit: Duration) -> Worker {
        Worker { stop_within: limit.min(LEASE_MAX), ..self }
    }

    /// Runs jobs until `shutdown` is ready, and then until the running jobs have ended or [`Worker::stop_within`] is over. A call of a
    /// channel is not cut off: it ends within its lease.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let queue =
            Queue::new(self.gate.store().clone(), self.gate.ledger().waiters().clone(), self.lease, self.concurrency);
        // An earlier worker may have stopped the queue of the messages.
        self.messages.iter().for_each(|(queue, _)| queue.start_again());
        let jobs = self.jobs(&queue);
        let mut queues = vec![queue];
        queues.extend(self.messages.iter().map(|(queue, _)| queue.clone()));
        let leasing: Vec<_> =
            jobs.into_iter().map(|(queue, kinds, jobs)| tokio::spawn(queue.keep_leasing(kinds, jobs))).collect();
        // If this future is dropped, the tasks lease nothing more.
        let stops = StopOnDrop(queues.clone());
        shutdown.await;
        let deadline = Instant::now() + self.stop_within;
        queues.iter().for_each(|queue| queue.stop_by(deadline));
        for leasing in leasing {
            // A task that panicked leases nothing more.
            let _ = tokio::time::timeout_at(deadline, leasing).await;
        }
        for queue in &queues {
            queue.finish_by(deadline).await;
        }
        drop(stops);
    }

    /// The kinds of jobs that this worker runs, the queues that lease them, and what runs them.
    fn jobs(&self, queue: &Arc<Queue>) -> Vec<Leased> {
        let mut jobs: Vec<Leased> = vec![];
        if let Some((queue, run)) = &self.messages {
            jobs.push((queue.clone(), vec![messages::JOB.to_owned()], run.clone()));
        }
        let kinds = self.handlers.kinds();
        if !kinds.is_empty() {
            let (handlers, watcher) = (self.handlers.clone(), self.watcher.clone());
            let actions = self.gate.actions().policy().clone();
            jobs.push((
                queue.clone(),
                kinds,
                Arc::new(ActionJobs { actions, queue: queue.clone(), handlers, watcher }),
            ));
        }
        if let Some(reminders) = self.reminders.clone() {
            let channels = Arc::new(self.channels.clone());
            let run = ReminderJobs { reminders, channels, watcher: self.watcher.clone() };
            jobs.push((queue.clone(), vec![reminders::JOB.to_owned()], Arc::new(run)));
        }
        if let Some(sends) = self.sends.clone() {
            let run = SendJobs { sends, reconcile: self.reconcile.clone(), watcher: self.watcher.clone() };
            jobs.push((queue.clone(), vec![sends::JOB.to_owned()], Arc::new(run)));
        }
        #[cfg(feature = "sagas")]
        if let Some(sagas) = self.sagas.clone() {
            jobs.push((
                queue.clone(),
                vec![sagas::TIMER.to_owned(), sagas::RETIRE.to_owned()],
                Arc::new(SagaJobs { sagas }),
            ));
        }
        jobs
    }
}

/// Kinds of jobs, the queue that leases them, and what runs them.
type Leased = (Arc<Queue>, Vec<String>, Arc<dyn RunJob>);

struct StopOnDrop(Vec<Arc<Queue>>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.iter().filter(|queue| !queue.is_stopped()).for_each(|queue| queue.stop_by(Instant::now()));
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("jobs", &self.handlers.kinds()).finish_non_exhaustive()
    }
}

/// A closure that handles actions with the payload `P`.
pub trait IntoHandler<P> {
    /// The handler.
    fn into_handler(self) -> Arc<dyn Handler>;
}

impl<P, F, Fut, T, E> IntoHandler<P> for F
where
    P: DeserializeOwned + Send + 'static,
    F: Fn(P, Run) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
    T: Serialize + Send,
    E: Into<Failure>,
{
    fn into_handler(self) -> Arc<dyn Handler> {
        Arc::new(Typed(move |payload: &RawValue, run: Run| {
            let payload = serde_json::from_str(payload.get())
                .map_err(|error| Failure::refused(format!("the payload is not what the handler expects: {error}")))?;
            let running = self(payload, run);
            Ok(async move { running.await.map(|result| to_raw_value(&result)).map_err(E::into) })
        }))
    }
}

/// A closure that reads the payload, starts the handler, and makes JSON of its result.
struct Typed<F>(F);

#[async_trait]
impl<F, Running> Handler for Typed<F>
where
    F: Fn(&RawValue, Run) -> Result<Running, Failure> + Send + Sync + 'static,
    Running: Future<Output = Result<serde_json::Result<Box<RawValue>>, Failure>> + Send,
{
    async fn run(&self, run: &Run, payload: &RawValue) -> Result<Option<Box<RawValue>>, NotRun> {
        let result = (self.0)(payload, run.clone())?.await?;
        // The effect has happened, so a result that is no JSON must not lead to another attempt.
        let result = result.inspect_err(|error| {
            tracing::error!(event = "action.result_not_kept", actionId = %run.id, %error);
        });
        // `()` is no result.
        Ok(result.ok().filter(|result| result.get() != "null"))
    }
}
