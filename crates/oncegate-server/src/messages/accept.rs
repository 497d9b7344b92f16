//! A POST, from its body to its answer.

use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use oncegate::store::{Change, Commit, Committed, Op};
use oncegate::{Answer, Claim, ClaimKey, Command, Lost, OnFailure, StoreError, Terms, Time, Token, WorkspaceName};
use oncegate_core::job::{Delivery, Job, Reached, State, Tries};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::apart::{self, Passed, Won, message_of};
use super::contact::Found;
use super::document::{Hex, Kept, Lead, Message, Status};
use super::events::Event;
use super::idempotency::Asked;
use super::post::Post;
use super::reply::Reply;
use super::send::{Claims, Task, Tried};
use super::{JOB, Messages};
use crate::config::Mode;
use crate::crash;
use crate::problem::{Kind, Problem};
use crate::worker::Held;

/// How often a request begins again because others were faster.
const ROUNDS_MAX: usize = 32;
/// How often a message is looked at that somebody else may be sending.
const LOOK_EVERY: Duration = Duration::from_millis(250);

const TRIES: Tries = Tries { max: 3, pause: Duration::from_secs(1), pause_max: Duration::from_secs(5) };

pub type Answered = Result<Response, Problem>;

/// What became of a request.
enum Outcome {
    Accepted(Box<Accepted>),
    Duplicate {
        message: Kept<Message>,
        lead: Kept<Lead>,
        claim: ClaimKey,
        age: Duration,
        how: &'static str,
    },
    /// Its original is not written yet.
    Pending {
        claim: ClaimKey,
    },
    /// Somebody else has used its key just now.
    KeyTaken,
}

/// Written, and to be sent.
struct Accepted {
    task: Task,
    /// It begins at once; otherwise the queue has it.
    held: Option<Held>,
    over: oneshot::Receiver<Reply>,
}

/// Who stops a duplicate of this request.
enum Guard {
    Nobody,
    /// A claim in the commit that writes the message.
    Within(ClaimKey),
    Apart(Won),
}

impl Messages {
    /// Runs to its end, whether or not anybody waits for the answer.
    pub async fn post(
        self: Arc<Self>,
        workspace: WorkspaceName,
        asked: Option<Asked>,
        body: Bytes,
        answer: oneshot::Sender<Answered>,
    ) {
        let _under_way = self.worker.under_way();
        crash::point("message.received").await;
        // Whoever asked may have hung up.
        match self.accept(&workspace, asked.as_ref(), &body).await {
            Ok(Step::Answer(response)) => _ = answer.send(Ok(response)),
            Ok(Step::Send(accepted)) => self.see_through(*accepted, answer).await,
            Err(problem) => _ = answer.send(Err(problem)),
        }
    }

    async fn accept(&self, workspace: &WorkspaceName, asked: Option<&Asked>, body: &Bytes) -> Result<Step, Problem> {
        for _ in 0..ROUNDS_MAX {
            if let Some(asked) = asked
                && let Some(response) = self.answer_of_key(asked).await?
            {
                return Ok(Step::Answer(response));
            }
            let post = Post::read(body)?;
            let reply = match self.try_accept(workspace, asked, &post).await? {
                Outcome::Accepted(accepted) => return Ok(Step::Send(accepted)),
                Outcome::Duplicate { message, lead, claim, age, how } => {
                    Event::DuplicateBlocked(how).tell(workspace, Some(&claim), Some(message.id), age.as_secs_f64());
                    Reply::to_duplicate(&message, &lead, age.as_secs())
                }
                Outcome::Pending { claim } => {
                    Event::DuplicatePending.tell(workspace, Some(&claim), None, 0.0);
                    // Nothing is known yet: under the key, too, it is asked again.
                    return Ok(Step::Answer(Reply::to_pending_duplicate().into_response()));
                }
                Outcome::KeyTaken => continue,
            };
            match asked {
                Some(asked) if !self.keep_under_key(asked, &reply).await? => continue,
                _ => return Ok(Step::Answer(reply.into_response())),
            }
        }
        Err(others_were_faster())
    }

