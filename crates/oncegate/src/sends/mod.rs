//! The send log: a worker of any queue asks before it sends, and reports after it sent.
//!
//! There is one send for each campaign and recipient. A **claim** of guard `send` decides whether a worker may send. The claim
//! is in flight while a worker sends, settled when the message was sent, and given back when it surely was not sent.
//!
//! Two more entries are written in the same commit as the claim. The send's **record** is what people list. One **job** wakes
//! when the worker's lease ends, and leaves the queue when there is nothing more to check. The record expires, as the claim does.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use oncegate::Gate;
//! use oncegate::sends::{Begin, Begun, Options};
//!
//! let gate = Gate::open("memory:").await?; // or sqlite:FILE, postgres://…
//! let sends = gate.sends(Options::default());
//! let begin = Begin::new("spring", "ada@example.com")?;
//!
//! let Begun::Proceed(ours) = sends.begin(&begin).await? else { panic!("it is a new send") };
//! // Here the provider is called, with ours.provider_key.
//! sends.sent(ours.id, ours.token, Some("esp-1".into())).await?;
//!
//! // The job comes again.
//! let again = sends.begin(&begin).await?;
//! assert!(matches!(again, Begun::Sent(sent) if sent.esp_message_id.as_deref() == Some("esp-1")));
//! # Ok(())
//! # }
//! ```
//!
//! What it promises: of two workers at the same time, one sends. A worker that dies in the middle leaves a send whose result
//! is unknown. With [`Lost::Skip`] and [`Lost::Hold`] no worker sends it again. With [`Lost::Resend`] the next worker sends it
//! again under the same provider key, so that a provider that honours the key sends one message.

mod lease_expiry;
mod query;
mod record;
mod send;
mod verbs;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use oncegate_core::job::{Job, Reached};
use oncegate_core::limits::{LEASE_MAX, SPAN_MIN};
use oncegate_core::{Answer, ClaimId, Command, GuardName, Refusal, Terms, Time, Token, WorkspaceName};
use oncegate_store::{At, Commit, Committed, MainStore, Op, Reading, StoreError};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

pub use crate::document::{Resolution, Resolved};
pub use lease_expiry::Tended;
pub use query::{Filter, Page};
pub use record::{Attempt, Kept, Lost, Send, State};
pub use send::{Delivery, SendError};

use crate::document::{self, ROUNDS_MAX, others_were_faster};
use crate::ledger::Ledger;
use crate::run::Failure;
use crate::scoped::Scoped;
use record::key_of;

/// The guard of sends. No other part of the system makes claims under it.
pub static GUARD: LazyLock<GuardName> = LazyLock::new(|| GuardName::new("send").expect("a good name"));

/// The kind of the jobs that handle the end of a worker's lease.
pub const JOB: &str = "send:tend";

/// The longest id of a campaign, recipient, job or template, in characters.
pub const ID_CHARS_MAX: usize = 256;
/// The send log of a store. Cheap to clone.
#[derive(Clone)]
pub struct Sends {
    pub(crate) store: Arc<dyn MainStore>,
    ledger: Arc<Ledger>,
    options: Arc<Options>,
}

/// The settings of a send log.
#[derive(Clone, Debug)]
pub struct Options {
    /// What happens to a send whose worker died in the middle of it.
    pub lost: Lost,
    /// How long a worker may be silent before it counts as dead.
    pub lease: Duration,
    /// How long a send is kept. During this time it is not sent again.
    pub keep: Duration,
    /// Whether campaign and recipient are also stored with the claim.
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

/// A send that a worker is about to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    campaign: String,
    recipient: String,
    job: Option<String>,
    template: Option<String>,
    lease: Option<Duration>,
}

impl Begin {
    /// A send of a campaign to a recipient. Each is an id of 1 to [`ID_CHARS_MAX`] characters.
    pub fn new(campaign: impl Into<String>, recipient: impl Into<String>) -> Result<Begin, InvalidBegin> {
        let (campaign, recipient) = (checked("campaignId", campaign)?, checked("recipientId", recipient)?);
        Ok(Begin { campaign, recipient, job: None, template: None, lease: None })
    }

    /// The job in the worker's own queue, so that people can find it.
    pub fn job(self, job: impl Into<String>) -> Result<Begin, InvalidBegin> {
        Ok(Begin { job: Some(checked("jobId", job)?), ..self })
    }

