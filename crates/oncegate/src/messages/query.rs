//! Read-only lookups of messages and leads.

use oncegate_core::WorkspaceName;
use oncegate_store::{At, StoreError};
use uuid::Uuid;

use super::record::{Lead, Message, Status};
use super::{Messages, Refused, Reply};
use crate::document::{self, Document, Kept};

impl<R: Reply> Messages<R> {
    /// The message, lead or thread with this id; `None` if the workspace has none.
    pub async fn find<D: Document>(&self, workspace: &WorkspaceName, id: Uuid) -> Result<Option<Kept<D>>, StoreError> {
        Ok(document::find(&*self.store, workspace, At::Id(id)).await?.value)
    }

    /// A message and its lead.
    pub(super) async fn load(
        &self,
        workspace: &WorkspaceName,
        id: Uuid,
    ) -> Result<Option<(Kept<Message>, Kept<Lead>)>, Refused> {
        let Some(message) = self.find::<Message>(workspace, id).await? else { return Ok(None) };
        let lead = self.lead_of(&message).await?;
        Ok(Some((message, lead)))
    }

    pub(super) async fn lead_of(&self, message: &Kept<Message>) -> Result<Kept<Lead>, Refused> {
        let lost = || Refused::Broken(format!("the message {} has lost its lead", message.id));
        self.find::<Lead>(&message.workspace, message.document.lead).await?.ok_or_else(lost)
    }

    /// Whether the message failed for certain and, by the settings, releases its key.
    pub(super) async fn is_released(&self, workspace: &WorkspaceName, message: Uuid) -> Result<bool, StoreError> {
        let message = if self.releases() { self.find::<Message>(workspace, message).await? } else { None };
        Ok(message.is_some_and(|message| message.document.status == Status::Failed))
    }
}
