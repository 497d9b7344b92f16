//! One attempt to send a message, and what is written about it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncegate_core::job::{self, Decision, End, Failure, Job};
use oncegate_core::{Answer, Claim, ClaimKey, Command, Refusal, State, Time, Token, Verdict};
use oncegate_store::{Change, Commit, Committed, Op, StoreError, find_written};
use uuid::Uuid;

use super::idempotency::message_of_key;
use super::record::{Lead, Message, Status};
use super::separate_guard::message_of;
use super::{Event, Messages, Refused, Reply};
use crate::channel::{self, Receipt};
use crate::document::Kept;
use crate::queue::{Held, RunJob};

/// The pause before the next worker loads a message that could not be loaded.
const LOAD_PAUSE: Duration = Duration::from_secs(1);
/// The pause between two attempts to write the outcome.
const WRITE_PAUSE: Duration = Duration::from_millis(100);
/// The longest `Retry-After` that is honoured. A longer one is cut to this.
const RETRY_IN_MAX: Duration = Duration::from_secs(5);

/// A message to send, with the claims that are settled when the message is over.
pub struct Task {
    pub message: Kept<Message>,
    pub lead: Kept<Lead>,
    pub claims: Claims,
}

/// The claims that were made for a message, by this request or another one.
#[derive(Clone, Default)]
pub struct Claims {
    /// The claim of the Idempotency-Key, in flight.
    pub key: Option<(ClaimKey, Token)>,
    /// The claim of the message's contents.
    pub guard: Option<(ClaimKey, Token)>,
}

/// The result of an attempt.
pub enum Tried<R> {
    Over(R),
    /// The job is retried, or this worker's lease was lost and another one decides.
    Open,
}

#[async_trait]
impl<R: Reply> RunJob for Messages<R> {
    async fn run(self: Arc<Self>, held: Held) {
        self.watcher.reached("message.leased").await;
        match self.task(&held.job).await {
            Ok(Some(task)) => _ = self.send(held, task).await,
            // Without a message there is nothing to retry.
            Ok(None) => {
                let _ = self.store.commit(Commit { ops: vec![], changes: vec![Change::Dequeue(held.job)] }).await;
            }
            Err(error) => {
                let (workspace, id) = (&held.job.workspace, held.job.id);
                tracing::error!(event = "message.not_loaded", %workspace, messageId = %id, %error);
                // No attempt is counted: another build, or this one later, may read the record and send the message.
                let (token, until) = (held.job.token, held.now() + LOAD_PAUSE);
                self.return_job(&held, job::Command::PutOff { token, until, why: error.to_string() }).await;
            }
        }
    }
}

impl<R: Reply> Messages<R> {
    /// Loads what a job refers to, for a worker that did not accept the message.
    async fn task(&self, job: &Job) -> Result<Option<Task>, Refused> {
        let Some((message, lead)) = self.load(&job.workspace, job.id).await? else { return Ok(None) };
        let claims = self.claims_of(&message).await?;
        Ok(Some(Task { message, lead, claims }))
    }

    /// The claims that still belong to a message.
    pub(super) async fn claims_of(&self, message: &Kept<Message>) -> Result<Claims, StoreError> {
        let mut claims = Claims::default();
        if let Some(key) = message.idempotency_key() {
            let claim = self.main.read(&key).await?.value.filter(|claim| is_for(claim, message.id));
            claims.key = claim.map(|claim| (key, claim.token));
        }
        if let Some(key) = message.guard_key() {
            let ledger = self.separate.as_ref().unwrap_or(&self.main);
            // If the guard store is unreachable, its claim is left as it is.
            let claim = ledger.read(&key).await.ok().and_then(|reading| reading.value);
            let claim = claim.filter(|claim| message_of(claim) == Some(message.id));
            claims.guard = claim.map(|claim| (key, claim.token));
        }
        Ok(claims)
    }

    /// Records that the send begins, if no commit has recorded that yet. Nothing is sent before this. If a worker is lost
    /// before this commit, the next worker sends the message. If it is lost after, the message is sent again only under a
    /// key.
    async fn begin(&self, held: &mut Held, task: &mut Task) -> bool {
        let mut changes = vec![];
        let mut job = held.job.clone();
        if !job.begun {
            let command = job::Command::Begin { token: job.token };
            let Decision::Keep(begun) = job::decide(&job, &command, held.now()) else { return false };
            changes.push(Change::Requeue { job: begun.clone(), stands_until: job.stands_until() });
            job = begun;
        }
        let mut message = task.message.clone();
        if message.document.status != Status::Sending {
            message = message.with(Message { status: Status::Sending, ..message.document.clone() });
            changes.push(Change::replace(message.record()));
        }
        let begun = match changes.is_empty() {
            true => true,
            false => {
                let committed = self.store.commit(Commit { ops: vec![], changes }).await;
                self.watcher.reached("message.begun").await;
                match committed {
                    Ok(committed) => committed.is_written(),
                    // The answer got lost: a read of the store says whether the commit was written. The job decides, since
                    // the message may be unchanged.
                    Err(StoreError::Unknown(_)) => {
                        let look = || async {
                            let is_begun = self.is_queued(&job).await? && self.is_written(&message).await?;
                            Ok::<_, Refused>(is_begun.then_some(()))
                        };
                        find_written(&*self.store, look).await.is_some()
                    }
                    Err(_) => false,
                }
            }
        };
        if begun {
            held.job = job;
            task.message = message;
        }
        begun
    }