    async fn try_accept(
        &self,
        workspace: &WorkspaceName,
        asked: Option<&Asked>,
        post: &Post,
    ) -> Result<Outcome, Problem> {
        let found = self.look(workspace, &post.contact).await?;
        let known = found.lead.as_ref().map(|lead| &lead.document);
        self.check_channel(post, known)?;
        let (key, parts) = post.key(workspace, known);
        let parts = self.store_parts.then(|| serde_json::to_string(&parts).expect("texts are JSON"));
        let guard = match (&self.apart, self.config.mode) {
            (_, Mode::Off) => Guard::Nobody,
            (None, _) => Guard::Within(key.clone()),
            (Some(ledger), _) => match self.claim_apart(ledger, &key, parts.clone()).await? {
                apart::Asked::Won(won) => Guard::Apart(won),
                apart::Asked::Unguarded => Guard::Nobody,
                apart::Asked::Pending => return Ok(Outcome::Pending { claim: key }),
                apart::Asked::Duplicate { message, age, waited } => {
                    let how = if waited { "lock_resolved_polled" } else { "lock_resolved" };
                    return self.duplicate(message, key, age, how).await;
                }
            },
        };
        crash::point("message.claimed").await;
        let request = Request { workspace, asked, post, parts };
        let outcome = self.write(&request, found, guard, &key).await;
        crash::point("message.committed").await;
        outcome
    }

    /// Writes all of it, or finds out who was first. Whatever becomes of it, the guard store hears of it.
    async fn write(
        &self,
        request: &Request<'_>,
        found: Found,
        guard: Guard,
        key: &ClaimKey,
    ) -> Result<Outcome, Problem> {
        let mut guard = guard;
        let written = self.write_within(request, found, &mut guard, key).await;
        crash::point("message.written").await;
        let Guard::Apart(won) = &guard else { return written.map_err(Problem::from) };
        match &written {
            Ok(Outcome::Accepted(accepted)) => won.settle(accepted.task.message.id, self.config.lease).await,
            Ok(Outcome::Duplicate { message, .. }) => won.settle(message.id, self.config.lease).await,
            // It may be written: the fence knows, once the lease is over.
            Err(Trouble::Store(StoreError::Unknown(_))) => {}
            Ok(_) | Err(_) => won.release().await,
        }
        written.map_err(Problem::from)
    }

    async fn write_within(
        &self,
        request: &Request<'_>,
        mut found: Found,
        guard: &mut Guard,
        key: &ClaimKey,
    ) -> Result<Outcome, Trouble> {
        let mut slot = self.worker.try_slot();
        for round in 0..ROUNDS_MAX {
            if round > 0 {
                found = self.look(request.workspace, &request.post.contact).await?;
            }
            let Plan { mut commit, message, lead, job } = self.plan(request, &found, guard, slot.is_some());
            if let Guard::Apart(won) = &*guard {
                match self.pass_fence(won, message.id).await? {
                    Passed::Yes(change) => commit.changes.push(change),
                    Passed::Duplicate(original) if self.config.mode == Mode::Observe => {
                        Event::DuplicateObserved.tell(request.workspace, Some(key), Some(original), 0.0);
                        won.settle(original, self.config.lease).await;
                        *guard = Guard::Nobody;
                        continue;
                    }
                    Passed::Duplicate(original) => {
                        return Ok(self.duplicate(original, key.clone(), Duration::ZERO, "lock_resolved").await?);
                    }
                }
            }
            let over = self.over.expect(message.id);
            let committed = self.main.commit(commit).await;
            let claims = match &committed {
                Ok(committed) if committed.is_written() => Some(request.claims(guard, committed)),
                // Its answer got lost: what is there is there.
                Err(StoreError::Unknown(_)) => self.claims_if_written(&message).await,
                _ => None,
            };
            if let Some(claims) = claims {
                let held = slot.take().map(|slot| Held { job, slot: Some(slot), leased: (found.now, found.asked) });
                let task = Task { message, lead, claims };
                return Ok(Outcome::Accepted(Box::new(Accepted { task, held, over })));
            }
            self.over.forget(message.id);
            let committed = committed.map_err(Trouble::Store)?;
            if request.asked.is_some() && !committed.answers[0].is_accepted() {
                return Ok(Outcome::KeyTaken);
            }
            if let Some(claim) = committed.answers.iter().find_map(Answer::met) {
                match self.met(claim, committed.now, found.lead.as_ref()).await? {
                    Met::Duplicate(duplicate) => return Ok(duplicate),
                    Met::Unguarded => *guard = Guard::Nobody,
                    Met::Again => {}
                }
            }
        }
        Err(Trouble::Problem(others_were_faster()))
    }

