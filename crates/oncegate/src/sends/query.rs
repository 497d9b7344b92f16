//! Read-only lookups and lists of sends.

use oncegate_core::{Time, WorkspaceName};
use oncegate_store::{At, Listed, Listing, StoreError};
use uuid::Uuid;

use super::record::{KIND, Kept, list_of};
use super::{Sends, State};

/// Selects sends. A list has the newest first.
#[derive(Clone, Debug)]
pub struct Filter {
    pub campaign: Option<String>,
    /// The stored state. The end of a lease is stored moments after it happens.
    pub state: Option<State>,
    pub limit: usize,
    pub before: Option<Uuid>,
}

#[derive(Clone, Debug)]
pub struct Page {
    pub items: Vec<Kept>,
    pub next: Option<Uuid>,
    pub now: Time,
}

impl Sends {
    /// The send, and the store's time.
    pub async fn find(&self, workspace: &WorkspaceName, id: Uuid) -> Result<Option<(Kept, Time)>, StoreError> {
        Ok(self.load(workspace, At::Id(id)).await?.map(|(kept, _, now)| (kept, now)))
    }

    pub async fn list(&self, workspace: &WorkspaceName, filter: &Filter) -> Result<Page, StoreError> {
        let Listed { records, next } = crate::document::page(&self.store, listing(workspace, filter)).await?;
        let items = records.into_iter().map(Kept::read).collect::<Result<_, _>>()?;
        Ok(Page { items, next, now: self.now().await? })
    }

    /// Counts the sends, up to the filter's limit.
    pub async fn count(&self, workspace: &WorkspaceName, filter: &Filter) -> Result<usize, StoreError> {
        self.store.count(listing(workspace, filter)).await
    }
}

fn listing(workspace: &WorkspaceName, filter: &Filter) -> Listing {
    Listing {
        workspace: workspace.clone(),
        kind: KIND,
        list: filter.campaign.as_deref().map(list_of),
        state: filter.state.map(|state| state.as_str().to_owned()),
        limit: filter.limit,
        before: filter.before,
    }
}
