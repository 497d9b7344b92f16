//! What a worker reports about a send after it has begun, and how a person resolves a send whose result is unknown.

use std::time::Duration;

use bytes::Bytes;
use oncegate_core::job::Reached;
use oncegate_core::{Answer, Claim, Command, Refusal, State as ClaimState, Terms, Time, Token, Verdict, WorkspaceName};
use oncegate_store::{At, Commit, Op, Reading, StoreError, find_written};
use uuid::Uuid;

use super::record::Word;
use super::{Kept, Loaded, NotTaken, Resolved, Send, Sends, Sent, State, is_stale};
use crate::document::{ROUNDS_MAX, Resolution, others_were_faster, until_written};

impl Sends {
    /// Reports that the message was sent. A retry of the same report succeeds. A report after the lease, or after the send was
    /// resolved as not sent, also succeeds unless another worker has begun since: only this worker knows the result.
    pub async fn sent(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        token: Token,
        esp_message_id: Option<String>,
    ) -> Result<Kept, NotTaken> {
        self.tell(workspace, id, token, Word::Sent { esp_message_id }).await
    }

    /// Reports that the message was not sent, or that the result is unknown.
    pub async fn failed(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        token: Token,
        error: String,
        reached: Reached,
    ) -> Result<Kept, NotTaken> {
        self.tell(workspace, id, token, Word::failed(error, reached)).await
    }

    async fn tell(&self, workspace: &WorkspaceName, id: Uuid, token: Token, word: Word) -> Result<Kept, NotTaken> {
        match self.try_to_tell(workspace, id, token, &word).await {
            Ok(Told::Written(kept)) => return Ok(kept),
            Err(NotTaken::Store(error)) => return Err(error.into()),
            Ok(Told::Before(_)) | Err(_) => {}
        }
        // Nothing was written. The first read may be outdated: it came from a server that was since replaced, or that shows commits
        // which its standby does not have. So read again after a confirmed commit.
        self.store.confirm().await?;
        match self.try_to_tell(workspace, id, token, &word).await? {
            Told::Written(kept) | Told::Before(kept) => Ok(kept),
        }
    }

    async fn try_to_tell(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        token: Token,
        word: &Word,
    ) -> Result<Told, NotTaken> {
        let is_sent = matches!(word, Word::Sent { .. });
        let mut is_late = false;
        for _ in 0..ROUNDS_MAX {
            let (kept, job, now) = self.found(workspace, id).await?;
            if kept.document.has_heard(token, word) {
                return Ok(Told::Before(kept));
            }
            let (next, changes) = kept.replaced(kept.document.told(token, word, now), job.as_ref(), now);
            let command = match is_late {
                false => Some(command(token, &next)),
                true => match self.late_command(&kept, token, &next).await {
                    // Another report came between the read of the send and the read of its claim. The next round reads that report.
                    Err(NotTaken::Fenced(_)) if self.found(workspace, id).await?.0.version != kept.version => continue,
                    command => command?,
                },
            };
            let ops = command.map(|command| Op { key: kept.document.key(workspace), command });
            let committed = self.ledger.commit(Commit { ops: ops.into_iter().collect(), changes }).await?;
            match committed.answers.first() {
                _ if committed.is_written() => return Ok(Told::Written(next)),
                _ if is_stale(&committed) => {}
                Some(Answer::Refused(refusal)) if !is_late && may_be_late(refusal) => is_late = true,
                // The send may have been resolved as not sent, also since it was read, although the message was sent.
                Some(Answer::Refused(Refusal::Missing)) if !is_late && is_sent => is_late = true,
                Some(Answer::Refused(refusal)) => return Err(NotTaken::Fenced(refusal.clone())),
                // Another owner has the claim, so this late report is refused.
                Some(other) => return Err(NotTaken::Fenced(outdated(other))),
                None => {}
            }
        }
        Err(others_were_faster().into())
    }

