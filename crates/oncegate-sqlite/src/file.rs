//! Watches the identity of the file. A store whose file was moved, replaced, deleted or damaged while open stops answering.
//!
//! SQLite holds the file open, and would continue to write to a file that no longer has its name. Two servers would then own one key:
//! one in the renamed file, one in the file that took its place. The check is a `stat` of the name, because opening and closing the
//! file a second time would drop SQLite's own locks.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use rusqlite::{Connection, FileControl, ffi};

use crate::our_error;

/// How long one check is valid for answers that write nothing.
const LOOK_HOLDS: Duration = Duration::from_millis(50);

/// How long a successful write is taken as proof that the next write will succeed.
const WRITE_PROVES: Duration = Duration::from_secs(5);

pub struct WatchedFile {
    path: PathBuf,
    id: FileId,
    /// Keeps the inode's number from being reused while no connection has the file open. It is opened as a path only, so closing it
    /// drops none of SQLite's locks.
    _pin: Pin,
    /// The log and its index, while the writer has them open. SQLite opens them by name too.
    beside: Mutex<Vec<(PathBuf, FileId)>>,
    opened: Instant,
    /// When the file was last checked, in milliseconds since it was opened.
    looked_at: AtomicU64,
    bytes: AtomicU64,
    /// The file has become shorter: by a `VACUUM`, or by a truncation.
    has_shrunk: AtomicBool,
    /// When a commit last wrote a change, if the last write succeeded.
    written_at: Mutex<Option<Instant>>,
    /// Why the store has stopped answering.
    gone: OnceLock<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    fn of(metadata: &Metadata) -> FileId {
        FileId { device: metadata.dev(), inode: metadata.ino() }
    }
}

impl WatchedFile {
    /// Watches the file that the connection has open.
    pub fn open_in(connection: &Connection, path: &Path) -> rusqlite::Result<Self> {
        let metadata = path.metadata().map_err(|error| cannot_look(path, &error))?;
        let file = WatchedFile {
            path: path.to_path_buf(),
            id: FileId::of(&metadata),
            _pin: pin(path).map_err(|error| cannot_look(path, &error))?,
            beside: Mutex::default(),
            opened: Instant::now(),
            looked_at: AtomicU64::new(0),
            bytes: AtomicU64::new(metadata.len()),
            has_shrunk: AtomicBool::new(false),
            written_at: Mutex::default(),
            gone: OnceLock::new(),
        };
        file.check(connection)?;
        Ok(file)
    }

    /// Fails unless a connection that was just opened by name has this same file.
    pub fn check(&self, connection: &Connection) -> rusqlite::Result<()> {
        self.look()?;
        let mut has_moved = 0;
        connection.file_control(None::<&str>, FileControl::HasMoved(&mut has_moved))?;
        if has_moved != 0 { Err(self.is_gone("was moved or replaced while it was opened")) } else { Ok(()) }
    }

    /// Watches the log and its index too, once they are open. If the path is a link, they are beside the link's target.
    pub fn watch_log(&self, connection: &Connection) -> rusqlite::Result<()> {
        let file = connection.path().map_or(self.path.as_os_str(), OsStr::new);
        let beside = ["-wal", "-shm"].map(|suffix| {
            let mut name = file.to_owned();
            name.push(suffix);
            let path = PathBuf::from(name);
            let metadata = path.metadata().map_err(|error| cannot_look(&path, &error))?;
            Ok((path, FileId::of(&metadata)))
        });
        *self.lock() = beside.into_iter().collect::<rusqlite::Result<_>>()?;
        Ok(())
    }

    /// Must be called before the log is closed, because the last connection to close removes the log and its index.
    pub fn unwatch_log(&self) {
        self.lock().clear();
    }

    /// Checks the file. If the file is not where it was, this check and all later ones fail.
    pub fn look(&self) -> rusqlite::Result<()> {
        if let Some(why) = self.gone.get() {
            return Err(gone(why));
        }
        // Locked, so that the log is not closed during the check.
        let beside = self.lock();
        self.looked_at.store(self.age_ms(), Relaxed);
        let metadata = self.look_at(&self.path, self.id)?;
        if metadata.len() < self.bytes.swap(metadata.len(), Relaxed) {
            self.has_shrunk.store(true, Relaxed);
        }
        beside.iter().try_for_each(|(path, id)| self.look_at(path, *id).map(drop))
    }

