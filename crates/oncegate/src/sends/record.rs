//! The record of a send, and how each report changes it. Pure: no clock, no store.

use std::time::Duration;

use oncegate_core::job::{self, Job, Reached, Tries};
use oncegate_core::{ClaimKey, Time, Token, WorkspaceName};
use oncegate_store::Change;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Begin, GUARD, JOB, Options};
use crate::document::{self, Document, Resolved};

/// The kind of the records of sends.
pub const KIND: &str = "send";
/// How many attempts a send keeps: the last ones.
const ATTEMPTS_KEPT: usize = 20;
/// How much longer the record is kept than the send. The claim expires a little later than the send, since its time counts from
/// the commit. A caller that meets the claim must still find the send.
const LINGERS: Duration = Duration::from_secs(60);
/// The job has no reason to fail; if it does, it is retried without limit.
const TRIES: Tries = Tries { max: i32::MAX, pause: Duration::from_secs(1), pause_max: Duration::from_secs(60) };

/// What happens to a send whose worker died in the middle of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lost {
    /// The next worker sends it again, under the same provider key.
    #[default]
    Resend,
    /// No worker sends it again, and no person has to look.
    Skip,
    /// No worker sends it again until a person or the reconcile hook has resolved it.
    Hold,
}

impl Lost {
    /// The name of the policy, as the API shows it and the stores write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Lost::Resend => "resend",
            Lost::Skip => "skip",
            Lost::Hold => "hold",
        }
    }

    /// The same policy, for the claim.
    pub(super) const fn of_claim(self) -> oncegate_core::Lost {
        match self {
            Lost::Resend => oncegate_core::Lost::TakeOver,
            Lost::Skip | Lost::Hold => oncegate_core::Lost::Hold,
        }
    }

    /// The state of a send that may have reached the recipient, and whose worker reports no more.
    const fn state(self) -> State {
        match self {
            Lost::Resend => State::Lost,
            Lost::Skip | Lost::Hold => State::Unknown,
        }
    }
}

/// The state of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// A worker is sending it.
    Sending,
    /// It was sent: a worker, a person or the reconcile hook has said so.
    Sent,
    /// Surely not sent: the next worker may try.
    Failed,
    /// It may have been sent. The next worker sends it again, under the same provider key.
    Lost,
    /// It may have been sent. No worker sends it again until it is resolved.
    Unknown,
}

impl State {
    /// All states.
    pub const ALL: [State; 5] = [State::Sending, State::Sent, State::Failed, State::Lost, State::Unknown];

    /// The name of the state, as the API shows it and the stores write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Sending => "sending",
            State::Sent => "sent",
            State::Failed => "failed",
            State::Lost => "lost",
            State::Unknown => "unknown",
        }
    }

    /// The state with this name; `None` if no state has it.
    pub fn parse(name: &str) -> Option<State> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// Whether a person, or the reconcile hook, may resolve a send in this state.
    pub const fn is_open(self) -> bool {
        matches!(self, State::Lost | State::Unknown)
    }
}

/// One worker's attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The number of the attempt: 1 for the first.
    pub number: i32,
    /// The id of the job in the worker's own queue, if the worker gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// When the worker began the attempt.
    pub begun_us: i64,
    /// When the end of the attempt was recorded; `None` before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_us: Option<i64>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The document in the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Send {
    /// The id of the campaign.
    pub campaign: String,
    /// The id of the recipient.
    pub recipient: String,
    /// The id of the template, if a worker gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// The same for every attempt, so that a provider that honours it sends one message.
    pub provider_key: Uuid,
    /// The stored state. People see [`Send::state_at`].
    pub state: State,
    /// The policy under which the last attempt began.
    pub lost: Lost,
    /// How many workers have begun it.
    pub attempt: i32,
    /// The last attempts.
    pub attempts: Vec<Attempt>,
    /// The length of the last worker's lease.
    pub lease_us: i64,
    /// The end of the last worker's lease.
    pub lease_until_us: i64,
    /// The last report that was accepted, so that its retry is recognised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<Said>,
    /// The provider's id of the message, if it was sent and the id is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub esp_message_id: Option<String>,
    /// When the store recorded that the message was sent; `None` before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_us: Option<i64>,
    /// The last time that a person or the reconcile hook resolved the send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Resolved>,
    /// How often the reconcile hook was asked without a result.
    #[serde(default)]
    pub asked: u32,
    /// When the first attempt began.
    pub created_us: i64,
    /// When the send expires. After that it may be sent anew.
    pub expires_us: i64,
}