    /// The command for a report after the end of the lease. No worker has begun since, so the report still holds.
    async fn late_command(&self, kept: &Kept, token: Token, next: &Kept) -> Result<Option<Command>, NotTaken> {
        let Reading { value: claim, now } = self.ledger.read(&kept.document.key(&kept.workspace)).await?;
        let Some(claim) = claim else {
            return match kept.document.was_of(token) {
                true => Ok(settled_by_hand(None, next, now)),
                false => Err(NotTaken::Fenced(Refusal::Missing)),
            };
        };
        if claim.token != token {
            return Err(NotTaken::Fenced(Refusal::TokenOutdated { current: claim.token }));
        }
        if claim.state.is_settled() {
            return Err(NotTaken::Fenced(Refusal::SettledOtherwise { state: claim.state }));
        }
        Ok(settled_by_hand(Some(&claim), next, now))
    }

    /// Renews the lease of the worker.
    pub async fn renew(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        token: Token,
        lease: Option<Duration>,
    ) -> Result<Kept, NotTaken> {
        until_written(|| async {
            let (kept, job, now) = self.found(workspace, id).await?;
            let key = kept.document.key(workspace);
            let send = kept.document.leased(lease.unwrap_or(kept.document.lease()), now);
            let (next, changes) = kept.replaced(send, job.as_ref(), now);
            let command = Command::Renew { token, lease };
            let committed = self.ledger.commit(Commit { ops: vec![Op { key, command }], changes }).await?;
            match committed.answers.first() {
                _ if committed.is_written() => Ok(Some(next)),
                Some(Answer::Refused(refusal)) => Err(NotTaken::Fenced(refusal.clone())),
                _ => Ok(None),
            }
        })
        .await
    }

    /// Resolves the send, as a person decides. If the message was not sent, the next worker may send it.
    pub async fn resolve(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        resolution: &Resolution,
        esp_message_id: Option<String>,
    ) -> Result<Kept, NotTaken> {
        self.settle(workspace, id, None, resolution, esp_message_id).await
    }

    /// Resolves the send, as the reconcile hook answered about `kept`. The answer holds only for that attempt. If another worker has
    /// begun meanwhile, the answer is refused.
    pub async fn reconcile(
        &self,
        kept: &Kept,
        resolution: &Resolution,
        esp_message_id: Option<String>,
    ) -> Result<Kept, NotTaken> {
        self.settle(&kept.workspace, kept.id, Some(kept.document.attempt), resolution, esp_message_id).await
    }

    async fn settle(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        attempt: Option<i32>,
        resolution: &Resolution,
        esp_message_id: Option<String>,
    ) -> Result<Kept, NotTaken> {
        until_written(|| async {
            let (kept, job, now) = self.found(workspace, id).await?;
            let state = kept.document.state_at(now);
            if !state.is_open() {
                let state = state.as_str();
                return Err(NotTaken::Wrong(format!("only an unknown or lost send can be resolved; it is {state}")));
            }
            if attempt.is_some_and(|attempt| attempt != kept.document.attempt) {
                return Err(NotTaken::Wrong("another worker has begun it since".into()));
            }
            let key = kept.document.key(workspace);
            let reading = self.ledger.read(&key).await?;
            if let Some(claim) = reading.value.as_ref().filter(|claim| claim.owner_is_alive(reading.now)) {
                return Err(NotTaken::Wrong(format!("a worker is at it, until {}", claim.lease_until)));
            }
            let token = reading.value.as_ref().map(|claim| claim.token.0);
            let token = token.or_else(|| kept.document.said.as_ref().map(|said| said.token));
            let resolved = Resolved { token, ..resolution.at(now) };
            let send = kept.document.resolved(resolved, esp_message_id.clone(), now);
            let (next, changes) = kept.replaced(send, job.as_ref(), now);
            let command = settled_by_hand(reading.value.as_ref(), &next, reading.now);
            let ops = command.map(|command| Op { key, command }).into_iter().collect();
            let is_written = match self.ledger.commit(Commit { ops, changes }).await {
                Ok(committed) => committed.is_written(),
                // The commit may be written although the store reported an error. It counts if it is as durable as an acknowledged one.
                Err(StoreError::Unknown(why)) => {
                    let look = || async {
                        let found = self.load(workspace, At::Id(id)).await?;
                        Ok::<_, StoreError>(
                            found
                                .filter(|(found, ..)| found.version == next.version && found.document == next.document),
                        )
                    };
                    find_written(&*self.store, look).await.ok_or(StoreError::Unknown(why))?;
                    true
                }
                Err(error) => return Err(error.into()),
            };
            Ok(is_written.then_some(next))
        })
        .await
    }

