//! A try to send a message, and what is written of it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncegate::store::{Change, Commit, Committed, Op, StoreError, find_written};
use oncegate::{Answer, Claim, ClaimKey, Command, Refusal, State, Time, Token, Verdict};
use oncegate_core::job::{self, Decision, End, Failure, Job};
use uuid::Uuid;

use super::Messages;
use super::apart::message_of;
use super::document::{Kept, Lead, Message, Status};
use super::events::Event;
use super::idempotency::message_of_key;
use super::reply::Reply;
use crate::channels::Receipt;
use crate::crash;
use crate::problem::Problem;
use crate::trace;
use crate::worker::{Handler, Held};

/// Between two attempts to write down how it went.
const WRITE_PAUSE: Duration = Duration::from_millis(100);
/// A receiver that asks for more patience than this is asked again all the same.
const RETRY_IN_MAX: Duration = Duration::from_secs(5);

/// A message to send, and what is decided together with its end.
pub struct Task {
    pub message: Kept<Message>,
    pub lead: Kept<Lead>,
    pub claims: Claims,
}

/// The claims that were made for a message, by whoever made them.
#[derive(Clone, Default)]
pub struct Claims {
    /// Of its Idempotency-Key, in flight.
    pub key: Option<(ClaimKey, Token)>,
    /// Of its contents.
    pub guard: Option<(ClaimKey, Token)>,
}

/// What became of a try.
pub enum Tried {
    Over(Reply),
    /// It is tried again; or whoever tried was too late to say anything.
    Open,
}

#[async_trait]
impl Handler for Messages {
    async fn run(self: Arc<Self>, held: Held) {
        crash::point("message.leased").await;
        match self.task(&held.job).await {
            Ok(Some(task)) => _ = self.send(held, task).await,
            // Nothing to send is nothing to try again.
            Ok(None) => {
                let _ = self.store.commit(Commit { ops: vec![], changes: vec![Change::Dequeue(held.job)] }).await;
            }
            Err(problem) => {
                problem.log();
                self.give_back(&held).await;
            }
        }
    }
}

impl Messages {
    /// What a job is about, for a worker that did not accept it.
    async fn task(&self, job: &Job) -> Result<Option<Task>, Problem> {
        let Some((message, lead)) = self.load(&job.workspace, job.id).await? else { return Ok(None) };
        let claims = self.claims_of(&message).await?;
        Ok(Some(Task { message, lead, claims }))
    }

    /// The claims that still stand for a message.
    pub async fn claims_of(&self, message: &Kept<Message>) -> Result<Claims, StoreError> {
        let mut claims = Claims::default();
        if let Some(key) = message.idempotency_key() {
            let claim = self.main.read(&key).await?.value.filter(|claim| is_for(claim, message.id));
            claims.key = claim.map(|claim| (key, claim.token));
        }
        if let Some(key) = message.guard_key() {
            let ledger = self.apart.as_ref().unwrap_or(&self.main);
            // A guard store that is away keeps what it has.
            let claim = ledger.read(&key).await.ok().and_then(|reading| reading.value);
            let claim = claim.filter(|claim| message_of(claim) == Some(message.id));
            claims.guard = claim.map(|claim| (key, claim.token));
        }
        Ok(claims)
    }

