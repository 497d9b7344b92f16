//! A commit whose answer was lost: it may be written.

use std::future::Future;
use std::time::Duration;

use crate::store::Store;

/// A caller that has waited for a commit does not wait for longer than this for the look at what it wrote.
const LOOK_WITHIN: Duration = Duration::from_secs(5);

/// What a look finds of such a commit, if that is as durable as an acknowledged commit.
///
/// The store looks, commits, and looks again. A first look alone may show what a standby does not have yet; the commit behind it may
/// then be one of that standby, promoted meanwhile. The second look asks the server that has confirmed. A look that fails says
/// nothing, so the commit stays unknown.
pub async fn find_written<T, E, F>(store: &(impl Store + ?Sized), look: impl Fn() -> F) -> Option<T>
where
    F: Future<Output = Result<Option<T>, E>>,
{
    let found = async {
        look().await.ok()??;
        store.confirm().await.ok()?;
        look().await.ok()?
    };
    tokio::time::timeout(LOOK_WITHIN, found).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::{MemoryStore, StoreError};

    /// The first looks fail, or find this.
    async fn found(looks: [Result<Option<u8>, StoreError>; 2]) -> (Option<u8>, u32) {
        let looked = AtomicU32::new(0);
        let look = || {
            let number = looked.fetch_add(1, Ordering::Relaxed);
            let found = looks[number as usize].clone();
            async move { found }
        };
        let written = find_written(&MemoryStore::default(), look).await;
        (written, looked.into_inner())
    }

    #[tokio::test]
    async fn what_the_server_that_has_confirmed_does_not_show_is_not_written() {
        let away = || Err(StoreError::Unavailable("away".into()));
        assert_eq!(found([Ok(Some(1)), Ok(Some(2))]).await, (Some(2), 2));
        assert_eq!(found([Ok(Some(1)), Ok(None)]).await, (None, 2), "it was shown by a server that was replaced");
        assert_eq!(found([Ok(Some(1)), away()]).await, (None, 2));
        assert_eq!(found([Ok(None), Ok(Some(2))]).await, (None, 1));
        assert_eq!(found([away(), Ok(Some(2))]).await, (None, 1));
    }
}
