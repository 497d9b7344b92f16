//! Read-only lookups and lists of reminders.

use oncegate_core::WorkspaceName;
use oncegate_core::job::Job;
use oncegate_store::{At, Listing, Reading, StoreError};
use uuid::Uuid;

use super::record::{Kept, list_of};
use super::{Reminder, Reminders, State};
use crate::document;

/// Selects reminders. A list has the newest first.
#[derive(Clone, Debug)]
pub struct Filter {
    /// Only reminders of this booking; `None` for all bookings.
    pub booking: Option<String>,
    /// Only reminders in this state; `None` for all states.
    pub state: Option<State>,
    /// The most reminders on a page, or the largest count.
    pub limit: usize,
    /// Only reminders that are older than the reminder with this id.
    pub before: Option<Uuid>,
}

/// A page of reminders, newest first.
pub type Page = document::Page<Kept>;

impl Reminders {
    /// The reminder with this id; `None` if the workspace has none.
    pub async fn find(&self, workspace: &WorkspaceName, id: Uuid) -> Result<Option<Kept>, StoreError> {
        self.find_at(workspace, At::Id(id)).await
    }

    pub(super) async fn find_at(&self, workspace: &WorkspaceName, at: At) -> Result<Option<Kept>, StoreError> {
        Ok(document::find(&*self.store, workspace, at).await?.value)
    }

    /// The reminder, its job if the job is in the queue, and the store's time.
    pub(super) async fn load(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
    ) -> Result<Reading<Option<(Kept, Option<Job>)>>, StoreError> {
        // The record is read first. Every change of the record or the job replaces the record, and the store refuses to replace an
        // outdated version.
        let kept = self.find(workspace, id).await?;
        let Reading { value: mut jobs, now } = self.store.find_jobs(&[(workspace.clone(), id)]).await?;
        Ok(Reading { value: kept.map(|kept| (kept, jobs.remove(0))), now })
    }

    /// Lists reminders, newest first. A page of large reminders has fewer of them.
    pub async fn list(&self, workspace: &WorkspaceName, filter: &Filter) -> Result<Page, StoreError> {
        document::list(&*self.store, listing(workspace, filter)).await
    }

    /// Counts the reminders, up to the filter's limit.
    pub async fn count(&self, workspace: &WorkspaceName, filter: &Filter) -> Result<usize, StoreError> {
        self.store.count(listing(workspace, filter)).await
    }
}

fn listing(workspace: &WorkspaceName, filter: &Filter) -> Listing {
    let (list, state) = (filter.booking.as_deref().map(list_of), filter.state.map(State::as_str));
    document::listing::<Reminder>(workspace, list, state, filter.limit, filter.before)
}
