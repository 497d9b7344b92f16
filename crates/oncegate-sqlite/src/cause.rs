//! Explains why the disk failed, because SQLite often says no more than "disk I/O error".

use std::path::Path;

use rusqlite::{Connection, ErrorCode, ffi};
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;

use crate::our_error;

/// The same error, with its cause if that can be found.
pub fn explained(error: rusqlite::Error, connection: Option<&Connection>, folder: &Path) -> rusqlite::Error {
    let Some(code) = error.sqlite_error().copied() else { return error };
    let may_be_the_disk = matches!(
        code.code,
        ErrorCode::DiskFull | ErrorCode::SystemIoFailure | ErrorCode::CannotOpen | ErrorCode::ReadOnly
    );
    if !may_be_the_disk || code.extended_code == ffi::SQLITE_READONLY_DBMOVED {
        return error;
    }
    let cause = match code.code {
        ErrorCode::DiskFull => Some(FULL),
        _ => connection.and_then(system_error).and_then(cause_of).or_else(|| cause_in(folder)),
    };
    match cause {
        Some(cause) => our_error(code.extended_code, format!("{cause} ({error})")),
        None => error,
    }
}

const FULL: &str = "the disk is full";
const READ_ONLY: &str = "the file system is read-only";

/// The system's error in words for an operator.
pub fn cause_of(error: Errno) -> Option<&'static str> {
    match error {
        Errno::NOSPC => Some(FULL),
        Errno::DQUOT => Some("the disk quota is used up"),
        Errno::ROFS => Some(READ_ONLY),
        _ => None,
    }
}

/// The cause that the file system itself reports.
fn cause_in(folder: &Path) -> Option<&'static str> {
    let found = rustix::fs::statvfs(folder).ok()?;
    if found.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Some(READ_ONLY);
    }
    // Some file systems do not count blocks.
    (found.f_blocks > 0 && found.f_bavail == 0).then_some(FULL)
}

/// The system's error behind the connection's last one.
#[expect(
    unsafe_code,
    reason = "SQLite tells a full disk from a broken one by this alone, and rusqlite does not pass it on"
)]
fn system_error(connection: &Connection) -> Option<Errno> {
    // SAFETY: The connection is open, and this only reads a number from it.
    let number = unsafe { ffi::sqlite3_system_errno(connection.handle()) };
    (number != 0).then(|| Errno::from_raw_os_error(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_and_a_read_only_one_are_named() {
        let said = |code| explained(our_error(code, "SQLite's words"), None, Path::new("/")).to_string();
        assert_eq!(said(ffi::SQLITE_FULL), "the disk is full (SQLite's words)");
        assert_eq!(said(ffi::SQLITE_BUSY), "SQLite's words");
        assert_eq!(cause_of(Errno::NOSPC), Some(FULL));
        assert_eq!(cause_of(Errno::ROFS), Some(READ_ONLY));
        assert_eq!(cause_of(Errno::IO), None);
        // More would need a read-only file system that exists on every machine.
        assert_eq!(cause_in(Path::new("/proc")), None);
    }
}