    /// Before anything is claimed.
    fn check_channel(&self, post: &Post, lead: Option<&Lead>) -> Result<(), Problem> {
        let (phone, email) = post.reached_at(lead);
        let name = post.channel_name(phone.is_some());
        match self.channels.get(name).needs_email() && email.is_none() {
            true => {
                let detail = format!("recipientEmail: the channel {name:?} sends mail, and there is no address");
                Err(Kind::InvalidRequest.because(detail))
            }
            false => Ok(()),
        }
    }

    /// The claims of a message, if it has been written.
    async fn claims_if_written(&self, message: &Kept<Message>) -> Option<Claims> {
        let written = self.find::<Message>(&message.workspace, message.id).await.ok().flatten()?;
        self.claims_of(&written).await.ok()
    }

    /// Everything that a request writes, and what it is decided from.
    fn plan(&self, request: &Request<'_>, found: &Found, guard: &Guard, has_slot: bool) -> Plan {
        let Request { workspace, asked, post, parts } = request;
        let chosen = found.lead(workspace, &post.contact);
        let of_lead = &chosen.lead.document;
        let (phone, email) = post.reached_at(Some(of_lead));
        let channel_name = post.channel_name(phone.is_some());
        let channel = self.channels.get(channel_name);
        let (thread, thread_change) = found.thread(&chosen.lead, phone, email);
        let guard_key = match guard {
            Guard::Nobody => None,
            Guard::Within(key) => Some(Hex::of(key)),
            Guard::Apart(won) => Some(Hex::of(won.key())),
        };
        let message = Kept::new(
            workspace,
            Message {
                status: if has_slot { Status::Sending } else { Status::Queued },
                lead: chosen.lead.id,
                thread: thread.id,
                phone: phone.map(str::to_owned),
                email: email.map(str::to_owned),
                text: post.text.clone(),
                channel: channel_name.to_owned(),
                attachments: post.attachments.clone(),
                metadata: post.metadata.clone(),
                error: None,
                created_us: found.now.micros(),
                sent_us: None,
                provider_message_id: None,
                lead_is_new: chosen.is_new,
                guard: guard_key,
                key: asked.map(|asked| Hex::of(&asked.key)),
            },
        );
        let job = self.job(&message, channel.delivery(), found.now, has_slot);
        let mut ops: Vec<Op> = asked.iter().map(|asked| self.claim_key(asked, message.id)).collect();
        if let Guard::Within(key) = guard {
            let command = Command::Claim(self.guard_terms(message.id, parts.clone()));
            ops.push(Op { key: key.clone(), command });
        }
        let mut changes: Vec<Change> = chosen.change.into_iter().chain(thread_change).collect();
        let lists = vec![Message::list_of(chosen.lead.id)];
        changes.push(Change::Create { record: message.record(), names: vec![], lists });
        changes.push(Change::Enqueue(job.clone()));
        Plan { commit: Commit { ops, changes }, message, lead: chosen.lead, job }
    }

