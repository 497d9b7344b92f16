//! The library on SQLite, with increasing numbers of callers.

use std::sync::Arc;

use oncegate::StoreUrl;
use oncegate::store::Store;

use super::{Measured, Setting, decisions};
use oncegate_process::failure::Failure;

const CALLERS: [(usize, &str); 4] = [
    (1, "library, SQLite, 1 caller"),
    (8, "library, SQLite, 8 callers"),
    (64, "library, SQLite, 64 callers"),
    (512, "library, SQLite, 512 callers"),
];

pub async fn on_sqlite(setting: &Setting) -> Result<Vec<Measured>, Failure> {
    let mut measured = vec![];
    for (callers, name) in CALLERS {
        let folder = setting.folder.join(format!("library-{callers}"));
        let store: Arc<dyn Store> = StoreUrl::Sqlite(folder.join("ledger.db")).open().await?;
        measured.push(decisions::measure(name, &store, callers, setting.span).await?);
        store.close().await;
        // Each measurement starts with an empty file. A file that cannot be removed goes with the folder.
        let _ = std::fs::remove_dir_all(&folder);
    }
    Ok(measured)
}
