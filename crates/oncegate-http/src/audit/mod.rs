//! The audit log: what people did, why, and with what outcome. It is in the store, per workspace, one record for each line.
//!
//! A line is written before its act. An act whose line cannot be written is refused. If the act then fails, or its outcome is unknown, a
//! second line records that.
//! The lines of a workspace are a chain: each has the hash of the line before it (`line.rs`). A line's number is a unique name in the
//! store.
//! Of two concurrent writers, the slower one gets a conflict and reads the end of the chain again.

pub mod check;
mod line;
mod logins;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Display;
use std::sync::{Arc, Mutex};

use oncegate::WorkspaceName;
use oncegate::sagas::NotRetried;
use oncegate::sends::NotTaken;
use oncegate::store::{
    At, Change, Clock, Commit, Listing, MainStore, Place, Record, StoreError, SystemClock, find_written,
};
use uuid::Uuid;

pub use line::{Line, OutcomeOf};
pub use logins::FailedLogins;

use crate::auth::Caller;
use crate::problem::{Kind, Problem};
use line::Head;
use oncegate_process::failure::Failure;

const KIND: &str = "audit";
/// The number of lines that one read fetches.
pub const READ_AT_ONCE: u64 = 250;
/// How many numbers after a known line are looked up at once, to find the end of the chain.
const LOOK_AHEAD: u64 = 64;
/// How often a line is retried after a conflict with another writer.
const TRIES: usize = 64;
/// The number of workspaces whose chain ends are cached.
const HEADS_MAX: usize = 1_000;
/// The number of characters that are kept of an act's error.
const DETAIL_MAX: usize = 300;

/// The detail of a second line whose act had nothing left to do.
pub const SETTLED_BEFORE: &str = "another caller had settled it in the same way";

/// The person or key that acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct By {
    /// A key's id, `local` where the server is open, or a person at the command line.
    pub id: String,
    /// The display name of the key.
    pub name: Option<Arc<str>>,
}

impl From<&Caller> for By {
    fn from(caller: &Caller) -> By {
        By { id: caller.name.clone(), name: caller.label.clone() }
    }
}

impl From<&str> for By {
    fn from(id: &str) -> By {
        By { id: id.into(), name: None }
    }
}

/// An act that is about to be done. Its line is written first.
#[derive(Clone, Debug)]
pub struct Act {
    pub workspace: WorkspaceName,
    /// The event name in the log: `audit.forget`.
    pub event: &'static str,
    pub by: By,
    /// The kind of the act's target: `claim`, `action`, `key`.
    pub kind: &'static str,
    pub subject: String,
    /// Further details: the guard, the role of a new key.
    pub about: BTreeMap<String, String>,
    pub why: Option<String>,
}

impl Act {
    pub fn new(
        event: &'static str,
        workspace: &WorkspaceName,
        (kind, subject): (&'static str, impl Display),
        by: &By,
        why: Option<&str>,
    ) -> Act {
        let (workspace, subject, by) = (workspace.clone(), subject.to_string(), by.clone());
        Act { workspace, event, by, kind, subject, about: BTreeMap::new(), why: why.map(str::to_owned) }
    }

    pub fn about(mut self, name: &str, value: impl Display) -> Act {
        self.about.insert(name.into(), value.to_string());
        self
    }
}

/// A written line: its number, and its hash. The hash goes to the server's log, as the anchor outside the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    pub seq: u64,
    pub hash: String,
}

/// Why an act failed, for the second line.
pub trait Unmade {
    fn detail(&self) -> String;
    /// The outcome of the write is unknown: the act may have been done.
    fn is_unknown(&self) -> bool;
}

/// Errors that may wrap an error of the store.
macro_rules! unmade {
    ($($error:ty: $unknown:pat,)+) => {
        $(impl $crate::audit::Unmade for $error {
            fn detail(&self) -> String {
                self.to_string()
            }

            fn is_unknown(&self) -> bool {
                matches!(self, $unknown)
            }
        })+
    };
}

pub(crate) use unmade;

unmade! {
    StoreError: StoreError::Unknown(_),
    NotRetried: NotRetried::Store(StoreError::Unknown(_)),
    NotTaken: NotTaken::Store(StoreError::Unknown(_)),
    Failure: Failure { is_unknown: true, .. },
}

impl Unmade for Problem {
    fn detail(&self) -> String {
        format!("{}: {}", self.kind.name(), self.detail)
    }

    fn is_unknown(&self) -> bool {
        self.kind == Kind::StoreUnknown
    }
}

/// The end of a chain, as it was last seen. The holder of its lock may write to the chain.
type Chain = Arc<tokio::sync::Mutex<Option<Head>>>;

pub struct Audit {
    store: Arc<dyn MainStore>,
    chains: Mutex<HashMap<WorkspaceName, Chain>>,
    /// Second lines that are not written yet.
    unwritten: Mutex<VecDeque<(Act, OutcomeOf)>>,
    pub logins: FailedLogins,
}