    /// The job that sends it: born leased, if it can begin at once.
    fn job(&self, message: &Kept<Message>, delivery: Delivery, now: Time, has_slot: bool) -> Job {
        let (state, token, tried, lease_until) = match has_slot {
            true => (State::Running, Token(1), 1, now + self.config.lease),
            false => (State::Pending, Token(0), 0, Time::LONG_AGO),
        };
        Job {
            workspace: message.workspace.clone(),
            id: message.id,
            kind: JOB.into(),
            payload: Bytes::new(),
            state,
            due_at: now,
            token,
            lease_until,
            version: 1,
            tried,
            tries: TRIES,
            delivery,
            begun: has_slot,
            reached: Reached::No,
            created_at: now,
            error: None,
        }
    }

    /// Its message is in the same commit, so it is settled as it is made.
    fn guard_terms(&self, message: Uuid, parts: Option<String>) -> Terms {
        Terms {
            window: self.config.window,
            lease: self.config.lease,
            lost: Lost::TakeOver,
            fingerprint: None,
            attributes: None,
            parts,
            outcome: Some(message.to_string().into()),
        }
    }

    /// A claim of the main store stands in the way.
    async fn met(&self, claim: &Claim, now: Time, lead: Option<&Kept<Lead>>) -> Result<Met, Problem> {
        let age = now.since(claim.created_at);
        let workspace = &claim.key.workspace;
        let pending = || Ok(Met::Duplicate(Outcome::Pending { claim: claim.key.clone() }));
        let Some(id) = message_of(claim) else { return pending() };
        if self.config.mode == Mode::Observe {
            Event::DuplicateObserved.tell(workspace, Some(&claim.key), Some(id), age.as_secs_f64());
            return Ok(Met::Unguarded);
        }
        let Some(message) = self.find::<Message>(workspace, id).await? else { return pending() };
        // Held when it failed, and since then the config says otherwise.
        if message.document.status == Status::Failed && self.releases() {
            self.main.apply(&claim.key, Command::Retract { token: claim.token }).await?;
            return Ok(Met::Again);
        }
        let lead = match lead.filter(|lead| lead.id == message.document.lead) {
            Some(lead) => lead.clone(),
            None => self.lead_of(&message).await?,
        };
        let (claim, how) = (claim.key.clone(), "lock_resolved");
        Ok(Met::Duplicate(Outcome::Duplicate { message, lead, claim, age, how }))
    }

    async fn duplicate(
        &self,
        message: Uuid,
        claim: ClaimKey,
        age: Duration,
        how: &'static str,
    ) -> Result<Outcome, Problem> {
        match self.load(&claim.workspace, message).await? {
            Some((message, lead)) => Ok(Outcome::Duplicate { message, lead, claim, age, how }),
            None => Ok(Outcome::Pending { claim }),
        }
    }

    pub fn releases(&self) -> bool {
        self.config.failed == OnFailure::Release
    }

    /// Whether a message surely failed, and leaves its key to the next one.
    pub async fn is_released(&self, workspace: &WorkspaceName, message: Uuid) -> Result<bool, Problem> {
        let message = if self.releases() { self.find::<Message>(workspace, message).await? } else { None };
        Ok(message.is_some_and(|message| message.document.status == Status::Failed))
    }

    /// Sends it, and answers when that is over or has taken too long.
    async fn see_through(self: &Arc<Self>, accepted: Accepted, answer: oneshot::Sender<Answered>) {
        let Accepted { task, held, over } = accepted;
        let (workspace, id, key) = (task.message.workspace.clone(), task.message.id, task.claims.key.clone());
        let deadline = Instant::now() + self.config.send_wait;
        let Some(held) = held else {
            self.worker.wake();
            return self.answer_when_over(&workspace, id, key, over, deadline, answer).await;
        };
        let mut sending = std::pin::pin!(self.send(held, task));
        match timeout_at(deadline, &mut sending).await {
            Ok(Tried::Over(reply)) => {
                self.over.forget(id);
                crash::point("message.finished").await;
                _ = answer.send(Ok(reply.into_response()));
            }
            // It is tried again, or somebody else has it.
            Ok(Tried::Open) => self.answer_when_over(&workspace, id, key, over, deadline, answer).await,
            Err(_) => {
                self.answer_when_over(&workspace, id, key, over, deadline, answer).await;
                sending.await;
            }
        }
    }

