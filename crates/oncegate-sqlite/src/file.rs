//! Which file this is. A store whose file was moved, replaced, deleted or damaged while it is open answers nothing more.
//!
//! SQLite holds the file open, and would go on writing to a file that has no name any more. Two servers would then own one key: one in the
//! file that was renamed, one in the file that took its place. Looking takes a `stat` of the name: to open the file a second time, and to close it,
//! would drop SQLite's own locks.

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

/// For so long a look holds, for answers that write nothing.
const LOOK_HOLDS: Duration = Duration::from_millis(50);

/// For so long a successful write proves that the next one will be.
const WRITE_PROVES: Duration = Duration::from_secs(5);

pub struct WatchedFile {
    path: PathBuf,
    id: FileId,
    /// Keeps the inode's number from another file while no connection has the file open. Opened as a path only: to close it
    /// drops none of SQLite's locks.
    _pin: Pin,
    /// The log and its index, while the writer has them open. SQLite finds them by their names too.
    beside: Mutex<Vec<(PathBuf, FileId)>>,
    opened: Instant,
    /// When it was last looked at, in milliseconds since it was opened.
    looked_at: AtomicU64,
    bytes: AtomicU64,
    /// It was shorter than before. A `VACUUM` does that, and so does a truncation.
    has_shrunk: AtomicBool,
    /// When a commit that changed something was last written, if the last one was.
    written_at: Mutex<Option<Instant>>,
    /// Why nothing is answered any more.
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
    /// The file that the connection has open.
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

    /// Fails, unless a connection that was just opened by the file's name has this very file.
    pub fn check(&self, connection: &Connection) -> rusqlite::Result<()> {
        self.look()?;
        let mut has_moved = 0;
        connection.file_control(None::<&str>, FileControl::HasMoved(&mut has_moved))?;
        if has_moved != 0 { Err(self.is_gone("was moved or replaced while it was opened")) } else { Ok(()) }
    }

    /// The log and its index are open, and are watched as well. They are beside the file that a link leads to.
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

    /// Before they are closed: the last to close them removes them.
    pub fn unwatch_log(&self) {
        self.lock().clear();
    }

    /// Fails, now and from now on, if the file is not where it was.
    pub fn look(&self) -> rusqlite::Result<()> {
        if let Some(why) = self.gone.get() {
            return Err(gone(why));
        }
        // Locked: nobody closes the log while it is looked at.
        let beside = self.lock();
        self.looked_at.store(self.age_ms(), Relaxed);
        let metadata = self.look_at(&self.path, self.id)?;
        if metadata.len() < self.bytes.swap(metadata.len(), Relaxed) {
            self.has_shrunk.store(true, Relaxed);
        }
        beside.iter().try_for_each(|(path, id)| self.look_at(path, *id).map(drop))
    }

    /// The same, if the last look was a while ago.
    pub fn look_lately(&self) -> rusqlite::Result<()> {
        // Another thread may have looked since.
        let age_ms = self.age_ms().saturating_sub(self.looked_at.load(Relaxed));
        let holds = u128::from(age_ms) < LOOK_HOLDS.as_millis();
        if holds && self.gone.get().is_none() { Ok(()) } else { self.look() }
    }

    /// After a commit and before its answers: the file is where it was, and whole.
    pub fn look_after_commit(&self, connection: &Connection) -> rusqlite::Result<()> {
        self.look()?;
        if self.has_shrunk.swap(false, Relaxed) {
            // A check that cannot be made says nothing of the commit, which is written.
            let checked = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0));
            let found: String = checked.map_err(|error| our_error(ffi::SQLITE_IOERR, error.to_string()))?;
            if found != "ok" {
                return Err(self.is_gone(&format!("was truncated ({found})")));
            }
        }
        Ok(())
    }

    /// Whether the last write was a success.
    pub fn note_write(&self, is_written: bool) {
        *self.written_at.lock().expect("no holder of this lock panics") = is_written.then(Instant::now);
    }

    /// Whether the last write was a success, and not long ago.
    pub fn was_written_lately(&self) -> bool {
        let written_at = *self.written_at.lock().expect("no holder of this lock panics");
        written_at.is_some_and(|written_at| written_at.elapsed() < WRITE_PROVES)
    }

    /// Nothing is answered from it any more. Says so in the log, once.
    pub fn is_gone(&self, what: &str) -> rusqlite::Error {
        self.tell(&self.path, what)
    }

    pub fn folder(&self) -> &Path {
        folder_of(&self.path)
    }

    /// Why nothing is answered from it any more.
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

/// Elsewhere to close a file that is open for reading drops SQLite's locks.
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

    /// While the disk fails no connection has the file open.
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
        // A file system gives out the numbers of inodes again.
        for _ in 0..200 {
            std::fs::write(&path, "another").unwrap();
            assert!(FileId::of(&path.metadata().unwrap()) != id, "another file has its number");
            std::fs::remove_file(&path).unwrap();
        }
        std::fs::write(&path, "another").unwrap();
        assert!(file.look().is_err());
    }
}
