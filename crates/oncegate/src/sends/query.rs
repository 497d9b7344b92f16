//! Read-only lookups and lists of sends.

use oncegate_core::{Time, WorkspaceName};
use oncegate_store::{At, Listing, Reading, StoreError};
use uuid::Uuid;

use super::record::{Kept, list_of};
use super::{Send, Sends, State};
use crate::document;

/// Selects sends. A list has the newest first.
#[derive(Clone, Debug)]
pub struct Filter {
    /// Only sends of this campaign; `None` for all campaigns.
    pub campaign: Option<String>,
    /// The stored state. The end of a lease is stored moments after it happens.
    pub state: Option<State>,
    /// The most sends on a page, or the largest count.
    pub limit: usize,
    /// Only sends that are older than the send with this id.
    pub before: Option<Uuid>,
}

/// A page of sends, newest first.
pub type Page = document::Page<Kept>;

impl Sends {
    /// The send, and the store's time.
    pub async fn find(&self, workspace: &WorkspaceName, id: Uuid) -> Result<Option<(Kept, Time)>, StoreError> {
        Ok(self.load(workspace, At::Id(id)).await?.map(|(kept, _, now)| (kept, now)))
    }

    /// Lists sends, newest first. A page of large sends has fewer of them. The store's time is for [`Send::state_at`](super::Send::state_at).
    pub async fn list(&self, workspace: &WorkspaceName, filter: &Filter) -> Result<Reading<Page>, StoreError> {
        let page = document::list(&*self.store, listing(workspace, filter)).await?;
        Ok(Reading { value: page, now: self.now().await? })
    }

    /// Counts the sends, up to the filter's limit.
    pub async fn count(&self, workspace: &WorkspaceName, filter: &Filter) -> Result<usize, StoreError> {
        self.store.count(listing(workspace, filter)).await
    }
}

fn listing(workspace: &WorkspaceName, filter: &Filter) -> Listing {
    let (list, state) = (filter.campaign.as_deref().map(list_of), filter.state.map(State::as_str));
    document::listing::<Send>(workspace, list, state, filter.limit, filter.before)
}
