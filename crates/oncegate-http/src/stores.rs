//! Opens the configured stores.

use std::sync::Arc;

use oncegate::store::{MainStore, Store};
use oncegate::{GuardName, OnStoreError, OpenError, StoreError, StoreUrl};

use crate::late::LateStore;
use oncegate_config::{Config, SecretUrl};
use oncegate_process::failure::Failure;

/// Opens the configured store.
pub async fn open_store(config: &Config) -> Result<Arc<dyn MainStore>, Failure> {
    Ok(config.store.expose().parse::<StoreUrl>()?.open_with(oncegate_process::crash::clock()).await?)
}

/// Opens the separate guard store, if one is configured.
pub async fn open_guards(config: &Config) -> Result<Option<Arc<dyn Store>>, Failure> {
    let Some(url) = &config.guard_store else { return Ok(None) };
    let url = url.expose().parse::<StoreUrl>()?;
    match url.open_with(oncegate_process::crash::clock()).await {
        Ok(store) => Ok(Some(store)),
        Err(OpenError::Store(StoreError::Unavailable(why)))
            if config.messages.options.store_error == OnStoreError::Open =>
        {
            tracing::error!(event = "guard_store.away", why);
            Ok(Some(LateStore::start(url, why)))
        }
        Err(error) => Err(error.into()),
    }
}

/// Like `open_store`, for commands that need an existing store, so that a mistyped name creates no file.
pub async fn open_existing(config: &Config) -> Result<Arc<dyn MainStore>, Failure> {
    open_existing_at(&config.store).await
}

/// The existing store with the claims of a guard. Claims of idempotency keys are in the main store, beside their messages.
pub async fn open_existing_guards(config: &Config, guard: Option<&GuardName>) -> Result<Arc<dyn MainStore>, Failure> {
    let apart = config.guard_store.as_ref().filter(|_| !guard.is_some_and(crate::own_guards::is_kept_beside));
    open_existing_at(apart.unwrap_or(&config.store)).await
}

async fn open_existing_at(url: &SecretUrl) -> Result<Arc<dyn MainStore>, Failure> {
    let url: StoreUrl = url.expose().parse()?;
    // If the file's existence cannot be checked, opening the file reports why.
    if let StoreUrl::Sqlite(file) = &url
        && file.try_exists().is_ok_and(|exists| !exists)
    {
        return Err(Failure::not_found(format!("there is no store at {}", file.display()))
            .hint("oncegate serve makes it; if it is elsewhere, say where with --store or --config"));
    }
    Ok(url.open_with(oncegate_process::crash::clock()).await?)
}