impl Audit {
    pub fn new(store: Arc<dyn MainStore>) -> Arc<Audit> {
        Arc::new(Audit {
            store,
            chains: Mutex::default(),
            unwritten: Mutex::default(),
            logins: FailedLogins::default(),
        })
    }

    /// Writes the line, then does the act. If the act fails, or its outcome is unknown, a second line records that.
    pub async fn act<T, E>(&self, act: Act, work: impl Future<Output = Result<T, E>>) -> Result<(T, Receipt), E>
    where
        E: From<StoreError> + Unmade,
    {
        let receipt = self.begin(&act).await?;
        match work.await {
            Ok(done) => Ok((done, receipt)),
            Err(error) => {
                let result = if error.is_unknown() { "unknown" } else { "failed" };
                self.ended(act, &receipt, result, &error.detail()).await;
                Err(error)
            }
        }
    }

    /// Writes the line of an act that is about to be done.
    pub async fn begin(&self, act: &Act) -> Result<Receipt, StoreError> {
        self.append(act, None).await
    }

    /// Records that the act of this line failed, or ended in another way than its line says.
    pub async fn ended(&self, act: Act, receipt: &Receipt, result: &'static str, detail: &str) {
        let detail = Some(detail.chars().take(DETAIL_MAX).collect());
        let outcome = OutcomeOf { result, of: receipt.seq, detail };
        if let Err(error) = self.conclude(&act, &outcome).await {
            tracing::warn!(event = "audit_log.put_off", workspace = %act.workspace, of = receipt.seq, %error);
            self.unwritten.lock().expect("no holder of this lock panics").push_back((act, outcome));
        }
    }

    async fn conclude(&self, act: &Act, outcome: &OutcomeOf) -> Result<(), StoreError> {
        let Receipt { seq, hash } = self.append(act, Some(outcome)).await?;
        let (workspace, by, why, result, of) = (&act.workspace, &act.by.id, &act.why, outcome.result, outcome.of);
        tracing::warn!(event = "audit.not_done", %workspace, act = act.event, result, of, by, why, auditSeq = seq, auditHash = hash);
        Ok(())
    }

    /// Writes the pending lines: failed logins, and second lines. With `all`, it also writes lines that are too soon after the last one.
    pub async fn write_behind(&self, all: bool) {
        loop {
            let next = self.unwritten.lock().expect("no holder of this lock panics").pop_front();
            let Some((act, outcome)) = next else { break };
            if self.conclude(&act, &outcome).await.is_err() {
                self.unwritten.lock().expect("no holder of this lock panics").push_front((act, outcome));
                break;
            }
        }
        let mut due = self.logins.due(SystemClock.now(), all).into_iter();
        while let Some(failed) = due.next() {
            let by = By::from(failed.source.as_str());
            let subject = ("key", failed.key.as_deref().unwrap_or("unknown"));
            let act = Act::new("audit.login_failed", &failed.workspace, subject, &by, None);
            match self.begin(&act.about("times", failed.times)).await {
                Ok(Receipt { seq, hash }) => {
                    let (workspace, times, key) = (&failed.workspace, failed.times, &failed.key);
                    tracing::warn!(event = "audit.login_failed", %workspace, by = by.id, times, keyId = key, auditSeq = seq, auditHash = hash);
                }
                // The failures are counted again and written once the store is back. To try the other lines would only make each of them
                // wait, too.
                Err(_) => return std::iter::once(failed).chain(due).for_each(|failed| self.logins.give_back(failed)),
            }
        }
    }

    /// Appends a line to its workspace's chain.
    async fn append(&self, act: &Act, outcome: Option<&OutcomeOf>) -> Result<Receipt, StoreError> {
        let chain = self.chain(&act.workspace);
        let mut known = chain.lock().await;
        // Every try uses the same id. A line whose acknowledgement was lost is found by this id, and never written twice.
        let id = Uuid::now_v7();
        let mut doubt = None;
        for _ in 0..TRIES {
            let head = match known.take() {
                Some(head) if doubt.is_none() => head,
                before => find_head(&*self.store, &act.workspace, before).await?,
            };
            let line = Line::after(&head, act, outcome, SystemClock.now());
            let receipt = Receipt { seq: line.seq, hash: line.hash.clone() };
            match self.store.commit(create(id, &act.workspace, &line)).await {
                Ok(committed) if committed.is_written() => {
                    *known = Some(Head::of(&line));
                    return Ok(receipt);
                }
                Ok(_) => {}
                Err(StoreError::Unknown(why)) => doubt = Some(why),
                Err(error) => return Err(error),
            }
            // Another line has the number, or the acknowledgement of this line was lost.
            if let Some(found) = find_written(&*self.store, || self.find_line(&act.workspace, id)).await {
                return Ok(found);
            }
            *known = Some(head);
            if doubt.is_none() {
                *known = Some(find_head(&*self.store, &act.workspace, known.take()).await?);
            }
        }
        Err(doubt.map_or_else(
            || StoreError::Unavailable("too many others write to the audit log".into()),
            StoreError::Unknown,
        ))
    }