/// A worker's report about its attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    pub token: i64,
    pub word: Word,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    Sent { esp_message_id: Option<String> },
    Failed { error: String, maybe: bool },
}

impl Word {
    pub fn failed(error: String, reached: Reached) -> Word {
        Word::Failed { error, maybe: reached == Reached::Maybe }
    }
}

impl Send {
    /// The send with another attempt, the first or a later one.
    pub(super) fn begun(before: Option<&Send>, begin: &Begin, id: Uuid, options: &Options, now: Time) -> Send {
        let lease = begin.lease_by(options);
        let before = before.filter(|send| now.micros() < send.expires_us);
        let attempt = before.map_or(0, |send| send.attempt) + 1;
        let mut attempts = before.map(|send| send.attempts.clone()).unwrap_or_default();
        if attempts.len() == ATTEMPTS_KEPT {
            attempts.remove(0);
        }
        let begun_us = now.micros();
        attempts.push(Attempt { number: attempt, job: begin.job.clone(), begun_us, ended_us: None, error: None });
        Send {
            campaign: begin.campaign.clone(),
            recipient: begin.recipient.clone(),
            template: begin.template.clone().or_else(|| before.and_then(|send| send.template.clone())),
            provider_key: before.map_or(id, |send| send.provider_key),
            state: State::Sending,
            lost: options.lost,
            attempt,
            attempts,
            lease_us: 0,
            lease_until_us: 0,
            said: None,
            esp_message_id: None,
            sent_us: None,
            resolved: before.and_then(|send| send.resolved.clone()),
            asked: 0,
            created_us: before.map_or(now.micros(), |send| send.created_us),
            expires_us: (now + options.keep).micros(),
        }
        .leased(lease, now)
    }

    pub(super) fn leased(&self, lease: Duration, now: Time) -> Send {
        let lease_us = i64::try_from(lease.as_micros()).unwrap_or(i64::MAX);
        // Sets the state too: the end of the lease may be stored already, if the clock has stepped back since.
        Send {
            state: State::Sending,
            lease_us,
            lease_until_us: (now + lease).micros().min(self.expires_us),
            ..self.clone()
        }
    }

    pub(super) fn lease(&self) -> Duration {
        Duration::from_micros(self.lease_us.unsigned_abs())
    }

    /// The send after a worker's report.
    pub(super) fn told(&self, token: Token, word: &Word, now: Time) -> Send {
        let mut send = self.ended(now);
        send.said = Some(Said { token: token.0, word: word.clone() });
        match word {
            Word::Sent { esp_message_id } => send.sent(esp_message_id.clone(), now),
            Word::Failed { error, maybe } => {
                if let Some(last) = send.attempts.last_mut() {
                    last.error = Some(error.clone());
                }
                let state = if *maybe { self.lost.state() } else { State::Failed };
                // After a new report the reconcile hook may be asked again.
                Send { state, asked: 0, ..send }
            }
        }
    }

    /// The send after a person, or the reconcile hook, has resolved it.
    pub(super) fn resolved(&self, resolved: Resolved, esp_message_id: Option<String>, now: Time) -> Send {
        let send = Send { resolved: Some(resolved.clone()), ..self.ended(now) };
        match resolved.sent {
            true => send.sent(esp_message_id, now),
            false => Send { state: State::Failed, ..send },
        }
    }

    /// The send after the end of its worker's lease.
    pub(super) fn overdue(&self, now: Time) -> Send {
        Send { state: self.lost.state(), ..self.ended(now) }
    }

    fn sent(self, esp_message_id: Option<String>, now: Time) -> Send {
        Send { state: State::Sent, esp_message_id, sent_us: Some(now.micros()), ..self }
    }

    fn ended(&self, now: Time) -> Send {
        let mut send = self.clone();
        if let Some(last) = send.attempts.last_mut() {
            last.ended_us.get_or_insert(now.micros());
        }
        send
    }

    /// The state at `now`: when the worker's lease ends, the send is lost or unknown at once.
    pub fn state_at(&self, now: Time) -> State {
        match self.state {
            State::Sending if now.micros() >= self.lease_until_us => self.lost.state(),
            state => state,
        }
    }