    /// Writes down that it is about to be sent, if that is not written yet. Nothing is sent before: a job whose worker is lost
    /// without this is sent by the next one, and a job whose worker is lost after it is sent again only under a key.
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
                crash::point("message.begun").await;
                match committed {
                    Ok(committed) => committed.is_written(),
                    // The answer got lost: the store says whether it was written. The job decides, since the message may be as it was.
                    Err(StoreError::Unknown(_)) => {
                        let look = || async {
                            let is_begun = self.is_queued(&job).await? && self.is_written(&message).await?;
                            Ok::<_, Problem>(is_begun.then_some(()))
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

    /// Nothing was sent: the next worker may begin at once. If this is not heard, it begins when the lease ends.
    async fn give_back(&self, held: &Held) {
        let command = job::Command::GiveBack { token: held.job.token };
        if let Decision::Keep(job) = job::decide(&held.job, &command, held.now()) {
            let changes = vec![Change::Requeue { job, stands_until: held.job.stands_until() }];
            let _ = self.store.commit(Commit { ops: vec![], changes }).await;
        }
    }

    /// One try.
    pub async fn send(&self, mut held: Held, mut task: Task) -> Tried {
        if held.job.fate().is_some() {
            let command = job::Command::GiveUp { token: held.job.token };
            return self.write_down(held.job.clone(), &held, task, command, None).await;
        }
        if !self.begin(&mut held, &mut task).await {
            self.give_back(&held).await;
            return Tried::Open;
        }
        // Part of the lease is for writing down how it went.
        let within = held.lease_left().mul_f64(0.9);
        if within.is_zero() {
            return Tried::Open;
        }
        crash::point("message.sending").await;
        let channel = self.channels.of(&task.message.workspace, &task.message.document.channel);
        let outgoing = task.message.outgoing();
        let (workspace, id, sending) = (&task.message.workspace, &task.message.id, channel.send(&outgoing, within));
        let about = &[("oncegate.message.id", id as _), ("oncegate.channel", &channel.kind() as _)];
        let sent = trace::call("send message", workspace, about, sending).await;
        held.slot = None;
        crash::point("message.sent").await;
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

    /// Decides what becomes of the job, and writes it, the message and its claims together.
    async fn write_down(
        &self,
        job: Job,
        held: &Held,
        task: Task,
        command: job::Command,
        receipt: Option<Receipt>,
    ) -> Tried {
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
            // Too late: whoever has it now says what became of it.
            Decision::Refuse(refusal) => {
                tracing::warn!(event = "message.lease_lost", workspace = %job.workspace, messageId = %job.id, %refusal);
                Tried::Open
            }
        }
    }

    /// What becomes of the job. A try that would come after the time in which somebody waits for it is not made.
    fn decide(&self, job: &Job, command: job::Command, now: Time) -> Decision {
        match (job::decide(job, &command, now), command) {
            (Decision::Keep(next), job::Command::Fail { token, failure })
                if next.due_at > job.created_at + self.config.send_wait =>
            {
                let failure = Failure { is_final: true, ..failure };
                job::decide(job, &job::Command::Fail { token, failure }, now)
            }
            (decision, _) => decision,
        }
    }

    /// The job leaves the queue, the message says how it went, the key is answered, and what surely failed gives its claim back.
    async fn finish(&self, held: &Held, message: Kept<Message>, lead: &Kept<Lead>, mut claims: Claims) -> Tried {
        let reply = Reply::to_first(&message, lead);
        let is_released = message.document.status == Status::Failed && self.releases();
        let changes = vec![Change::Dequeue(held.job.clone()), Change::replace(message.record())];
        let guard = claims.guard.clone();
        let mut key_is_lost = false;
        loop {
            let mut ops = vec![];
            if let Some((key, token)) = &claims.key {
                let outcome = Some(reply.keep(self.store_outcome_body));
                let command = match (is_released, key_is_lost) {
                    (true, false) => Command::Release { token: *token },
                    (true, true) => Command::Retract { token: *token },
                    (false, false) => Command::Settle { token: *token, verdict: Verdict::Done, outcome },
                    // Whoever made it is gone, and its lease with it.
                    (false, true) => Command::Resolve { done: true, outcome },
                };
                ops.push(Op { key: key.clone(), command });
            }
            if let (true, None, Some((key, token))) = (is_released, &self.apart, &claims.guard) {
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
            // A claim that is no longer ours has nothing to do with how it went.
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
        if let (true, Some(ledger), Some((key, token))) = (is_released, &self.apart, &guard) {
            // If it does not hear of it, the next request finds out from the message.
            let _ = ledger.apply(key, Command::Retract { token: *token }).await;
        }
        let event = match message.document.status {
            Status::Sent => Event::Sent,
            Status::Failed => Event::Failed,
            _ => Event::Unknown,
        };
        let age = held.now().micros().saturating_sub(message.document.created_us) as f64 / 1e6;
        let guard = guard.map(|(key, _)| key);
        event.tell(&message.workspace, guard.as_ref(), Some(message.id), age);
        self.over.tell(message.id, &reply);
        Tried::Over(reply)
    }

    /// Whether the queue has the job just like this. Its token is of one lease, so this worker's own commit has written it.
    async fn is_queued(&self, job: &Job) -> Result<bool, StoreError> {
        let mut found = self.store.find_jobs(&[(job.workspace.clone(), job.id)]).await?;
        Ok(found.value.remove(0).as_ref() == Some(job))
    }

    /// Whether it was written after all, by a commit whose answer got lost.
    async fn is_written(&self, message: &Kept<Message>) -> Result<bool, Problem> {
        let found = self.find::<Message>(&message.workspace, message.id).await?;
        // A person may have settled it since.
        let is_settled =
            |found: &Kept<Message>| found.document.resolved.is_some() && found.version == message.version + 1;
        Ok(found.is_some_and(|found| found.record() == message.record() || is_settled(&found)))
    }

    /// Writes, if need be again and again, for as long as the lease lasts.
    async fn commit_within_lease(&self, held: &Held, commit: impl Fn() -> Commit) -> Option<Committed> {
        loop {
            match self.main.commit(commit()).await {
                Ok(committed) => return Some(committed),
                Err(error) => {
                    tracing::error!(event = "message.not_written", messageId = %held.job.id, %error);
                    if held.lease_left().is_zero() || matches!(error, StoreError::Refused(_)) {
                        return None;
                    }
                    tokio::time::sleep(WRITE_PAUSE).await;
                }
            }
        }
    }
}

/// The message when it is over.
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

/// Whether a key's claim was made for this message, and has yet to be answered.
fn is_for(claim: &Claim, message: Uuid) -> bool {
    message_of_key(claim) == Some(message) && claim.state == State::InFlight
}
