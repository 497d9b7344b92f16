//! Checkpoints, off the writer's path.
//!
//! A separate thread copies committed pages from the log into the file, a few megabytes at a time,
//! while the writer continues. The log starts over only when all of it has been copied. A busy writer
//! is always a few pages ahead, so now and then the writer copies these last pages itself.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use rusqlite::Connection;

use crate::trouble::Trouble;

/// Pages in the log before a copy is worth its syncs.
const STEP_PAGES: i64 = 1_000;
/// Pages in the log after which it should start over.
const RESTART_PAGES: i64 = 8_000;
/// The most pages that the writer copies itself, in a few milliseconds.
const LAST_BIT_PAGES: i64 = 3_000;

pub struct Checkpoints {
    copied: AtomicI64,
    restart_due: AtomicBool,
    trouble: Mutex<Trouble>,
}

impl Checkpoints {
    /// Starts the thread. The sender tells it when to copy; the thread ends when the sender is dropped.
    pub fn start(path: &Path, syncs: bool) -> rusqlite::Result<(Arc<Self>, JoinHandle<()>, SyncSender<()>)> {
        let checkpoints = Arc::new(Checkpoints {
            copied: AtomicI64::new(0),
            restart_due: AtomicBool::new(false),
            trouble: Mutex::default(),
        });
        let (due, dues) = sync_channel::<()>(1);
        let connection = crate::open::connect_with(path, syncs)?;
        let copier = checkpoints.clone();
        let thread = std::thread::Builder::new()
            .name("oncegate-checkpoint".into())
            .spawn(move || {
                while dues.recv().is_ok() {
                    copier.copy(&connection);
                }
            })
            .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
        Ok((checkpoints, thread, due))
    }

    /// Called after a commit of the writer, with the length of the log.
    pub fn logged(&self, pages: i64, copy: &SyncSender<()>) {
        if pages - self.copied.load(Ordering::Relaxed) >= STEP_PAGES {
            // A full channel means that the thread already has a pending signal.
            let _ = copy.try_send(());
        }
    }

    fn copy(&self, connection: &Connection) {
        if let Some((log, copied)) = self.passive(connection) {
            self.copied.store(copied, Ordering::Relaxed);
            if log >= RESTART_PAGES && log - copied <= LAST_BIT_PAGES {
                self.restart_due.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Called by the writer between two transactions.
    pub fn finish_if_due(&self, writer: &Connection) {
        if self.restart_due.swap(false, Ordering::Relaxed)
            && let Some((log, copied)) = self.passive(writer)
        {
            self.copied.store(if log == copied { 0 } else { copied }, Ordering::Relaxed);
        }
    }

    /// Runs a passive checkpoint, and logs an error. Returns the pages in the log, and how many of them are copied.
    fn passive(&self, connection: &Connection) -> Option<(i64, i64)> {
        let result = passive(connection);
        let mut trouble = self.trouble.lock().expect("no holder of this lock panics");
        match result {
            Ok(copied) => {
                if let Some(over) = trouble.succeeded(Instant::now()) {
                    tracing::info!(event = "sqlite.checkpoint_recovered", errors = over.errors);
                }
                Some(copied)
            }
            Err(error) => {
                if let Some(errors) = trouble.failed(Instant::now()) {
                    tracing::warn!(event = "sqlite.checkpoint_failed", %error, errors);
                }
                None
            }
        }
    }
}

/// Runs a checkpoint that waits for no other connection. Returns the pages in the log, and how many of them are copied.
fn passive(connection: &Connection) -> rusqlite::Result<(i64, i64)> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| Ok((row.get(1)?, row.get(2)?)))
}
