//! The send log: a worker of any queue asks before it sends, and says after it sent.
//!
//! One send for each campaign and recipient. Whether a worker may send is decided by a **claim** of guard `send`: in flight while a worker is at it, settled
//! when it was sent, given back when it surely was not. Beside the claim, and written in the same commit, are the send's **record**, which people
//! list, and one **job**, which wakes when the worker's lease ends, and leaves the queue when there is nothing more to look at. A record has an end, as its claim has.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use oncegate::Gate;
//! use oncegate::sends::{Begin, Begun, Options};
//!
//! let gate = Gate::open("memory:").await?; // or sqlite:FILE, postgres://…
//! let sends = gate.sends(Options::default()).expect("all of these keep sends");
//! let begin = Begin::new("spring", "ada@example.com")?;
//!
//! let Begun::Proceed(ours) = sends.begin(gate.workspace(), &begin).await? else { panic!("nobody has sent it") };
//! // Here the provider is called, with ours.provider_key.
//! sends.sent(gate.workspace(), ours.id, ours.token, Some("esp-1".into())).await?;
//!
//! // The job comes again.
//! let again = sends.begin(gate.workspace(), &begin).await?;
//! assert!(matches!(again, Begun::Sent(sent) if sent.esp_message_id.as_deref() == Some("esp-1")));
//! # Ok(())
//! # }
//! ```
//!
//! What it promises: of two workers at once one sends. A worker that dies in the middle leaves a send of which nobody can say whether it was sent:
//! with [`Lost::Skip`] and [`Lost::Hold`] nobody sends it again; with [`Lost::Resend`] the next worker does, under the same
//! provider key, so that a provider that honours the key sends one.

mod look;
mod record;
mod tend;
mod verbs;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use oncegate_core::job::Job;
use oncegate_core::limits::{LEASE_MAX, SPAN_MIN};
use oncegate_core::{Answer, ClaimId, Command, GuardName, Refusal, Terms, Time, Token, WorkspaceName};
use oncegate_store::{At, Commit, Committed, MainStore, Op, Reading, StoreError};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

pub use look::{Filter, Page};
pub use record::{Attempt, Kept, Lost, Resolved, Send, State};
pub use tend::Tended;

use crate::ledger::Ledger;
use record::key_of;

/// The guard of sends. Nobody else makes claims under it.
pub static GUARD: LazyLock<GuardName> = LazyLock::new(|| GuardName::new("send").expect("a good name"));

/// What the jobs are that tend to sends.
pub const JOB: &str = "send:tend";

/// Characters of a campaign's, a recipient's, a job's or a template's id, at most.
pub const ID_CHARS_MAX: usize = 256;
/// How often to look again where somebody else was faster.
const ROUNDS: usize = 20;

/// The send log of a store. Cheap to clone.
#[derive(Clone)]
pub struct Sends {
    store: Arc<dyn MainStore>,
    ledger: Arc<Ledger>,
    options: Arc<Options>,
}

#[derive(Clone, Debug)]
pub struct Options {
    pub lost: Lost,
    /// How long a worker may be silent before it counts as dead.
    pub lease: Duration,
    /// How long a send is kept, and is not sent again.
    pub keep: Duration,
    /// Whether campaign and recipient are kept with the claim, too.
    pub store_parts: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            lost: Lost::default(),
            lease: Duration::from_secs(60),
            keep: Duration::from_secs(365 * 24 * 3600),
            store_parts: false,
        }
    }
}

/// What a worker is about to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    campaign: String,
    recipient: String,
    job: Option<String>,
    template: Option<String>,
    lease: Option<Duration>,
}

impl Begin {
    pub fn new(campaign: impl Into<String>, recipient: impl Into<String>) -> Result<Begin, InvalidBegin> {
        let (campaign, recipient) = (checked("campaignId", campaign)?, checked("recipientId", recipient)?);
        Ok(Begin { campaign, recipient, job: None, template: None, lease: None })
    }

    /// The job of the worker's queue, for people to find it.
    pub fn job(self, job: impl Into<String>) -> Result<Begin, InvalidBegin> {
        Ok(Begin { job: Some(checked("jobId", job)?), ..self })
    }

    pub fn template(self, template: impl Into<String>) -> Result<Begin, InvalidBegin> {
        Ok(Begin { template: Some(checked("templateId", template)?), ..self })
    }

    /// How long this worker may be silent before it counts as dead.
    pub fn lease(self, lease: Duration) -> Result<Begin, InvalidBegin> {
        match (SPAN_MIN..=LEASE_MAX).contains(&lease) {
            true => Ok(Begin { lease: Some(lease), ..self }),
            false => Err(InvalidBegin(format!("the lease is {SPAN_MIN:?} to {LEASE_MAX:?}, not {lease:?}"))),
        }
    }
}

impl Begin {
    /// Never beyond the time that a send is kept: past that it is anybody's.
    fn lease_by(&self, options: &Options) -> Duration {
        self.lease.unwrap_or(options.lease).min(options.keep)
    }
}

/// What is wrong with what somebody wants to send: the field, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidBegin(String);

/// An id that somebody else has given: a campaign's, a recipient's, a job's, a template's.
pub fn checked(field: &str, text: impl Into<String>) -> Result<String, InvalidBegin> {
    let text = text.into();
    match (1..=ID_CHARS_MAX).contains(&text.chars().count()) && !text.contains(char::is_control) {
        true => Ok(text),
        false => {
            Err(InvalidBegin(format!("{field}: 1 to {ID_CHARS_MAX} characters, none of them a control character")))
        }
    }
}