    /// Nothing was sent: the next worker may begin at once. If this commit fails, the next worker begins when the lease
    /// ends.
    async fn give_back(&self, held: &Held) {
        self.return_job(held, job::Command::GiveBack { token: held.job.token }).await;
    }

    async fn return_job(&self, held: &Held, command: job::Command) {
        if let Decision::Keep(job) = job::decide(&held.job, &command, held.now()) {
            let changes = vec![Change::Requeue { job, stands_until: held.job.stands_until() }];
            let _ = self.store.commit(Commit { ops: vec![], changes }).await;
        }
    }

    /// One attempt to send the message.
    pub(super) async fn send(&self, mut held: Held, mut task: Task) -> Tried<R> {
        if held.job.fate().is_some() {
            let command = job::Command::GiveUp { token: held.job.token };
            return self.write_down(held.job.clone(), &held, task, command, None).await;
        }
        if !self.begin(&mut held, &mut task).await {
            self.give_back(&held).await;
            return Tried::Open;
        }
        // A tenth of the lease is reserved for writing the outcome.
        let within = held.lease_left().mul_f64(0.9);
        if within.is_zero() {
            return Tried::Open;
        }
        self.watcher.reached("message.sending").await;
        let sent = channel::send(&*self.channels, &task.message.outgoing(), within).await;
        held.slot = None;
        self.watcher.reached("message.sent").await;
        let token = held.job.token;
        let (command, receipt) = match sent {
            Ok(receipt) => (job::Command::Complete { token }, Some(receipt)),
            Err(failure) => {
                let retry_in = failure.retry_in.map(|span| span.min(RETRY_IN_MAX));
                (job::Command::Fail { token, failure: Failure { retry_in, ..failure } }, None)
            }
        };
        self.write_down(held.job.clone(), &held, task, command, receipt).await
    }

    /// Decides the next state of the job, and writes the job, the message and its claims in one commit.
    async fn write_down(
        &self,
        job: Job,
        held: &Held,
        task: Task,
        command: job::Command,
        receipt: Option<Receipt>,
    ) -> Tried<R> {
        let error = match &command {
            job::Command::Fail { failure, .. } => Some(failure.error.clone()),
            job::Command::GiveUp { .. } => job.error.clone(),
            _ => None,
        };
        match self.decide(&job, command, held.now()) {
            Decision::Keep(next) => {
                let document = Message { status: Status::Queued, error, ..task.message.document.clone() };
                let requeue = Change::Requeue { job: next, stands_until: job.stands_until() };
                let changes = vec![requeue, Change::replace(task.message.with(document).record())];
                self.commit_within_lease(held, || Commit { ops: vec![], changes: changes.clone() }).await;
                Tried::Open
            }
            Decision::End(end) => {
                let document = over(&task.message.document, end, error, receipt, held);
                let message = task.message.with(document);
                self.finish(held, message, &task.lead, task.claims).await
            }
            // Too late: the worker that has the job now decides its outcome.
            Decision::Refuse(refusal) => {
                tracing::warn!(event = "message.lease_lost", workspace = %job.workspace, messageId = %job.id, %refusal);
                Tried::Open
            }
        }
    }

    /// Decides the next state of the job. A retry that would start after `send_wait`, when no request waits for it any
    /// more, is not made.
    fn decide(&self, job: &Job, command: job::Command, now: Time) -> Decision {
        match (job::decide(job, &command, now), command) {
            (Decision::Keep(next), job::Command::Fail { token, failure })
                if next.due_at > job.created_at + self.options.send_wait =>
            {
                let failure = Failure { is_final: true, ..failure };
                job::decide(job, &job::Command::Fail { token, failure }, now)
            }
            (decision, _) => decision,
        }
    }