    /// The id of the template. It is stored with the send, for people and for the reconcile hook.
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
    /// The lease is never longer than the send is kept: after that time any worker may begin the send anew.
    fn lease_by(&self, options: &Options) -> Duration {
        self.lease.unwrap_or(options.lease).min(options.keep)
    }
}

/// The invalid field of a [`Begin`], and what would be valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidBegin(String);

/// Checks an id from outside: of a campaign, a recipient, a job or a template.
pub fn checked(field: &str, text: impl Into<String>) -> Result<String, InvalidBegin> {
    let text = text.into();
    match (1..=ID_CHARS_MAX).contains(&text.chars().count()) && !text.contains(char::is_control) {
        true => Ok(text),
        false => {
            Err(InvalidBegin(format!("{field}: 1 to {ID_CHARS_MAX} characters, none of them a control character")))
        }
    }
}

/// The answer to a worker that begins a send.
#[derive(Clone, Debug)]
pub enum Begun {
    /// The worker sends it.
    Proceed(Proceed),
    /// It was sent already.
    Sent(Sent),
    /// It may have been sent, and must not be sent again.
    Unknown {
        /// The id of the send.
        id: Uuid,
    },
    /// Another worker is sending it.
    Busy {
        /// The rest of that worker's lease.
        lease_left: Duration,
    },
}

/// A send that this worker has begun. No other worker sends it until the lease ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proceed {
    /// The id of the send, for the worker's reports.
    pub id: Uuid,
    /// The fencing token of this attempt, for the worker's reports.
    pub token: Token,
    /// The idempotency key for the provider: the same for every attempt.
    pub provider_key: Uuid,
    /// 1 for the first attempt. If it is larger, an earlier attempt may have sent the message.
    pub attempt: i32,
    /// The end of the worker's lease. The worker renews the lease if it needs longer.
    pub lease_until: Time,
}

/// The result of a send, which later workers get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// The id of the send.
    pub id: Uuid,
    /// The provider's id of the message, if the worker reported one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub esp_message_id: Option<String>,
    /// When the store recorded that the message was sent.
    pub sent_us: i64,
}

/// Why a report about a send changed nothing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotTaken {
    /// There is no send with this id in the workspace.
    #[error("there is no such send")]
    Missing,
    /// The claim refused the report: the attempt is not this worker's any more, or another result is recorded.
    #[error(transparent)]
    Fenced(Refusal),
    /// Wrong state for this operation.
    #[error("{0}")]
    Wrong(String),
    /// The store returned an error. The report may still be unrecorded.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A send, its job, and the store's time.
type Loaded = (Kept, Option<Job>, Time);

impl Sends {
    /// Makes the send log of `store`. The `ledger` must use the same store.
    pub fn over(store: Arc<dyn MainStore>, ledger: Arc<Ledger>, options: Options) -> Sends {
        Sends { store, ledger, options: Arc::new(options) }
    }