/// What a worker is told.
#[derive(Clone, Debug)]
pub enum Begun {
    /// Send it.
    Proceed(Proceed),
    /// It was sent already.
    Sent(Sent),
    /// It may have been sent, and is not to be sent again.
    Unknown { id: Uuid },
    /// Another worker is at it.
    Busy { lease_left: Duration },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proceed {
    pub id: Uuid,
    pub token: Token,
    /// To be handed to the provider: the same over every attempt.
    pub provider_key: Uuid,
    pub attempt: i32,
    pub lease_until: Time,
}

/// What everybody reads who comes later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    pub id: Uuid,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub esp_message_id: Option<String>,
    pub sent_us: i64,
}

/// Why a word about a send changed nothing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotTaken {
    #[error("there is no such send")]
    Missing,
    #[error(transparent)]
    Fenced(Refusal),
    /// It stands otherwise.
    #[error("{0}")]
    Wrong(String),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A send, the job that tends to it, and the store's time.
type Loaded = (Kept, Option<Job>, Time);

impl Sends {
    /// Over the store that the ledger is over, too.
    pub fn over(store: Arc<dyn MainStore>, ledger: Arc<Ledger>, options: Options) -> Sends {
        Sends { store, ledger, options: Arc::new(options) }
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    /// A worker is about to send. The claim decides: of two who come at once, one goes ahead.
    pub async fn begin(&self, workspace: &WorkspaceName, begin: &Begin) -> Result<Begun, StoreError> {
        let key = key_of(workspace, &begin.campaign, &begin.recipient);
        let name = At::Name(key.id.to_string());
        // Nearly always nobody has begun it: so that is tried first, and looked at only if it is not so.
        let mut before: Option<Loaded> = None;
        let mut now = self.now().await?;
        for _ in 0..ROUNDS {
            let (kept, changes) = match &before {
                None => {
                    let id = Uuid::now_v7();
                    let send = Send::begun(None, begin, id, &self.options, now);
                    let kept = Kept { workspace: workspace.clone(), id, version: 1, send };
                    let changes = kept.created(now);
                    (kept, changes)
                }
                Some((kept, job, now)) => {
                    let send = Send::begun(Some(&kept.send), begin, Uuid::now_v7(), &self.options, *now);
                    kept.replaced(send, job.as_ref(), *now)
                }
            };
            let op = Op { key: key.clone(), command: Command::Claim(self.terms(begin)) };
            let committed = self.ledger.commit(Commit { ops: vec![op], changes }).await?;
            match &committed.answers[0] {
                Answer::Won(claim) if committed.is_written() => {
                    return Ok(Begun::Proceed(Proceed {
                        id: kept.id,
                        token: claim.token,
                        provider_key: kept.send.provider_key,
                        attempt: kept.send.attempt,
                        lease_until: claim.lease_until,
                    }));
                }
                // There is a send of that name, or it is not as it was.
                Answer::Won(_) => {}
                Answer::Duplicate(claim) => {
                    let outcome = claim.outcome.as_deref().and_then(|outcome| serde_json::from_slice(outcome).ok());
                    let unreadable = || StoreError::Refused(format!("the outcome of claim {} cannot be read", key.id));
                    return Ok(Begun::Sent(outcome.ok_or_else(unreadable)?));
                }
                Answer::InFlight(claim) => {
                    return Ok(Begun::Busy { lease_left: claim.lease_until.since(committed.now) });
                }
                // Nobody may take over.
                _ => {
                    let found = self.load(workspace, name.clone()).await?;
                    let missing = || StoreError::Refused(format!("the claim {} has lost its send", key.id));
                    return found.map(|(kept, ..)| Begun::Unknown { id: kept.id }).ok_or_else(missing);
                }
            }
            now = committed.now;
            before = self.load(workspace, name.clone()).await?;
        }
        Err(too_busy())
    }

    /// The claim that decides who sends it.
    pub fn claim_id(&self, workspace: &WorkspaceName, begin: &Begin) -> ClaimId {
        key_of(workspace, &begin.campaign, &begin.recipient).id
    }

    fn terms(&self, begin: &Begin) -> Terms {
        Terms {
            window: self.options.keep,
            lease: begin.lease_by(&self.options),
            lost: self.options.lost.of_claim(),
            fingerprint: None,
            attributes: None,
            parts: self.options.store_parts.then(|| json!([begin.campaign, begin.recipient]).to_string()),
            outcome: None,
            replaces: None,
        }
    }

    async fn load(&self, workspace: &WorkspaceName, at: At) -> Result<Option<Loaded>, StoreError> {
        let place = [Kept::place(workspace, at.clone())];
        let job_of = |id| [(workspace.clone(), id)];
        // Each is written onto the version that was read: it does not matter which is read first.
        let (found, jobs) = match at {
            At::Id(id) => {
                let job = job_of(id);
                let (found, jobs) = tokio::join!(self.store.find(&place), self.store.find_jobs(&job));
                (found?.value.remove(0).map(Kept::read).transpose()?, jobs?)
            }
            At::Name(_) => {
                let found = self.store.find(&place).await?.value.remove(0).map(Kept::read).transpose()?;
                let Some(kept) = &found else { return Ok(None) };
                let jobs = self.store.find_jobs(&job_of(kept.id)).await?;
                (found, jobs)
            }
        };
        let Reading { value: mut jobs, now } = jobs;
        Ok(found.map(|kept| (kept, jobs.remove(0), now)))
    }

    async fn now(&self) -> Result<Time, StoreError> {
        Ok(self.store.find_jobs(&[]).await?.now)
    }
}

/// Whether nothing was written, since something was not as it was read. What a claim says is not that.
fn is_stale(committed: &Committed) -> bool {
    committed.conflict.is_some() && committed.answers.iter().all(Answer::is_accepted)
}

fn too_busy() -> StoreError {
    StoreError::Unavailable(format!("others were faster {ROUNDS} times"))
}
