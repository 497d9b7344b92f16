//! From an accepted message to the answer: the message is sent, or the time to wait is over.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::{Answer, ClaimKey, Command, Refusal, Token, Verdict, WorkspaceName};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::accept::Accepted;
use super::record::{Lead, Message, Status};
use super::work::Tried;
use super::{Answered, Messages, Refused, Reply};
use crate::document::Kept;

/// How often a request reads a message that another replica may be sending.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A request that waits for its message.
struct Waiting<R> {
    message: Kept<Message>,
    lead: Kept<Lead>,
    key: Option<(ClaimKey, Token)>,
    /// Receives the reply when the message is over, if this process finishes it.
    over: oneshot::Receiver<R>,
    deadline: Instant,
    answer: oneshot::Sender<Result<Answered<R>, Refused>>,
}

impl<R: Reply> Messages<R> {
    /// Sends the message, and answers when the message is over or the time to wait has passed.
    pub(super) async fn see_through(
        self: &Arc<Self>,
        accepted: Accepted<R>,
        answer: oneshot::Sender<Result<Answered<R>, Refused>>,
    ) {
        let Accepted { task, held, over } = accepted;
        let waiting = Waiting {
            message: task.message.clone(),
            lead: task.lead.clone(),
            key: task.claims.key.clone(),
            over,
            deadline: Instant::now() + self.options.send_wait,
            answer,
        };
        let Some(held) = held else { return self.answer_when_over(waiting).await };
        let mut sending = std::pin::pin!(self.send(held, task));
        match timeout_at(waiting.deadline, &mut sending).await {
            Ok(Tried::Over(reply)) => {
                self.over.forget(waiting.message.id);
                self.watcher.reached("message.finished").await;
                _ = waiting.answer.send(Ok(Answered::now(reply)));
            }
            // The job is retried, or another worker has it.
            Ok(Tried::Open) => self.answer_when_over(waiting).await,
            Err(_) => {
                self.answer_when_over(waiting).await;
                sending.await;
            }
        }
    }

    async fn answer_when_over(&self, waiting: Waiting<R>) {
        let Waiting { message, lead, key, over, deadline, answer } = waiting;
        let reply = tokio::select! {
            Ok(reply) = over => reply,
            found = self.await_over(&message.workspace, message.id, deadline) => {
                // The store cannot be read just now. The request knows only that the message was accepted.
                let (message, lead) = found.ok().flatten().unwrap_or((message.clone(), lead));
                R::to_first(&message, &lead)
            }
        };
        self.over.forget(message.id);
        // From here on, this reply is the answer to the key, until the message is over.
        let reply = match &key {
            Some((key, token)) => self.keep_as_it_stands(key, *token, reply).await,
            None => reply,
        };
        // The client may have hung up.
        _ = answer.send(Ok(Answered::now(reply)));
    }

    /// Keeps the reply under its key. If the key already has another reply, returns that one.
    async fn keep_as_it_stands(&self, key: &ClaimKey, token: Token, reply: R) -> R {
        let outcome = Some(reply.keep(self.options.keep_answers));
        let settle = Command::Settle { token, verdict: Verdict::Done, outcome: outcome.clone() };
        let mut answered = self.main.apply(key, settle).await.map(|reading| reading.value);
        // Claims of keys are never taken over. The lease has ended only because this request was slow.
        if let Ok(Answer::Refused(Refusal::LeaseEnded { .. })) = answered {
            answered =
                self.main.apply(key, Command::Resolve { done: true, outcome }).await.map(|reading| reading.value);
        }
        if !matches!(answered, Ok(Answer::Refused(_))) {
            return reply;
        }
        match self.main.read(key).await.map(|reading| reading.value) {
            Ok(Some(claim)) if claim.token == token && claim.outcome.is_some() => {
                self.kept_reply(key, &claim).await.unwrap_or(reply)
            }
            _ => reply,
        }
    }

    /// The message when it is over, or in its present state at the deadline. Polls, because another replica may finish the
    /// message; a finish in this process is heard of at once. During a shutdown, a message that is being sent is still
    /// awaited, while there is time to record its end. A queued message is left to other replicas.
    pub(super) async fn await_over(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        deadline: Instant,
    ) -> Result<Option<(Kept<Message>, Kept<Lead>)>, Refused> {
        loop {
            let is_stopped = self.queue.is_stopped();
            let message = self.find::<Message>(workspace, id).await?;
            let is_open = message.is_some_and(|message| match message.document.status {
                Status::Queued => !is_stopped,
                status => !status.is_over(),
            });
            if !is_open || Instant::now() >= deadline {
                return self.load(workspace, id).await;
            }
            tokio::select! {
                () = tokio::time::sleep_until(deadline.min(Instant::now() + LOOK_EVERY)) => {}
                () = self.queue.stopped(), if !is_stopped => {}
                () = self.queue.cut_off() => return self.load(workspace, id).await,
            }
        }
    }
}