    /// Removes the job from the queue, records the outcome in the message, and settles the key. A message that failed for
    /// certain gives its claim back.
    async fn finish(&self, held: &Held, message: Kept<Message>, lead: &Kept<Lead>, mut claims: Claims) -> Tried<R> {
        let reply = R::to_first(&message, lead);
        let is_released = message.document.status == Status::Failed && self.releases();
        let changes = vec![Change::Dequeue(held.job.clone()), Change::replace(message.record())];
        let guard = claims.guard.clone();
        let mut key_is_lost = false;
        loop {
            let mut ops = vec![];
            if let Some((key, token)) = &claims.key {
                let outcome = Some(reply.keep(self.options.keep_answers));
                let command = match (is_released, key_is_lost) {
                    (true, false) => Command::Release { token: *token },
                    (true, true) => Command::Retract { token: *token },
                    (false, false) => Command::Settle { token: *token, verdict: Verdict::Done, outcome },
                    // The claim's owner is gone, and the lease has ended with it.
                    (false, true) => Command::Resolve { done: true, outcome },
                };
                ops.push(Op { key: key.clone(), command });
            }
            if let (true, None, Some((key, token))) = (is_released, &self.separate, &claims.guard) {
                ops.push(Op { key: key.clone(), command: Command::Retract { token: *token } });
            }
            let has_key = claims.key.is_some();
            let build = || Commit { ops: ops.clone(), changes: changes.clone() };
            let Some(committed) = self.commit_within_lease(held, build).await else { return Tried::Open };
            if committed.is_written() {
                break;
            }
            if committed.conflict.is_some() {
                let look = || async { self.is_written(&message).await.map(|is| is.then_some(())) };
                if find_written(&*self.store, look).await.is_some() {
                    break;
                }
                tracing::warn!(event = "message.fenced", workspace = %message.workspace, messageId = %message.id);
                return Tried::Open;
            }
            // A claim that this worker no longer owns must not stop the record of the outcome.
            let refused: Vec<bool> = committed.answers.iter().map(|answer| !answer.is_accepted()).collect();
            if has_key && refused[0] {
                let is_overdue = matches!(committed.answers[0], Answer::Refused(Refusal::LeaseEnded { .. }));
                match is_overdue && !key_is_lost {
                    true => key_is_lost = true,
                    false => claims.key = None,
                }
            }
            if refused.get(usize::from(has_key)) == Some(&true) {
                claims.guard = None;
            }
        }
        if let (true, Some(ledger), Some((key, token))) = (is_released, &self.separate, &guard) {
            // If the guard store does not answer, the next request finds the failed message and retracts the claim.
            let _ = ledger.apply(key, Command::Retract { token: *token }).await;
        }
        let event = match message.document.status {
            Status::Sent => Event::Sent,
            Status::Failed => Event::Failed,
            _ => Event::Unknown,
        };
        let age = held.now().since(Time::from_micros(message.document.created_us));
        let guard = guard.map(|(key, _)| key);
        self.watcher.message(event, &message.workspace, guard.as_ref(), Some(message.id), age);
        self.over.tell(message.id, &reply);
        Tried::Over(reply)
    }

    /// Whether the queue has exactly this job. The job's token belongs to one lease, so only this worker's own commit can
    /// have written it.
    async fn is_queued(&self, job: &Job) -> Result<bool, StoreError> {
        let mut found = self.store.find_jobs(&[(job.workspace.clone(), job.id)]).await?;
        Ok(found.value.remove(0).as_ref() == Some(job))
    }

    /// Whether a commit whose answer got lost was written.
    async fn is_written(&self, message: &Kept<Message>) -> Result<bool, Refused> {
        let found = self.find::<Message>(&message.workspace, message.id).await?;
        // A person may have settled the message since.
        let is_settled =
            |found: &Kept<Message>| found.document.resolved.is_some() && found.version == message.version + 1;
        Ok(found.is_some_and(|found| found.record() == message.record() || is_settled(&found)))
    }

    /// Writes, with retries for as long as the lease lasts.
    async fn commit_within_lease(&self, held: &Held, commit: impl Fn() -> Commit) -> Option<Committed> {
        loop {
            match self.main.commit(commit()).await {
                Ok(committed) => return Some(committed),
                Err(error) => {
                    tracing::error!(event = "message.not_written", messageId = %held.job.id, %error);
                    if held.lease_left().is_zero()
                        || matches!(error, StoreError::Refused(_) | StoreError::Unreadable(_))
                    {
                        return None;
                    }
                    tokio::time::sleep(WRITE_PAUSE).await;
                }
            }
        }
    }
}

/// The message in its final state.
fn over(message: &Message, end: End, error: Option<String>, receipt: Option<Receipt>, held: &Held) -> Message {
    let status = match end {
        End::Completed => Status::Sent,
        End::Dead | End::Cancelled => Status::Failed,
        End::Unknown => Status::Unknown,
    };
    let is_sent = status == Status::Sent;
    Message {
        status,
        error: error.filter(|_| !is_sent),
        sent_us: is_sent.then(|| held.now().micros()),
        provider_message_id: receipt.and_then(|receipt| receipt.provider_message_id),
        ..message.clone()
    }
}

/// Whether a key's claim was made for this message, and is still in flight.
fn is_for(claim: &Claim, message: Uuid) -> bool {
    message_of_key(claim) == Some(message) && claim.state == State::InFlight
}
