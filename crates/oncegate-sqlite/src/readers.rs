//! Readers: connections that see the last commit and never block the writer.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use oncegate_store::StoreError;
use rusqlite::{Connection, OpenFlags, ffi};

use crate::file::WatchedFile;
use crate::open::BUSY_TIMEOUT;
use crate::{our_error, store_error};

/// Idle connections kept in the pool; more are opened and closed as needed.
const IDLE_MAX: usize = 4;

pub struct Readers {
    path: PathBuf,
    file: Arc<WatchedFile>,
    idle: Arc<Idle>,
}

/// `None` once the store is closed.
type Idle = Mutex<Option<Vec<Connection>>>;

/// Opens a connection that does not wait for locks, unless its caller sets a time-out.
pub fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection =
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(Duration::ZERO)?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

impl Readers {
    pub fn new(path: PathBuf, file: Arc<WatchedFile>) -> Self {
        Readers { path, file, idle: Arc::new(Mutex::new(Some(vec![]))) }
    }

    pub fn close(&self) {
        let idle = lock(&self.idle).take();
        drop(idle);
    }

    /// Reads on the caller's thread, for reads of microseconds. It fails instead of waiting for a lock.
    pub fn run_now<T>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        run(&self.path, &self.file, &self.idle, read)
    }

    pub async fn run<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (path, file, idle) = (self.path.clone(), self.file.clone(), self.idle.clone());
        let patiently = move |connection: &Connection| {
            connection.busy_timeout(BUSY_TIMEOUT)?;
            let result = read(connection);
            connection.busy_timeout(Duration::ZERO)?;
            result
        };
        match tokio::task::spawn_blocking(move || run(&path, &file, &idle, patiently)).await {
            Ok(result) => result.map_err(store_error),
            Err(error) => Err(StoreError::Unavailable(error.to_string())),
        }
    }
}

fn run<T>(
    path: &Path,
    file: &WatchedFile,
    idle: &Idle,
    read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    file.look_lately()?;
    let kept = lock(idle).as_mut().ok_or_else(closed)?.pop();
    let connection = match kept {
        Some(connection) => connection,
        None => {
            let connection = connect(path)?;
            file.check(&connection)?;
            connection
        }
    };
    let result = read(&connection);
    // A connection left within a transaction would see the same old snapshot forever, so it is not kept.
    if let Some(idle) = lock(idle).as_mut().filter(|idle| idle.len() < IDLE_MAX && connection.is_autocommit()) {
        idle.push(connection);
    }
    result
}

fn lock(idle: &Idle) -> MutexGuard<'_, Option<Vec<Connection>>> {
    idle.lock().expect("no holder of this lock panics")
}

fn closed() -> rusqlite::Error {
    our_error(ffi::SQLITE_MISUSE, "the store is closed")
}
