//! Checkpoints, off the writer's path.
//!
//! A thread of its own copies committed pages from the log into the file, a few megabytes at a time,
//! while the writer goes on. The log starts over only when all of it has been copied; a busy writer
//! always stays a little ahead, so now and then it copies that last little bit itself.

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
/// What the writer copies itself: a few milliseconds' worth.
const LAST_BIT_PAGES: i64 = 3_000;

pub struct Checkpoints {
    copied: AtomicI64,
    restart_due: AtomicBool,
    trouble: Mutex<Trouble>,
}

impl Checkpoints {
    /// Starts the thread, which is told by the sender when to copy, and ends with it.
    pub fn start(path: &Path, syncs: bool) -> rusqlite::Result<(Arc<Self>, JoinHandle<()>, SyncSender<()>)> {
        let checkpoints = Arc::new(Checkpoints {
            copied: AtomicI64::new(0),
            restart_due: AtomicBool::new(false),
            trouble: Mutex::default(),
        });
        let (due, dues) = sync_channel::<()>(1);
        let connection = crate::writer::connect_with(path, syncs)?;
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

    /// The writer has committed, and the log is that long.
    pub fn logged(&self, pages: i64, copy: &SyncSender<()>) {
        if pages - self.copied.load(Ordering::Relaxed) >= STEP_PAGES {
            // Full means that the thread has been told already.
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

    /// Pages in the log, and how many of them are copied. An error is told to the log.
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

/// Pages in the log, and how many of them are copied. Passive: it waits for nobody.
fn passive(connection: &Connection) -> rusqlite::Result<(i64, i64)> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| Ok((row.get(1)?, row.get(2)?)))
}