    async fn answer_when_over(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        key: Option<(ClaimKey, Token)>,
        over: oneshot::Receiver<Reply>,
        deadline: Instant,
        answer: oneshot::Sender<Answered>,
    ) {
        let reply = tokio::select! {
            Ok(reply) = over => Ok(reply),
            reply = self.reply_as_it_stands(workspace, id, key, deadline) => reply,
        };
        self.over.forget(id);
        _ = answer.send(reply.map(IntoResponse::into_response));
    }

    async fn reply_as_it_stands(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        key: Option<(ClaimKey, Token)>,
        deadline: Instant,
    ) -> Result<Reply, Problem> {
        let gone = || Kind::Internal.because(format!("the message {id} is gone"));
        let (message, lead) = self.await_over(workspace, id, deadline).await?.ok_or_else(gone)?;
        let reply = Reply::to_first(&message, &lead);
        // What the request is told now is what its key is answered with from now on.
        let Some((key, token)) = key else { return Ok(reply) };
        let outcome = Some(reply.keep(self.store_outcome_body));
        let settle = Command::Settle { token, verdict: oncegate::Verdict::Done, outcome };
        match self.main.apply(&key, settle).await?.value {
            Answer::Applied(_) | Answer::Already(_) => Ok(reply),
            // Whoever finished the message settled it just now.
            _ => match self.main.read(&key).await?.value.filter(|claim| claim.outcome.is_some()) {
                Some(claim) => self.kept_reply(&key, &claim).await,
                None => Ok(reply),
            },
        }
    }

    /// The message when it is over, or as it stands at the deadline. For what another replica may finish: here it is heard of
    /// at once.
    pub async fn await_over(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        deadline: Instant,
    ) -> Result<Option<(Kept<Message>, Kept<Lead>)>, Problem> {
        loop {
            let message = self.find::<Message>(workspace, id).await?;
            let is_open = message.is_some_and(|message| !message.document.status.is_over());
            if !is_open || Instant::now() >= deadline {
                return self.load(workspace, id).await;
            }
            tokio::select! {
                () = tokio::time::sleep_until(deadline.min(Instant::now() + LOOK_EVERY)) => {}
                () = self.worker.stopped() => return self.load(workspace, id).await,
            }
        }
    }
}

enum Step {
    Answer(Response),
    Send(Box<Accepted>),
}

enum Met {
    Duplicate(Outcome),
    /// Duplicates are only observed.
    Unguarded,
    Again,
}

/// What a request asks for.
struct Request<'a> {
    workspace: &'a WorkspaceName,
    asked: Option<&'a Asked>,
    post: &'a Post,
    /// Of its duplicate claim, where they are kept.
    parts: Option<String>,
}

impl Request<'_> {
    /// The claims that it has made, with their tokens.
    fn claims(&self, guard: &Guard, committed: &Committed) -> Claims {
        let mut won = committed.answers.iter().filter_map(|answer| match answer {
            Answer::Won(claim) => Some(claim.token),
            _ => None,
        });
        let key = self.asked.and_then(|asked| Some((asked.key.clone(), won.next()?)));
        let guard = match guard {
            Guard::Nobody => None,
            Guard::Within(key) => won.next().map(|token| (key.clone(), token)),
            Guard::Apart(won) => Some((won.key().clone(), won.token())),
        };
        Claims { key, guard }
    }
}

struct Plan {
    commit: Commit,
    message: Kept<Message>,
    lead: Kept<Lead>,
    job: Job,
}

enum Trouble {
    Store(StoreError),
    Problem(Problem),
}

impl From<Problem> for Trouble {
    fn from(problem: Problem) -> Self {
        Trouble::Problem(problem)
    }
}

impl From<Trouble> for Problem {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Store(error) => error.into(),
            Trouble::Problem(problem) => problem,
        }
    }
}

fn others_were_faster() -> Problem {
    Kind::StoreUnavailable.because("others were faster, every time").retry_after(1)
}
