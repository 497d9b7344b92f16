//! What workers say of a send after they have begun it, and how a person settles what none could say.

use std::time::Duration;

use bytes::Bytes;
use oncegate_core::job::Reached;
use oncegate_core::{Answer, Claim, Command, Refusal, State as ClaimState, Terms, Time, Token, Verdict, WorkspaceName};
use oncegate_store::{At, Commit, Op, Reading, StoreError, find_written};
use uuid::Uuid;

use super::record::Word;
use super::{Kept, Loaded, NotTaken, ROUNDS, Resolved, Send, Sends, Sent, State, is_stale, too_busy};

impl Sends {
    /// It was sent. The same word again is a success; so is one that comes after the lease, or after it was called unsent, as long as no other worker has begun:
    /// it says what nobody else can.
    pub async fn sent(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        token: Token,
        esp_message_id: Option<String>,
    ) -> Result<Kept, NotTaken> {
        self.tell(workspace, id, token, Word::Sent { esp_message_id }).await
    }

    /// It was not sent, or nobody can say.
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
        // Nothing was written. A server that was replaced, or that shows what its standby does not have, may have misled the
        // first look: the second one is behind a commit.
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
        for _ in 0..ROUNDS {
            let (kept, job, now) = self.found(workspace, id).await?;
            if kept.send.has_heard(token, word) {
                return Ok(Told::Before(kept));
            }
            let (next, changes) = kept.replaced(kept.send.told(token, word, now), job.as_ref(), now);
            let command = match is_late {
                false => Some(command(token, &next)),
                true => match self.late_command(&kept, token, &next).await {
                    // Another word came between the two looks, at the send and at its claim: what it said is in the send now.
                    Err(NotTaken::Fenced(_)) if self.found(workspace, id).await?.0.version != kept.version => continue,
                    command => command?,
                },
            };
            let ops = command.map(|command| Op { key: kept.send.key(workspace), command });
            let committed = self.ledger.commit(Commit { ops: ops.into_iter().collect(), changes }).await?;
            match committed.answers.first() {
                _ if committed.is_written() => return Ok(Told::Written(next)),
                _ if is_stale(&committed) => {}
                Some(Answer::Refused(refusal)) if !is_late && may_be_late(refusal) => is_late = true,
                // It may have been called unsent, also since it was read, and was sent.
                Some(Answer::Refused(Refusal::Missing)) if !is_late && is_sent => is_late = true,
                Some(Answer::Refused(refusal)) => return Err(NotTaken::Fenced(refusal.clone())),
                // A late word met another owner.
                Some(other) => return Err(NotTaken::Fenced(outdated(other))),
                None => {}
            }
        }
        Err(too_busy().into())
    }

    /// What a word does that comes after its worker's lease: nobody has begun since, so what it says is still true.
    async fn late_command(&self, kept: &Kept, token: Token, next: &Kept) -> Result<Option<Command>, NotTaken> {
        let Reading { value: claim, now } = self.ledger.read(&kept.send.key(&kept.workspace)).await?;
        let Some(claim) = claim else {
            return match kept.send.was_of(token) {
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

    /// The worker is still at it.
    pub async fn renew(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        token: Token,
        lease: Option<Duration>,
    ) -> Result<Kept, NotTaken> {
        for _ in 0..ROUNDS {
            let (kept, job, now) = self.found(workspace, id).await?;
            let key = kept.send.key(workspace);
            let send = kept.send.leased(lease.unwrap_or(kept.send.lease()), now);
            let (next, changes) = kept.replaced(send, job.as_ref(), now);
            let command = Command::Renew { token, lease };
            let committed = self.ledger.commit(Commit { ops: vec![Op { key, command }], changes }).await?;
            match committed.answers.first() {
                _ if committed.is_written() => return Ok(next),
                Some(Answer::Refused(refusal)) => return Err(NotTaken::Fenced(refusal.clone())),
                _ => {}
            }
        }
        Err(too_busy().into())
    }

    /// A person says whether it was sent. If it was not, the next worker may send it.
    pub async fn resolve(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        sent: bool,
        esp_message_id: Option<String>,
        by: &str,
        note: Option<String>,
    ) -> Result<Kept, NotTaken> {
        let resolved = Resolved { sent, by: by.to_owned(), note, at_us: 0, token: None };
        self.settle(workspace, id, None, esp_message_id, resolved).await
    }

    /// The same, by whoever was asked about `kept`. What was said of one attempt says nothing of the next: if another worker has begun meanwhile,
    /// it is not taken.
    pub async fn reconcile(
        &self,
        kept: &Kept,
        sent: bool,
        esp_message_id: Option<String>,
        by: &str,
    ) -> Result<Kept, NotTaken> {
        let resolved = Resolved { sent, by: by.to_owned(), note: None, at_us: 0, token: None };
        self.settle(&kept.workspace, kept.id, Some(kept.send.attempt), esp_message_id, resolved).await
    }

    async fn settle(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
        attempt: Option<i32>,
        esp_message_id: Option<String>,
        resolved: Resolved,
    ) -> Result<Kept, NotTaken> {
        for _ in 0..ROUNDS {
            let (kept, job, now) = self.found(workspace, id).await?;
            let state = kept.send.state_at(now);
            if !state.is_open() {
                let state = state.as_str();
                return Err(NotTaken::Wrong(format!("only an unknown or lost send can be resolved; it is {state}")));
            }
            if attempt.is_some_and(|attempt| attempt != kept.send.attempt) {
                return Err(NotTaken::Wrong("another worker has begun it since".into()));
            }
            let key = kept.send.key(workspace);
            let reading = self.ledger.read(&key).await?;
            if let Some(claim) = reading.value.as_ref().filter(|claim| claim.owner_is_alive(reading.now)) {
                return Err(NotTaken::Wrong(format!("a worker is at it, until {}", claim.lease_until)));
            }
            let token = reading.value.as_ref().map(|claim| claim.token.0);
            let token = token.or_else(|| kept.send.said.as_ref().map(|said| said.token));
            let resolved = Resolved { at_us: now.micros(), token, ..resolved.clone() };
            let send = kept.send.resolved(resolved, esp_message_id.clone(), now);
            let (next, changes) = kept.replaced(send, job.as_ref(), now);
            let command = settled_by_hand(reading.value.as_ref(), &next, reading.now);
            let ops = command.map(|command| Op { key, command }).into_iter().collect();
            let is_written = match self.ledger.commit(Commit { ops, changes }).await {
                Ok(committed) => committed.is_written(),
                // It may be written all the same: it counts if it is as durable as an acknowledged commit.
                Err(StoreError::Unknown(why)) => {
                    let look = || async {
                        let found = self.load(workspace, At::Id(id)).await?;
                        Ok::<_, StoreError>(
                            found.filter(|(found, ..)| found.version == next.version && found.send == next.send),
                        )
                    };
                    find_written(&*self.store, look).await.ok_or(StoreError::Unknown(why))?;
                    true
                }
                Err(error) => return Err(error.into()),
            };
            if is_written {
                return Ok(next);
            }
        }
        Err(too_busy().into())
    }

    async fn found(&self, workspace: &WorkspaceName, id: Uuid) -> Result<Loaded, NotTaken> {
        if let Some(found) = self.load(workspace, At::Id(id)).await? {
            return Ok(found);
        }
        // A server that was replaced may not have it.
        self.store.confirm().await?;
        self.load(workspace, At::Id(id)).await?.ok_or(NotTaken::Missing)
    }
}

/// A word that was taken.
enum Told {
    Written(Kept),
    /// It had been said before.
    Before(Kept),
}

/// What its owner's word does to the claim.
fn command(token: Token, next: &Kept) -> Command {
    let settle = |verdict, outcome| Command::Settle { token, verdict, outcome };
    match next.send.state {
        State::Sent => settle(Verdict::Done, Some(outcome(next))),
        State::Unknown => settle(Verdict::Unknown, None),
        // The next worker may begin at once: either it surely was not sent, or it is sent again under its key.
        State::Failed | State::Lost | State::Sending => Command::Release { token },
    }
}

/// What settles a claim whose owner is gone, or has given it back: one that is settled is put into its place, or it is taken back; or it stays as it is.
fn settled_by_hand(claim: Option<&Claim>, next: &Kept, now: Time) -> Option<Command> {
    match next.send.state {
        State::Sent => Some(Command::Claim(Terms {
            // As long as the record: whoever is told of a send can look at it.
            window: Time::from_micros(next.send.expires_us).since(now),
            lease: next.send.lease(),
            lost: next.send.lost.of_claim(),
            fingerprint: None,
            attributes: None,
            parts: claim.and_then(|claim| claim.parts.clone()),
            outcome: Some(outcome(next)),
            replaces: claim.map(|claim| claim.token),
        })),
        State::Failed => claim.map(|claim| Command::Retract { token: claim.token }),
        State::Unknown | State::Lost | State::Sending => None,
    }
}

/// What everybody reads who comes later.
fn outcome(kept: &Kept) -> Bytes {
    let Send { esp_message_id, sent_us, .. } = &kept.send;
    crate::document::bytes(&Sent {
        id: kept.id,
        esp_message_id: esp_message_id.clone(),
        sent_us: sent_us.unwrap_or_default(),
    })
}

/// The claim is still the worker's, but for its lease.
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
