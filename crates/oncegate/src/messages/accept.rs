//! A post, up to the commit that accepts it.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::{Answer, Claim, ClaimKey, Command, Time, WorkspaceName};
use oncegate_store::{StoreError, find_written};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::contact::{Found, Post};
use super::plan::{Plan, Request};
use super::record::{Lead, Message, Status};
use super::separate_guard::{Passed, Separate, Won, message_of};
use super::work::{Claims, Task};
use super::{Answered, Asked, Event, Messages, Mode, Refused, Reply};
use crate::document::{Kept, ROUNDS_MAX, others_were_faster};
use crate::queue::Held;

/// The outcome of a request.
enum Outcome<R> {
    Accepted(Box<Accepted<R>>),
    Duplicate(Box<Duplicate>),
    /// The original message is not written yet.
    Pending {
        claim: ClaimKey,
    },
    /// Another request has used the key just now.
    KeyTaken,
}

/// A message that is written and has to be sent.
pub struct Accepted<R> {
    pub task: Task,
    /// The lease, if this request sends the message at once. Otherwise the job waits in the queue.
    pub held: Option<Held>,
    pub over: oneshot::Receiver<R>,
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
    None,
    /// A claim in the commit that writes the message.
    Within(ClaimKey),
    Separate(Won),
}

impl<R: Reply> Messages<R> {
    /// Accepts the message and sends it, or answers a duplicate. Goes on to the end even if no receiver waits for the answer.
    pub async fn post_to_end(
        self: Arc<Self>,
        workspace: WorkspaceName,
        asked: Option<Asked>,
        post: Post,
        answer: oneshot::Sender<Result<Answered<R>, Refused>>,
    ) {
        let _under_way = self.queue.under_way();
        self.watcher.reached("message.received").await;
        // The client may have hung up.
        match self.accept(&workspace, asked.as_ref(), &post).await {
            Ok(Step::Answer(answered)) => _ = answer.send(Ok(answered)),
            Ok(Step::Send(accepted)) => self.see_through(*accepted, answer).await,
            Err(refused) => _ = answer.send(Err(refused)),
        }
    }

    async fn accept(&self, workspace: &WorkspaceName, asked: Option<&Asked>, post: &Post) -> Result<Step<R>, Refused> {
        for _ in 0..ROUNDS_MAX {
            if let Some(asked) = asked
                && let Some(answered) = self.answer_of_key(asked).await?
            {
                return Ok(Step::Answer(answered));
            }
            let reply = match self.try_accept(workspace, asked, post).await? {
                Outcome::Accepted(accepted) => return Ok(Step::Send(accepted)),
                Outcome::Duplicate(duplicate) => {
                    let Duplicate { message, lead, claim, age, how } = *duplicate;
                    self.watcher.message(Event::DuplicateBlocked(how), workspace, Some(&claim), Some(message.id), age);
                    R::to_duplicate(&message, &lead, age.as_secs())
                }
                Outcome::Pending { claim } => {
                    self.watcher.message(Event::DuplicatePending, workspace, Some(&claim), None, Duration::ZERO);
                    // Nothing is kept under the key: a retry is decided anew, because the outcome is not known yet.
                    return Ok(Step::Answer(Answered::now(R::to_pending_duplicate())));
                }
                Outcome::KeyTaken => continue,
            };
            match asked {
                Some(asked) if !self.keep_under_key(asked, &reply).await? => continue,
                _ => return Ok(Step::Answer(Answered::now(reply))),
            }
        }
        Err(others_were_faster().into())
    }

