//! Finds out whether a commit whose answer was lost was written.

use std::future::Future;
use std::time::Duration;

use crate::store::Store;

/// The time-out of the look at what a commit wrote. The caller has already waited for the commit itself.
const LOOK_WITHIN: Duration = Duration::from_secs(5);

/// Returns what `look` finds of the commit, if that is as durable as an acknowledged commit.
///
/// The function looks, confirms, and looks again. The first look alone may show a write that a standby does not have yet.
/// That standby may then be promoted and confirm without the write. The second look therefore asks the server that has
/// confirmed. A look that fails proves nothing, so the commit stays unknown.
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

    /// Runs `find_written` with these results of its two looks. Returns what it found and the number of looks.
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
