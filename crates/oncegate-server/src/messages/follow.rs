//! From an accepted message to the answer: sent, or as it stands when the time for waiting is over.

use std::sync::Arc;
use std::time::Duration;

use axum::response::IntoResponse;
use oncegate::{Answer, ClaimKey, Command, Token, Verdict, WorkspaceName};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::Messages;
use super::accept::{Accepted, Answered};
use super::document::{Kept, Lead, Message};
use super::reply::Reply;
use super::send::Tried;
use crate::crash;
use crate::problem::{Kind, Problem};

/// How often a message is looked at that another replica may be sending.
const LOOK_EVERY: Duration = Duration::from_millis(250);

impl Messages {
    /// Sends it, and answers when that is over or has taken too long.
    pub async fn see_through(self: &Arc<Self>, accepted: Accepted, answer: oneshot::Sender<Answered>) {
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
        let settle = Command::Settle { token, verdict: Verdict::Done, outcome };
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