    /// Whether this report was accepted before, and its answer was lost.
    pub(super) fn has_heard(&self, token: Token, word: &Word) -> bool {
        self.said.as_ref().is_some_and(|said| said.token == token.0 && said.word == *word)
    }

    /// Whether the last attempt belongs to this token although its claim is gone: the worker gave it back, or a person retracted it.
    pub(super) fn was_of(&self, token: Token) -> bool {
        let said = self.said.as_ref().map(|said| said.token);
        let resolved =
            self.resolved.as_ref().filter(|_| self.state == State::Failed).and_then(|resolved| resolved.token);
        matches!(self.state, State::Failed | State::Lost) && (said == Some(token.0) || resolved == Some(token.0))
    }

    /// When the job has to check the send next, if ever.
    pub(super) fn wakes_at(&self) -> Option<Time> {
        let micros = match self.state {
            State::Sending => self.lease_until_us,
            // At once, because a reconcile hook may have to be asked.
            State::Unknown if self.asked == 0 => {
                self.attempts.last().and_then(|last| last.ended_us).unwrap_or(self.lease_until_us)
            }
            State::Sent | State::Failed | State::Lost | State::Unknown => return None,
        };
        Some(Time::from_micros(micros))
    }

    pub(super) fn key(&self, workspace: &WorkspaceName) -> ClaimKey {
        key_of(workspace, &self.campaign, &self.recipient)
    }
}

pub(super) fn key_of(workspace: &WorkspaceName, campaign: &str, recipient: &str) -> ClaimKey {
    ClaimKey::of(workspace, &GUARD, &[Some(campaign), Some(recipient)])
}

pub(super) fn list_of(campaign: &str) -> String {
    format!("campaign:{campaign}")
}

/// A send, with its workspace, id and version.
pub type Kept = document::Kept<Send>;

impl Document for Send {
    const KIND: &'static str = KIND;

    fn state(&self) -> Option<String> {
        Some(self.state.as_str().to_owned())
    }

    fn expires_at(&self) -> Option<Time> {
        Some(Time::from_micros(self.expires_us) + LINGERS)
    }
}

impl Kept {
    /// Creates the record, and the job for the end of the lease.
    pub(super) fn created(&self, now: Time) -> Vec<Change> {
        let key = self.document.key(&self.workspace).id.to_string();
        let lists = vec![list_of(&self.document.campaign)];
        let create = Change::Create { record: self.record(), names: vec![key], lists };
        [Some(create), self.tended(self.document.wakes_at(), None, now)].into_iter().flatten().collect()
    }

    /// Replaces the record with `send`, and sets the job to wake when `send` has to be checked.
    pub(super) fn replaced(&self, send: Send, job: Option<&Job>, now: Time) -> (Kept, Vec<Change>) {
        let wakes_at = send.wakes_at();
        self.replaced_until(send, wakes_at, job, now)
    }

    /// Like `replaced`, with the time of the next check.
    ///
    /// Every change of the job is written together with the record. A job that has left the queue and come back begins again with
    /// its first version. A worker that still holds the earlier job could take it for the new one. The record's versions only grow.
    pub(super) fn replaced_until(
        &self,
        send: Send,
        wakes_at: Option<Time>,
        job: Option<&Job>,
        now: Time,
    ) -> (Kept, Vec<Change>) {
        let next = self.with(send);
        let replace = Change::replace(next.record());
        let changes = [Some(replace), next.tended(wakes_at, job, now)].into_iter().flatten().collect();
        (next, changes)
    }

    /// Sets the job to wake at `wakes_at`, or removes it if there is nothing more to check. A worker that has leased it finds it changed.
    fn tended(&self, wakes_at: Option<Time>, job: Option<&Job>, now: Time) -> Option<Change> {
        match (wakes_at, job) {
            (Some(due_at), Some(job)) => {
                Some(Change::Requeue { job: job.again(job.payload.clone(), due_at), stands_until: Time::NEVER })
            }
            (Some(due_at), None) => {
                let new = Job::new(&self.workspace, self.id, JOB, Default::default(), TRIES, now);
                Some(Change::Enqueue(Job { due_at, ..new }))
            }
            // Dequeued as a pending job, so that this also works after the end of a worker's lease.
            (None, Some(job)) => Some(Change::Dequeue(Job { state: job::State::Pending, ..job.clone() })),
            (None, None) => None,
        }
    }
}