    /// The settings of this send log.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Begins a send for a worker. The claim decides: of two workers at the same time, one proceeds.
    pub async fn begin(&self, workspace: &WorkspaceName, begin: &Begin) -> Result<Begun, StoreError> {
        let key = key_of(workspace, &begin.campaign, &begin.recipient);
        let name = At::Name(key.id.to_string());
        // Most sends are new, so the first round tries to create the send without a read. Later rounds read the send first.
        let mut before: Option<Loaded> = None;
        let mut now = self.now().await?;
        for _ in 0..ROUNDS_MAX {
            let (kept, changes) = match &before {
                None => {
                    let id = Uuid::now_v7();
                    let send = Send::begun(None, begin, id, &self.options, now);
                    let kept = Kept { workspace: workspace.clone(), id, version: 1, document: send };
                    let changes = kept.created(now);
                    (kept, changes)
                }
                Some((kept, job, now)) => {
                    let send = Send::begun(Some(&kept.document), begin, Uuid::now_v7(), &self.options, *now);
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
                        provider_key: kept.document.provider_key,
                        attempt: kept.document.attempt,
                        lease_until: claim.lease_until,
                    }));
                }
                // A send of that name exists, or was changed since it was read.
                Answer::Won(_) => {}
                Answer::Duplicate(claim) => {
                    let outcome = claim.outcome.as_deref().and_then(|outcome| serde_json::from_slice(outcome).ok());
                    let unreadable =
                        || StoreError::Unreadable(format!("the outcome of claim {} cannot be read", key.id));
                    return Ok(Begun::Sent(outcome.ok_or_else(unreadable)?));
                }
                Answer::InFlight(claim) => {
                    return Ok(Begun::Busy { lease_left: claim.lease_until.since(committed.now) });
                }
                // The policy forbids a take-over.
                _ => {
                    let found = self.load(workspace, name.clone()).await?;
                    let missing = || StoreError::Refused(format!("the claim {} has lost its send", key.id));
                    return found.map(|(kept, ..)| Begun::Unknown { id: kept.id }).ok_or_else(missing);
                }
            }
            now = committed.now;
            before = self.load(workspace, name.clone()).await?;
        }
        Err(others_were_faster())
    }

    /// The id of the claim that decides which worker sends.
    pub fn claim_id(&self, workspace: &WorkspaceName, begin: &Begin) -> ClaimId {
        key_of(workspace, &begin.campaign, &begin.recipient).id
    }

    fn terms(&self, begin: &Begin) -> Terms {
        Terms {
            parts: self.options.store_parts.then(|| json!([begin.campaign, begin.recipient]).to_string()),
            ..Terms::new(self.options.keep, begin.lease_by(&self.options), self.options.lost.of_claim())
        }
    }

    async fn load(&self, workspace: &WorkspaceName, at: At) -> Result<Option<Loaded>, StoreError> {
        let job_of = |id| [(workspace.clone(), id)];
        // The order of these two reads does not matter, because each write names the version that was read.
        let (found, jobs) = match at {
            At::Id(id) => {
                let job = job_of(id);
                let (found, jobs) =
                    tokio::join!(document::find::<Send>(&*self.store, workspace, at), self.store.find_jobs(&job));
                (found?.value, jobs?)
            }
            At::Name(_) => {
                let found = document::find::<Send>(&*self.store, workspace, at).await?.value;
                let Some(kept) = &found else { return Ok(None) };
                let jobs = self.store.find_jobs(&job_of(kept.id)).await?;
                (found, jobs)
            }
        };
        let Reading { value: mut jobs, now } = jobs;
        Ok(found.map(|kept| (kept, jobs.remove(0), now)))
    }

    async fn now(&self) -> Result<Time, StoreError> {
        self.store.now().await
    }
}

/// Whether nothing was written because something had changed since it was read. The answer to a claim does not count.
fn is_stale(committed: &Committed) -> bool {
    committed.conflict.is_some() && committed.answers.iter().all(Answer::is_accepted)
}

impl std::fmt::Debug for Sends {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sends").finish_non_exhaustive()
    }
}

/// The operations that need no workspace.
impl Scoped<Sends> {
    /// See [`Sends::begin`].
    pub async fn begin(&self, begin: &Begin) -> Result<Begun, StoreError> {
        self.policy().begin(self.workspace(), begin).await
    }

    /// See [`Sends::sent`].
    pub async fn sent(&self, id: Uuid, token: Token, esp_message_id: Option<String>) -> Result<Kept, NotTaken> {
        self.policy().sent(self.workspace(), id, token, esp_message_id).await
    }

    /// See [`Sends::failed`].
    pub async fn failed(&self, id: Uuid, token: Token, error: String, reached: Reached) -> Result<Kept, NotTaken> {
        self.policy().failed(self.workspace(), id, token, error, reached).await
    }

    /// See [`Sends::renew`].
    pub async fn renew(&self, id: Uuid, token: Token, lease: Option<Duration>) -> Result<Kept, NotTaken> {
        self.policy().renew(self.workspace(), id, token, lease).await
    }

    /// See [`Sends::send`].
    pub async fn send<E: std::fmt::Display, Fut>(
        &self,
        begin: &Begin,
        provider: impl FnOnce(Proceed) -> Fut,
    ) -> Result<Delivery, SendError<E>>
    where
        Fut: Future<Output = Result<Option<String>, Failure<E>>>,
    {
        self.policy().send(self.workspace(), begin, provider).await
    }

    /// See [`Sends::find`].
    pub async fn find(&self, id: Uuid) -> Result<Option<(Kept, Time)>, StoreError> {
        self.policy().find(self.workspace(), id).await
    }

    /// See [`Sends::list`].
    pub async fn list(&self, filter: &Filter) -> Result<Reading<Page>, StoreError> {
        self.policy().list(self.workspace(), filter).await
    }
}
