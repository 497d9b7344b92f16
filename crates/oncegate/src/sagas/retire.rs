//! Removes expired data: instances with their history and inbox, and dead letters that are settled.

use futures::future::try_join_all;
use oncegate_core::job::Job;
use oncegate_core::{Command, WorkspaceName};
use oncegate_store::{At, Change, Commit, Listing, Op, Place, Reading, Record, StoreError};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Sagas;
use super::apply::is_of;
use super::dead::LETTER;
use super::record::{INSTANCE, Kept, LINE, Line, list_of, read};

/// How many lines of the history are removed at once.
const LINES_AT_ONCE: usize = 200;

#[derive(Serialize, Deserialize)]
pub struct Payload {
    pub id: Uuid,
}

impl Sagas {
    /// Removes the instance or dead letter that a job names, for the worker that has leased the job.
    pub async fn retire(&self, job: &Job) -> Result<(), StoreError> {
        let unreadable = |_| StoreError::Unreadable(format!("the removal {} cannot be read", job.id));
        let Payload { id } = serde_json::from_slice(&job.payload).map_err(unreadable)?;
        let place = |kind| Place { workspace: job.workspace.clone(), kind, at: At::Id(id) };
        let Reading { value, now } = self.store.find(&[place(INSTANCE), place(LETTER)]).await?;
        let mut found = value.into_iter();
        match (found.next().flatten(), found.next().flatten()) {
            (Some(instance), _) => {
                let stored = Kept::read(instance)?;
                if stored.document.expires_us.is_some() && !stored.document.is_expired(now) {
                    return Err(StoreError::Unavailable("its time is not over: the store's clock went back".into()));
                }
                // An instance that has continued since, under another definition, is kept.
                if stored.document.is_expired(now) {
                    self.remove_instance(&stored).await?;
                }
            }
            (None, Some(letter)) => self.remove_letter(letter, now).await?,
            // Another worker has removed it.
            (None, None) => {}
        }
        self.store.commit(Commit { ops: vec![], changes: vec![Change::Dequeue(job.clone())] }).await.map(drop)
    }

    /// Removes the inbox and the history first, and then the instance. So once the instance is gone, nothing of it is left. Two workers
    /// at the same time reach the same result.
    pub(super) async fn remove_instance(&self, stored: &Kept) -> Result<(), StoreError> {
        loop {
            let lines = self.lines_of(&stored.workspace, stored.id).await?;
            if lines.is_empty() {
                break;
            }
            self.remove_lines(stored, lines).await?;
        }
        self.store.commit(Commit { ops: vec![], changes: vec![stored.removed()] }).await.map(drop)
    }

    async fn lines_of(&self, workspace: &WorkspaceName, instance: Uuid) -> Result<Vec<Record>, StoreError> {
        let listing = Listing {
            workspace: workspace.clone(),
            kind: LINE,
            list: Some(list_of(instance)),
            state: None,
            limit: LINES_AT_ONCE,
            before: None,
        };
        Ok(self.store.list(listing).await?.records)
    }

    /// Removes each line together with its claim in the inbox, if the claim still belongs to the line. The same event may already have
    /// begun the next instance.
    async fn remove_lines(&self, stored: &Kept, lines: Vec<Record>) -> Result<(), StoreError> {
        let lists = vec![list_of(stored.id)];
        let removals = lines.into_iter().map(async |record| {
            let line: Line = read(&record)?;
            let key = line.inbox_key(&stored.workspace, &stored.document.saga, &stored.document.correlation_id);
            let claim = self.store.read(&key).await?.value;
            let own = claim.filter(|claim| claim.outcome.as_deref().is_some_and(|outcome| is_of(outcome, record.id)));
            let retract = own.map(|claim| Op { key, command: Command::Retract { token: claim.token } });
            let change = Change::Remove { record, names: vec![], lists: lists.clone() };
            Ok::<_, StoreError>(Commit { ops: retract.into_iter().collect(), changes: vec![change] })
        });
        let removals = try_join_all(removals).await?;
        // If another worker has removed a line, its commit here writes nothing, which is right.
        self.store.commit_all(removals).await.into_iter().try_for_each(|removed| removed.map(drop))
    }
}
