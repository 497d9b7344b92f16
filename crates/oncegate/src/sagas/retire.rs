//! Removal, when something has been kept for long enough: instances with their history and inbox, and dead letters that are settled.

use futures::future::try_join_all;
use oncegate_core::job::Job;
use oncegate_core::{Command, WorkspaceName};
use oncegate_store::{At, Change, Commit, Listing, Op, Place, Reading, Record, StoreError};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Sagas;
use super::apply::is_of;
use super::dead::LETTER;
use super::record::{INSTANCE, LINE, Line, Stored, list_of, read};

/// Lines that are removed in one commit.
const LINES_AT_ONCE: usize = 200;

#[derive(Serialize, Deserialize)]
pub struct Payload {
    pub id: Uuid,
}

impl Sagas {
    /// Removes what a job is about, to whoever has leased it.
    pub async fn retire(&self, job: &Job) -> Result<(), StoreError> {
        let unreadable = |_| StoreError::Refused(format!("the removal {} cannot be read", job.id));
        let Payload { id } = serde_json::from_slice(&job.payload).map_err(unreadable)?;
        let place = |kind| Place { workspace: job.workspace.clone(), kind, at: At::Id(id) };
        let Reading { value, now } = self.store.find(&[place(INSTANCE), place(LETTER)]).await?;
        let mut found = value.into_iter();
        match (found.next().flatten(), found.next().flatten()) {
            (Some(instance), _) => {
                let stored = Stored::read(instance)?;
                if stored.kept.expires_us.is_some() && !stored.kept.is_expired(now) {
                    return Err(StoreError::Unavailable("its time is not over: the store's clock went back".into()));
                }
                // One that has gone on since, by another definition, stays.
                if stored.kept.is_expired(now) {
                    self.remove_instance(&stored).await?;
                }
            }
            (None, Some(letter)) => self.remove_letter(letter, now).await?,
            // Somebody else was faster.
            (None, None) => {}
        }
        self.store.commit(Commit { ops: vec![], changes: vec![Change::Dequeue(job.clone())] }).await.map(drop)
    }

    /// Its inbox and history first: whoever finds the instance gone finds nothing of it. Whoever does this at the same time does the same.
    pub(super) async fn remove_instance(&self, stored: &Stored) -> Result<(), StoreError> {
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

    /// Each with its place in the inbox, if that is still its own: the same event may have begun the next instance.
    async fn remove_lines(&self, stored: &Stored, lines: Vec<Record>) -> Result<(), StoreError> {
        let lists = vec![list_of(stored.id)];
        let removals = lines.into_iter().map(async |record| {
            let line: Line = read(&record)?;
            let key = line.inbox_key(&stored.workspace, &stored.kept.saga, &stored.kept.correlation_id);
            let claim = self.store.read(&key).await?.value;
            let own = claim.filter(|claim| claim.outcome.as_deref().is_some_and(|outcome| is_of(outcome, record.id)));
            let retract = own.map(|claim| Op { key, command: Command::Retract { token: claim.token } });
            let change = Change::Remove { record, names: vec![], lists: lists.clone() };
            Ok::<_, StoreError>(Commit { ops: retract.into_iter().collect(), changes: vec![change] })
        });
        let removals = try_join_all(removals).await?;
        // If somebody else has removed one, nothing of its commit is written, and there is nothing to write.
        self.store.commit_all(removals).await.into_iter().try_for_each(|removed| removed.map(drop))
    }
}