    async fn found(&self, workspace: &WorkspaceName, id: Uuid) -> Result<Loaded, NotTaken> {
        if let Some(found) = self.load(workspace, At::Id(id)).await? {
            return Ok(found);
        }
        // A server that was since replaced may have missed it.
        self.store.confirm().await?;
        self.load(workspace, At::Id(id)).await?.ok_or(NotTaken::Missing)
    }
}

/// A report that was accepted.
enum Told {
    Written(Kept),
    /// The report is a retry of one that was accepted before.
    Before(Kept),
}

/// The command on the claim that an owner's report requires.
fn command(token: Token, next: &Kept) -> Command {
    let settle = |verdict, outcome| Command::Settle { token, verdict, outcome };
    match next.document.state {
        State::Sent => settle(Verdict::Done, Some(outcome(next))),
        State::Unknown => settle(Verdict::Unknown, None),
        // The next worker may begin at once: the message surely was not sent, or it is sent again under its provider key.
        State::Failed | State::Lost | State::Sending => Command::Release { token },
    }
}

/// The command on a claim whose owner is gone or has given it back. A sent message gets a new claim, settled as it is made.
/// A failed send retracts the claim. Any other state leaves the claim unchanged.
fn settled_by_hand(claim: Option<&Claim>, next: &Kept, now: Time) -> Option<Command> {
    match next.document.state {
        State::Sent => Some(Command::Claim(Terms {
            parts: claim.and_then(|claim| claim.parts.clone()),
            outcome: Some(outcome(next)),
            replaces: claim.map(|claim| claim.token),
            // The claim lasts as long as the record, so that a caller who meets the claim can read the send.
            ..Terms::new(
                Time::from_micros(next.document.expires_us).since(now),
                next.document.lease(),
                next.document.lost.of_claim(),
            )
        })),
        State::Failed => claim.map(|claim| Command::Retract { token: claim.token }),
        State::Unknown | State::Lost | State::Sending => None,
    }
}

/// The result of the send, which later workers get.
fn outcome(kept: &Kept) -> Bytes {
    let Send { esp_message_id, sent_us, .. } = &kept.document;
    crate::document::bytes(&Sent {
        id: kept.id,
        esp_message_id: esp_message_id.clone(),
        sent_us: sent_us.unwrap_or_default(),
    })
}

/// Whether the claim is still this worker's, except that its lease has ended.
fn may_be_late(refusal: &Refusal) -> bool {
    let unknown = ClaimState::Unknown;
    matches!(refusal, Refusal::LeaseEnded { .. })
        || *refusal == Refusal::Settled { state: unknown }
        || *refusal == Refusal::SettledOtherwise { state: unknown }
}

fn outdated(met: &Answer) -> Refusal {
    met.met().map_or(Refusal::Missing, |claim| Refusal::TokenOutdated { current: claim.token })
}

impl From<NotTaken> for StoreError {
    fn from(not_taken: NotTaken) -> Self {
        match not_taken {
            NotTaken::Store(error) => error,
            other => StoreError::Refused(other.to_string()),
        }
    }
}