    /// The line with this id.
    async fn find_line(&self, workspace: &WorkspaceName, id: Uuid) -> Result<Option<Receipt>, StoreError> {
        let place = Place { workspace: workspace.clone(), kind: KIND, at: At::Id(id) };
        let found = self.store.find(&[place]).await?.value.into_iter().flatten().next();
        let line = found.and_then(|record| serde_json::from_slice::<Line>(&record.body).ok());
        Ok(line.map(|line| Receipt { seq: line.seq, hash: line.hash }))
    }

    fn chain(&self, workspace: &WorkspaceName) -> Chain {
        let mut chains = self.chains.lock().expect("no holder of this lock panics");
        if chains.len() >= HEADS_MAX {
            chains.retain(|_, chain| Arc::strong_count(chain) > 1);
        }
        chains.entry(workspace.clone()).or_default().clone()
    }
}

fn name(seq: u64) -> String {
    format!("{seq:020}")
}

fn place(workspace: &WorkspaceName, seq: u64) -> Place {
    Place { workspace: workspace.clone(), kind: KIND, at: At::Name(name(seq)) }
}

fn create(id: Uuid, workspace: &WorkspaceName, line: &Line) -> Commit {
    let body = serde_json::to_vec(line).expect("a line is JSON").into();
    let record =
        Record { workspace: workspace.clone(), kind: KIND, id, version: 1, state: None, body, expires_at: None };
    Commit { ops: vec![], changes: vec![Change::Create { record, names: vec![name(line.seq)], lists: vec![] }] }
}

/// The end of a chain, searched from a known line on.
async fn find_head(store: &dyn MainStore, workspace: &WorkspaceName, known: Option<Head>) -> Result<Head, StoreError> {
    let mut head = match known {
        Some(head) => head,
        None => newest_listed(store, workspace).await?,
    };
    // Ids come from the writers' clocks: lines with higher numbers may follow the line with the newest id.
    loop {
        let (from, to) = (head.seq + 1, head.seq + LOOK_AHEAD);
        let newest =
            read(store, workspace, from, to).await?.into_iter().rev().find_map(|(seq, body)| Some((seq, body?)));
        match newest {
            Some((seq, body)) => head = Head::read(seq, &body),
            None => return Ok(head),
        }
    }
}

async fn newest_listed(store: &dyn MainStore, workspace: &WorkspaceName) -> Result<Head, StoreError> {
    let limit = usize::try_from(LOOK_AHEAD).expect("it is small");
    let listing = Listing { workspace: workspace.clone(), kind: KIND, list: None, state: None, limit, before: None };
    let lines = store.list(listing).await?.records.into_iter();
    let lines = lines.filter_map(|record| serde_json::from_slice::<Line>(&record.body).ok());
    Ok(lines.max_by_key(|line| line.seq).map_or_else(Head::genesis, |line| Head::of(&line)))
}

/// The bodies of these lines, in order. A missing line has no body.
async fn read(
    store: &dyn MainStore,
    workspace: &WorkspaceName,
    from: u64,
    to: u64,
) -> Result<Vec<(u64, Option<bytes::Bytes>)>, StoreError> {
    let places: Vec<Place> = (from..=to).map(|seq| place(workspace, seq)).collect();
    let found = store.find(&places).await?.value;
    Ok((from..=to).zip(found.into_iter().map(|record| record.map(|record| record.body))).collect())
}

/// A page of the log, newest first.
pub struct Page {
    pub lines: Vec<Line>,
    /// The cursor of the next page: it has the lines before this one. None: there are no more.
    pub next: Option<u64>,
}

/// The newest lines, or the lines before a line. A missing or unreadable line is left out; `oncegate audit verify` reports it.
pub async fn list(
    store: &dyn MainStore,
    workspace: &WorkspaceName,
    limit: usize,
    before: Option<u64>,
) -> Result<Page, StoreError> {
    let newest = match before {
        Some(before) => before.saturating_sub(1),
        None => find_head(store, workspace, None).await?.seq,
    };
    let limit = u64::try_from(limit).unwrap_or(READ_AT_ONCE);
    let oldest = newest.saturating_sub(limit).saturating_add(1);
    let found = if newest == 0 { vec![] } else { read(store, workspace, oldest, newest).await? };
    let lines = found.into_iter().rev().filter_map(|(_, body)| serde_json::from_slice(&body?).ok()).collect();
    Ok(Page { lines, next: Some(oldest).filter(|oldest| *oldest > 1 && newest > 0) })
}

#[cfg(test)]
mod tests;
