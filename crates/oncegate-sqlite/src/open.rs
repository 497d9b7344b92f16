//! Opens connections that write durably.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, ffi};

use crate::file::folder_of;
use crate::{cause, our_error};

/// How long another process may hold the file.
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens a connection that writes durably. The file must exist: a removed file is not created again as an empty one.
pub fn connect(path: &Path) -> rusqlite::Result<Connection> {
    connect_with(path, true)
}

/// The same. With `syncs` false, for negative controls in tests, the connection does not sync.
pub fn connect_with(path: &Path, syncs: bool) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    let set_up = || {
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        // NORMAL would lose acknowledged work at a power cut.
        connection.pragma_update(None, "synchronous", if syncs { "full" } else { "off" })?;
        connection.pragma_update(None, "wal_autocheckpoint", 0)?;
        connection.pragma_update(None, "foreign_keys", true)?;
        connection.pragma_update(None, "cache_size", -64 * 1024)
    };
    set_up().map_err(|error| cause::explained(error, Some(&connection), folder_of(path)))?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// Copies the whole log into the file and starts the log over. After a failed fsync the system treats the log's pages as written,
/// although they are not on the disk. Whatever is appended after them would be lost with them at a power cut.
pub fn start_log_over(connection: &Connection) -> rusqlite::Result<()> {
    let is_busy: bool = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    if is_busy { Err(our_error(ffi::SQLITE_BUSY, "the log is in use, and cannot be begun anew")) } else { Ok(()) }
}
