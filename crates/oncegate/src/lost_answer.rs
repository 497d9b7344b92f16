//! A commit whose answer was lost: it may be written.

use std::future::Future;

use oncegate_store::{Store, StoreError};

/// Whether a look finds what such a commit wrote, as durable as an acknowledged commit. A look that fails says nothing, so the
/// commit stays unknown.
pub(crate) async fn is_found(
    store: &(impl Store + ?Sized),
    look: impl Future<Output = Result<bool, StoreError>>,
) -> bool {
    look.await.is_ok_and(|is_found| is_found) && store.confirm().await.is_ok()
}