    async fn try_accept(
        &self,
        workspace: &WorkspaceName,
        asked: Option<&Asked>,
        post: &Post,
    ) -> Result<Outcome<R>, Refused> {
        let found = self.look(workspace, &post.contact).await?;
        let known = found.lead.as_ref().map(|lead| &lead.document);
        self.check_channel(workspace, post, known)?;
        let (key, parts) = post.key(workspace, known);
        let parts = self.options.store_parts.then(|| serde_json::to_string(&parts).expect("texts are JSON"));
        let guard = match (&self.separate, self.options.mode) {
            (_, Mode::Off) => Guard::None,
            (None, _) => Guard::Within(key.clone()),
            (Some(ledger), _) => match self.claim_separate(ledger, &key, parts.clone()).await? {
                Separate::Won(won) => Guard::Separate(won),
                Separate::Unguarded => Guard::None,
                Separate::Pending => return Ok(Outcome::Pending { claim: key }),
                Separate::Duplicate { message, age, waited } => {
                    let how = if waited { "lock_resolved_polled" } else { "lock_resolved" };
                    return self.duplicate(message, key, age, how).await;
                }
            },
        };
        self.watcher.reached("message.claimed").await;
        let request = Request { workspace, asked, post, parts };
        let outcome = self.write(&request, found, guard, &key).await;
        self.watcher.reached("message.committed").await;
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
    ) -> Result<Outcome<R>, Refused> {
        let mut guard = guard;
        let written = self.write_within(request, found, &mut guard, key).await;
        self.watcher.reached("message.written").await;
        let Guard::Separate(won) = &guard else { return written };
        match &written {
            Ok(Outcome::Accepted(accepted)) => won.settle(accepted.task.message.id, self.options.lease).await,
            Ok(Outcome::Duplicate(duplicate)) => won.settle(duplicate.message.id, self.options.lease).await,
            // The message may be written. The fence decides once the lease has ended.
            Err(Refused::Store(StoreError::Unknown(_))) => {}
            Ok(_) | Err(_) => won.release().await,
        }
        written
    }

    async fn write_within(
        &self,
        request: &Request<'_>,
        mut found: Found,
        guard: &mut Guard,
        key: &ClaimKey,
    ) -> Result<Outcome<R>, Refused> {
        let mut slot = self.queue.try_slot(request.workspace);
        for round in 0..ROUNDS_MAX {
            if round > 0 {
                found = self.look(request.workspace, &request.post.contact).await?;
            }
            let Plan { mut commit, message, lead, job } = self.plan(request, &found, guard, slot.is_some());
            if let Guard::Separate(won) = &*guard {
                match self.pass_fence(won, message.id).await? {
                    Passed::Yes(change) => commit.changes.push(*change),
                    Passed::Duplicate(original) if self.options.mode == Mode::Observe => {
                        let (workspace, nothing) = (request.workspace, Duration::ZERO);
                        self.watcher.message(Event::DuplicateObserved, workspace, Some(key), Some(original), nothing);
                        won.settle(original, self.options.lease).await;
                        *guard = Guard::None;
                        continue;
                    }
                    Passed::Duplicate(original) => {
                        return self.duplicate(original, key.clone(), Duration::ZERO, "lock_resolved").await;
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
            let committed = committed?;
            if request.asked.is_some() && !committed.answers[0].is_accepted() {
                return Ok(Outcome::KeyTaken);
            }
            if let Some(claim) = committed.answers.iter().find_map(Answer::met) {
                match self.met(claim, committed.now, found.lead.as_ref()).await? {
                    Met::Duplicate(duplicate) => return Ok(duplicate),
                    Met::Unguarded => *guard = Guard::None,
                    Met::Again => {}
                }
            }
        }
        Err(others_were_faster().into())
    }

    /// The claims of a message, if it has been written.
    async fn claims_if_written(&self, message: &Kept<Message>) -> Result<Option<Claims>, Refused> {
        match self.find::<Message>(&message.workspace, message.id).await? {
            Some(written) => Ok(Some(self.claims_of(&written).await?)),
            None => Ok(None),
        }
    }

    /// Decides what a duplicate claim in the main store means for this request.
    async fn met(&self, claim: &Claim, now: Time, lead: Option<&Kept<Lead>>) -> Result<Met<R>, Refused> {
        let age = now.since(claim.created_at);
        let workspace = &claim.key.workspace;
        let pending = || Ok(Met::Duplicate(Outcome::Pending { claim: claim.key.clone() }));
        let Some(id) = message_of(claim) else { return pending() };
        if self.options.mode == Mode::Observe {
            self.watcher.message(Event::DuplicateObserved, workspace, Some(&claim.key), Some(id), age);
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
    ) -> Result<Outcome<R>, Refused> {
        match self.load(&claim.workspace, message).await? {
            Some((message, lead)) => Ok(Outcome::Duplicate(Box::new(Duplicate { message, lead, claim, age, how }))),
            None => Ok(Outcome::Pending { claim }),
        }
    }
}

enum Step<R> {
    Answer(Answered<R>),
    Send(Box<Accepted<R>>),
}

enum Met<R> {
    Duplicate(Outcome<R>),
    /// Duplicates are only observed.
    Unguarded,
    Again,
}
