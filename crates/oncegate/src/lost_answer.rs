//! A commit whose answer was lost: it may be written.

use std::future::Future;
use std::time::Duration;

use oncegate_store::{Store, StoreError};

/// A caller that has waited for a commit does not wait for longer than this for the look at what it wrote.
const LOOK_WITHIN: Duration = Duration::from_secs(5);

/// Whether a look finds what such a commit wrote, as durable as an acknowledged commit. A look that fails says nothing, so the
/// commit stays unknown.
pub(crate) async fn is_found(
    store: &(impl Store + ?Sized),
    look: impl Future<Output = Result<bool, StoreError>>,
) -> bool {
    let found = async { look.await.is_ok_and(|is_found| is_found) && store.confirm().await.is_ok() };
    tokio::time::timeout(LOOK_WITHIN, found).await.unwrap_or(false)
}
