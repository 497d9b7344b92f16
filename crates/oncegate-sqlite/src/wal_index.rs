//! Tells which commit is the file's last one, from the memory that SQLite shares between all processes with the file open.
//!
//! That memory is the wal-index. Its header changes with every commit, after the commit is in the log. SQLite compares the
//! header to know whether its cached pages are still valid, and so does this store. The layout is part of
//! the format on which processes with different versions of SQLite agree.

use std::ffi::c_void;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

use rusqlite::{Connection, ffi};
use rustix::io::Errno;

use crate::file::folder_of;
use crate::open::BUSY_TIMEOUT;
use crate::{cause, our_error, readers};

/// The size of one mapped region of the wal-index.
const REGION_BYTES: i32 = 32_768;
const WORDS: usize = 12;
/// The header's words with the count of commits and with the length of the log.
const COMMITS: usize = 2;
const FRAMES: usize = 4;

/// A header. Equal headers belong to the same commit. Headers of the same commit may differ, for example after the log has
/// started over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Version([u32; WORDS]);

impl Version {
    /// Whether this is the commit right after `before`, by a transaction that left the log `frames` long.
    pub fn follows(self, before: Version, frames: u32) -> bool {
        self.0[COMMITS] == before.0[COMMITS].wrapping_add(1) && self.0[FRAMES] == frames
    }
}

/// A version that one thread changes while other threads read it.
///
/// A reader may see this or the header half changed, with words of two versions. If the two still compare as equal, their counts of commits
/// are equal too. Then the next commit was not yet there when the header was read, and the reader sees everything that was done
/// before this version was set.
#[derive(Default)]
pub struct SharedVersion([AtomicU32; WORDS]);

impl SharedVersion {
    pub fn get(&self) -> Version {
        load(&self.0)
    }

    /// A thread that gets this version sees everything that was done before `set`.
    pub fn set(&self, Version(words): Version) {
        self.0.iter().zip(words).for_each(|(word, value)| word.store(value, Release));
    }
}

pub struct WalIndex {
    /// Valid only while the connection is open, not for `'static`.
    header: &'static [AtomicU32; WORDS],
    /// In a mutex that is never locked; it only makes the connection shareable between threads.
    _connection: Mutex<Connection>,
}

impl WalIndex {
    pub fn open(path: &Path) -> rusqlite::Result<Self> {
        let connection = readers::connect(path)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        // The first read opens the log and its index.
        let read = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()));
        read.map_err(|error| cause::explained(error, Some(&connection), folder_of(path)))?;
        Ok(WalIndex { header: map(&connection)?, _connection: Mutex::new(connection) })
    }

    pub fn version(&self) -> Version {
        load(self.header)
    }
}

/// Maps the first copy of the header. A commit writes the second copy first, and readers use the commit only when both copies are
/// equal. A reader that finds the first copy unchanged therefore came before the commit.
#[expect(unsafe_code, reason = "SQLite has no other way to tell without a transaction")]
fn map(connection: &Connection) -> rusqlite::Result<&'static [AtomicU32; WORDS]> {
    let mut file: *mut ffi::sqlite3_file = null_mut();
    let mut region: *mut c_void = null_mut();
    let mut failed = ffi::SQLITE_IOERR_SHMMAP;
    // SAFETY: The connection is open, and so is its file, whose methods are SQLite's own. What `xShmMap` gives stays mapped, at
    // the same address, until the connection is closed; it is aligned to a page, and as long as we ask for.
    // Other processes change it, hence the atomics.
    let header = unsafe {
        let (name, file_pointer) = (c"main".as_ptr(), ffi::SQLITE_FCNTL_FILE_POINTER);
        ffi::sqlite3_file_control(connection.handle(), name, file_pointer, (&raw mut file).cast());
        let methods = file.as_ref().and_then(|file| file.pMethods.as_ref());
        if let Some(map) = methods.filter(|methods| methods.iVersion >= 2).and_then(|methods| methods.xShmMap) {
            failed = map(file, 0, REGION_BYTES, 0, &raw mut region);
        }
        region.cast::<[AtomicU32; WORDS]>().as_ref()
    };
    header.ok_or_else(|| {
        let system = std::io::Error::last_os_error();
        let cause = system.raw_os_error().map(Errno::from_raw_os_error).and_then(cause::cause_of);
        match cause {
            Some(cause) => our_error(failed, format!("{cause}: the log's index cannot be read")),
            None => our_error(failed, format!("the log's index cannot be read: {system}")),
        }
    })
}

fn load(words: &[AtomicU32; WORDS]) -> Version {
    Version(std::array::from_fn(|at| words[at].load(Acquire)))
}
