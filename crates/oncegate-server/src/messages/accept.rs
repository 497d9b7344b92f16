//! A POST, from its body to the commit that accepts it.

use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use oncegate::store::find_written;
use oncegate::{Answer, Claim, ClaimKey, Command, OnFailure, StoreError, Time, WorkspaceName};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::Messages;
use super::contact::Found;
use super::document::{Kept, Lead, Message, Status};
use super::events::Event;
use super::idempotency::Asked;
use super::plan::{Plan, Request};
use super::post::Post;
use super::reply::Reply;
use super::send::{Claims, Task};
use super::separate_guard::{self, Passed, Won, message_of};
use crate::config::Mode;
use crate::crash;
use crate::problem::{Kind, Problem};
use oncegate::worker::Held;

/// How many times a request starts over because concurrent writes won.
pub const ROUNDS_MAX: usize = 32;
pub type Answered = Result<Response, Problem>;

/// The outcome of a request.
enum Outcome {
    Accepted(Box<Accepted>),
    Duplicate(Box<Duplicate>),
    /// The original message is not written yet.
    Pending {
        claim: ClaimKey,
    },
    /// Another request has used the key just now.
    KeyTaken,
}

/// A message that is written and has to be sent.
pub struct Accepted {
    pub task: Task,
    /// The lease, if this request sends the message at once. Otherwise the job waits in the queue.
    pub held: Option<Held>,
    pub over: oneshot::Receiver<Reply>,
}

/// The same message was posted before.
struct Duplicate {
    message: Kept<Message>,
    lead: Kept<Lead>,
    claim: ClaimKey,
    age: Duration,
    /// How the original was found.
    how: &'static str,
}

/// What stops a duplicate of this request.
pub enum Guard {
    Nobody,
    /// A claim in the commit that writes the message.
    Within(ClaimKey),
    Apart(Won),
}

impl Messages {
    /// Runs to its end, even if the client no longer waits for the answer.
    pub async fn post(
        self: Arc<Self>,
        workspace: WorkspaceName,
        asked: Option<Asked>,
        body: Bytes,
        answer: oneshot::Sender<Answered>,
    ) {
        let _under_way = self.queue.under_way();
        crash::point("message.received").await;
        // The client may have hung up.
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
                Outcome::Duplicate(duplicate) => {
                    let Duplicate { message, lead, claim, age, how } = *duplicate;
                    Event::DuplicateBlocked(how).tell(workspace, Some(&claim), Some(message.id), age.as_secs_f64());
                    Reply::to_duplicate(&message, &lead, age.as_secs())
                }
                Outcome::Pending { claim } => {
                    Event::DuplicatePending.tell(workspace, Some(&claim), None, 0.0);
                    // Nothing is kept under the key: a retry is decided anew, because the outcome is not known yet.
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
                separate_guard::Asked::Won(won) => Guard::Apart(won),
                separate_guard::Asked::Unguarded => Guard::Nobody,
                separate_guard::Asked::Pending => return Ok(Outcome::Pending { claim: key }),
                separate_guard::Asked::Duplicate { message, age, waited } => {
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

    /// Writes everything in one commit, or finds the request that was first. Tells the guard store the outcome, unless the
    /// outcome is unknown.
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
            Ok(Outcome::Duplicate(duplicate)) => won.settle(duplicate.message.id, self.config.lease).await,
            // The message may be written. The fence decides once the lease has ended.
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
        let mut slot = self.queue.try_slot(request.workspace);
        for round in 0..ROUNDS_MAX {
            if round > 0 {
                found = self.look(request.workspace, &request.post.contact).await?;
            }
            let Plan { mut commit, message, lead, job } = self.plan(request, &found, guard, slot.is_some());
            if let Guard::Apart(won) = &*guard {
                match self.pass_fence(won, message.id).await? {
                    Passed::Yes(change) => commit.changes.push(*change),
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
                // The answer got lost: a read of the store says whether the commit was written.
                Err(StoreError::Unknown(_)) => find_written(&*self.store, || self.claims_if_written(&message)).await,
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

    /// The claims of a message, if it has been written.
    async fn claims_if_written(&self, message: &Kept<Message>) -> Result<Option<Claims>, Problem> {
        match self.find::<Message>(&message.workspace, message.id).await? {
            Some(written) => Ok(Some(self.claims_of(&written).await?)),
            None => Ok(None),
        }
    }

    /// Decides what a duplicate claim in the main store means for this request.
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
        // The claim was kept when the message failed, but the configuration now releases failed messages.
        if message.document.status == Status::Failed && self.releases() {
            self.main.apply(&claim.key, Command::Retract { token: claim.token }).await?;
            return Ok(Met::Again);
        }
        let lead = match lead.filter(|lead| lead.id == message.document.lead) {
            Some(lead) => lead.clone(),
            None => self.lead_of(&message).await?,
        };
        let (claim, how) = (claim.key.clone(), "lock_resolved");
        let duplicate = Duplicate { message, lead, claim, age, how };
        Ok(Met::Duplicate(Outcome::Duplicate(Box::new(duplicate))))
    }

    async fn duplicate(
        &self,
        message: Uuid,
        claim: ClaimKey,
        age: Duration,
        how: &'static str,
    ) -> Result<Outcome, Problem> {
        match self.load(&claim.workspace, message).await? {
            Some((message, lead)) => Ok(Outcome::Duplicate(Box::new(Duplicate { message, lead, claim, age, how }))),
            None => Ok(Outcome::Pending { claim }),
        }
    }

    pub fn releases(&self) -> bool {
        self.config.failed == OnFailure::Release
    }

    /// Whether the message failed for certain and, by the configuration, releases its key.
    pub async fn is_released(&self, workspace: &WorkspaceName, message: Uuid) -> Result<bool, Problem> {
        let message = if self.releases() { self.find::<Message>(workspace, message).await? } else { None };
        Ok(message.is_some_and(|message| message.document.status == Status::Failed))
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

pub fn others_were_faster() -> Problem {
    Kind::StoreUnavailable.because("others were faster, every time").retry_after(1)
}