    /// Checks the file, unless the last check is still valid.
    pub fn look_lately(&self) -> rusqlite::Result<()> {
        // Another thread may have checked since.
        let age_ms = self.age_ms().saturating_sub(self.looked_at.load(Relaxed));
        let holds = u128::from(age_ms) < LOOK_HOLDS.as_millis();
        if holds && self.gone.get().is_none() { Ok(()) } else { self.look() }
    }

    /// Checks after a commit and before its answers that the file is where it was, and undamaged.
    pub fn look_after_commit(&self, connection: &Connection) -> rusqlite::Result<()> {
        self.look()?;
        if self.has_shrunk.swap(false, Relaxed) {
            // If the check cannot run, it says nothing about the commit, which is written.
            let checked = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0));
            let found: String = checked.map_err(|error| our_error(ffi::SQLITE_IOERR, error.to_string()))?;
            if found != "ok" {
                return Err(self.is_gone(&format!("was truncated ({found})")));
            }
        }
        Ok(())
    }

    /// Records whether the last write succeeded.
    pub fn note_write(&self, is_written: bool) {
        *self.written_at.lock().expect("no holder of this lock panics") = is_written.then(Instant::now);
    }

    /// Whether the last write succeeded, and was recent.
    pub fn was_written_lately(&self) -> bool {
        let written_at = *self.written_at.lock().expect("no holder of this lock panics");
        written_at.is_some_and(|written_at| written_at.elapsed() < WRITE_PROVES)
    }

    /// Marks the file as gone, so that the store stops answering. Logs that once.
    pub fn is_gone(&self, what: &str) -> rusqlite::Error {
        self.tell(&self.path, what)
    }

    pub fn folder(&self) -> &Path {
        folder_of(&self.path)
    }

    /// Why the store has stopped answering, if it has.
    pub fn why_gone(&self) -> Option<&str> {
        self.gone.get().map(String::as_str)
    }

    fn look_at(&self, path: &Path, id: FileId) -> rusqlite::Result<Metadata> {
        match path.metadata() {
            Ok(metadata) if FileId::of(&metadata) == id => Ok(metadata),
            Ok(_) => Err(self.tell(path, "was replaced by another file")),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Err(self.tell(path, "was moved or deleted"))
            }
            Err(error) => Err(cannot_look(path, &error)),
        }
    }

    fn tell(&self, path: &Path, what: &str) -> rusqlite::Error {
        let why = format!("{} {what} while the store had it open", path.display());
        if self.gone.set(why.clone()).is_ok() {
            tracing::error!(
                event = "sqlite.file_gone",
                path = %path.display(),
                error = why,
                hint = "the store answers nothing more. Put the right file, with its -wal, under this name, and restart"
            );
        }
        gone(self.gone.get().unwrap_or(&why))
    }

    fn age_ms(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(PathBuf, FileId)>> {
        self.beside.lock().expect("no holder of this lock panics")
    }
}

#[cfg(target_os = "linux")]
type Pin = rustix::fd::OwnedFd;
#[cfg(not(target_os = "linux"))]
type Pin = ();

#[cfg(target_os = "linux")]
fn pin(path: &Path) -> io::Result<Pin> {
    use rustix::fs::{Mode, OFlags};
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// On other systems, closing a file that is open for reading drops SQLite's locks.
#[cfg(not(target_os = "linux"))]
fn pin(_: &Path) -> io::Result<Pin> {
    Ok(())
}

pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn gone(why: &str) -> rusqlite::Error {
    our_error(ffi::SQLITE_READONLY_DBMOVED, why)
}

fn cannot_look(path: &Path, error: &io::Error) -> rusqlite::Error {
    our_error(ffi::SQLITE_IOERR_FSTAT, format!("cannot look at {}: {error}", path.display()))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// This case occurs while the disk fails, when no connection has the file open.
    #[test]
    fn a_file_that_is_replaced_while_no_connection_has_it_open_is_recognised() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        let connection = Connection::open(&path).unwrap();
        connection.execute_batch("CREATE TABLE t (x)").unwrap();
        let file = WatchedFile::open_in(&connection, &path).unwrap();
        drop(connection);
        let id = FileId::of(&path.metadata().unwrap());
        std::fs::remove_file(&path).unwrap();
        // A file system reuses inode numbers.
        for _ in 0..200 {
            std::fs::write(&path, "another").unwrap();
            assert!(FileId::of(&path.metadata().unwrap()) != id, "another file has its number");
            std::fs::remove_file(&path).unwrap();
        }
        std::fs::write(&path, "another").unwrap();
        assert!(file.look().is_err());
    }
}
