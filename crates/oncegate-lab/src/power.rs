//! Power cuts: a child process whose unsynced writes may be gone after it was killed.
//!
//! `kill -9` alone proves little, since the page cache outlives the process. The shim records each change of a file that no sync has
//! covered yet, with the bytes before it. [`Shim::cut`] then undoes a random part of these changes, like a disk that lost its power.
//! Each write stays, is lost, or is torn between sectors of 512 bytes. Changes of folders (a file created, removed, renamed) are undone
//! from the last one back, since file systems keep their order. The content of shared memory (`-shm`) is lost.
//!
//! ```no_run
//! # use oncegate_lab::power::Shim;
//! # use std::process::Command;
//! let power = Shim::new("data", "power").unwrap();
//! let mut server = Command::new("oncegate");
//! power.apply_to(&mut server);
//! let mut server = server.spawn().unwrap();
//! // … load …
//! server.kill().unwrap();
//! server.wait().unwrap();
//! println!("{:?}", power.cut(17).unwrap());
//! // … start it again, and look for all that was acknowledged …
//! ```

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shim;

const FOLDER: &str = "ONCEGATE_TEST_POWER_FOLDER";
const LOG: &str = "ONCEGATE_TEST_POWER_LOG";
/// The unit that a disk writes completely or not at all.
const SECTOR_BYTES: u64 = 512;
/// How long a sync takes by default, so that kills happen within one.
const SYNC_MICROS: u32 = 200;

/// The offsets in the control file.
const SYNC_ERROR_AT: u64 = 0;
const WRITE_ERROR_AT: u64 = 4;
const SYNC_MICROS_AT: u64 = 8;
const WRITES_AT: u64 = 16;
const SYNCS_AT: u64 = 24;
const CONTROL_BYTES: u64 = 32;

/// Errors for [`Shim::fail_syncs`] and [`Shim::fail_writes`].
pub mod errno {
    /// I/O error.
    pub const EIO: i32 = 5;
    /// No space left on device.
    pub const ENOSPC: i32 = 28;
    /// Read-only file system.
    pub const EROFS: i32 = 30;
}

/// The shim for one folder. Any number of processes may load it; all of them lose their power together.
#[derive(Debug)]
pub struct Shim {
    library: PathBuf,
    folder: PathBuf,
    log: PathBuf,
    control: File,
}

/// What a cut found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Changes that no sync had covered.
    pub unsynced: usize,
    pub undone: usize,
    /// The undone writes of which some sectors stayed.
    pub torn: usize,
}

impl Shim {
    /// Watches the files in `folder`, and keeps its logs in `log`. Creates both if they are missing. They must be on one file system,
    /// and neither may be inside the other.
    pub fn new(folder: impl AsRef<Path>, log: impl AsRef<Path>) -> io::Result<Shim> {
        let library = shim::build("power", include_str!("../shim/power.c"))?;
        fs::create_dir_all(&folder)?;
        fs::create_dir_all(&log)?;
        let (folder, log) = (folder.as_ref().canonicalize()?, log.as_ref().canonicalize()?);
        let control = File::options().read(true).write(true).create(true).truncate(true).open(log.join("control"))?;
        control.set_len(CONTROL_BYTES)?;
        let shim = Shim { library, folder, log, control };
        shim.slow_syncs(SYNC_MICROS)?;
        Ok(shim)
    }

    /// Makes the child, once spawned, depend on this power supply.
    pub fn apply_to(&self, child: &mut Command) {
        shim::preload(child, &self.library);
        child.env(FOLDER, &self.folder).env(LOG, &self.log);
    }

    /// From now on each sync fails with this error; `None` lets syncs succeed again. The next power cut loses what a failed sync should
    /// have written, even if later syncs succeed, unless the process writes it again. Linux behaves like that.
    pub fn fail_syncs(&self, errno: Option<i32>) -> io::Result<()> {
        self.control.write_all_at(&errno.unwrap_or(0).to_ne_bytes(), SYNC_ERROR_AT)
    }

    /// From now on each write, and each new file, fails with this error; `None` lets writes succeed again.
    pub fn fail_writes(&self, errno: Option<i32>) -> io::Result<()> {
        self.control.write_all_at(&errno.unwrap_or(0).to_ne_bytes(), WRITE_ERROR_AT)
    }

    /// How long each sync takes.
    pub fn slow_syncs(&self, micros: u32) -> io::Result<()> {
        self.control.write_all_at(&micros.to_ne_bytes(), SYNC_MICROS_AT)
    }

    /// How many writes there have been.
    pub fn writes(&self) -> io::Result<u64> {
        self.counter(WRITES_AT)
    }

    /// How many syncs there have been.
    pub fn syncs(&self) -> io::Result<u64> {
        self.counter(SYNCS_AT)
    }

    fn counter(&self, at: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.control.read_exact_at(&mut bytes, at)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Cuts the power. All processes on it must be dead. Undoes a random part of what was not synced. The same seed on the same files
    /// undoes the same.
    pub fn cut(&self, seed: u64) -> io::Result<Cut> {
        let mut dice = Dice(seed);
        let mut cut = Cut::default();
        let mut logs = vec![];
        for entry in fs::read_dir(&self.log)? {
            let path = entry?.path();
            let inode = path.file_stem().and_then(OsStr::to_str).and_then(|stem| stem.parse::<u64>().ok());
            if let Some(inode) = inode.filter(|_| path.extension() == Some(OsStr::new("log"))) {
                logs.push((inode, unsynced(&records(&fs::read(&path)?)?)));
            }
        }
        logs.sort_by_key(|(inode, _)| *inode);
        // Folders first, because they decide which files exist.
        for (_, records) in logs.iter().filter(|(_, records)| records.iter().any(|(record, _)| record.is_of_folder())) {
            let lost = dice.below(records.len() as u64 + 1) as usize;
            cut.unsynced += records.len();
            cut.undone += lost;
            for (record, _) in records.iter().rev().take(lost) {
                record.undo_in_folder()?;
            }
        }
        let files = files_by_inode(&self.folder)?;
        for (inode, records) in &logs {
            if let Some(path) = files.get(inode).filter(|path| path.is_file()) {
                undo_in_file(path, records, &mut dice, &mut cut)?;
            }
        }
        for path in files_by_inode(&self.folder)?.values() {
            if path.as_os_str().as_bytes().ends_with(b"-shm") {
                fs::remove_file(path)?;
            }
        }
        self.forget()?;
        Ok(cut)
    }

    /// Treats everything written so far as synced. No process may be running on this power supply.
    pub fn forget(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.log)? {
            let entry = entry?;
            if entry.file_name() != "control" {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Truncate,
    Create,
    Unlink,
    Rename,
    Sync,
    FailedSync,
}

/// A record as the shim writes it.
#[derive(Clone, Debug)]
struct Record {
    /// Its position in the log.
    at: u64,
    kind: Kind,
    inode: u64,
    offset: u64,
    length: u64,
    size_before: u64,
    data: Vec<u8>,
}

impl Record {
    fn is_of_folder(&self) -> bool {
        matches!(self.kind, Kind::Create | Kind::Unlink | Kind::Rename)
    }

    fn names(&self) -> Vec<PathBuf> {
        self.data.split(|byte| *byte == 0).map(|name| PathBuf::from(OsStr::from_bytes(name))).collect()
    }

    fn undo_in_folder(&self) -> io::Result<()> {
        let names = self.names();
        let has_inode = |path: &Path| fs::metadata(path).is_ok_and(|found| found.ino() == self.inode);
        match (self.kind, &names[..]) {
            (Kind::Create, [path, ..]) if has_inode(path) => fs::remove_file(path),
            (Kind::Unlink, [path, saved, ..]) if !path.exists() => fs::hard_link(saved, path),
            (Kind::Rename, [from, to, saved, ..]) if has_inode(to) => {
                fs::rename(to, from)?;
                if saved.as_os_str().is_empty() { Ok(()) } else { fs::hard_link(saved, to) }
            }
            // The process died before it made this change.
            _ => Ok(()),
        }
    }
}

fn records(log: &[u8]) -> io::Result<Vec<Record>> {
    let broken = || io::Error::other("a log of the power shim is broken");
    let number = |at: usize| {
        let bytes = log.get(at..at + 8).ok_or_else(broken)?;
        Ok::<_, io::Error>(u64::from_ne_bytes(bytes.try_into().map_err(|_| broken())?))
    };
    if log.len() < HEAD_BYTES {
        return Ok(vec![]);
    }
    let end = usize::try_from(number(0)?).map_err(|_| broken())?;
    let (mut at, mut found) = (HEAD_BYTES, vec![]);
    while at < end {
        let data_length = usize::try_from(number(at + 40)?).map_err(|_| broken())?;
        let data = log.get(at + RECORD_BYTES..at + RECORD_BYTES + data_length).ok_or_else(broken)?;
        found.push(Record {
            at: at as u64,
            kind: match number(at)? {
                1 => Kind::Write,
                2 => Kind::Truncate,
                3 => Kind::Create,
                4 => Kind::Unlink,
                5 => Kind::Rename,
                6 => Kind::Sync,
                7 => Kind::FailedSync,
                _ => return Err(broken()),
            },
            inode: number(at + 8)?,
            offset: number(at + 16)?,
            length: number(at + 24)?,
            size_before: number(at + 32)?,
            data: data.to_vec(),
        });
        at += RECORD_BYTES + data_length;
    }
    Ok(found)
}

const HEAD_BYTES: usize = 16;
const RECORD_BYTES: usize = 48;

/// The changes that a power cut can undo. After a failed sync also the synced ones, because they protect what they wrote.
fn unsynced(records: &[Record]) -> Vec<(Record, bool)> {
    let is_sync = |record: &&Record| matches!(record.kind, Kind::Sync | Kind::FailedSync);
    let syncs: Vec<_> = records.iter().filter(is_sync).collect();
    let changes = records.iter().filter(|record| !is_sync(record));
    let with_fate = changes.map(|change| {
        // The first sync that covers a change decides. A failed sync marks the page as clean, so later syncs skip it.
        let decided = syncs.iter().find(|sync| sync.at > change.at && sync.offset > change.at);
        (change.clone(), decided.is_some_and(|sync| sync.kind == Kind::Sync))
    });
    let all: Vec<_> = with_fate.collect();
    // A synced change protects nothing if no unsynced change comes before it.
    let first = all.iter().position(|(_, is_synced)| !is_synced).unwrap_or(all.len());
    all[first..].to_vec()
}

/// Undoes changes, from the newest one back.
fn undo_in_file(path: &Path, records: &[(Record, bool)], dice: &mut Dice, cut: &mut Cut) -> io::Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    // Sectors that a later sync has brought to the disk: earlier losses are not visible there.
    let mut settled = HashSet::new();
    // From "the disk had written almost nothing by itself" to "almost everything".
    let kept_in_8 = dice.below(9);
    for (record, is_synced) in records.iter().rev() {
        if *is_synced {
            settled.extend(record.offset / SECTOR_BYTES..(record.offset + record.length).div_ceil(SECTOR_BYTES));
            continue;
        }
        cut.unsynced += 1;
        if dice.below(8) < kept_in_8 {
            continue;
        }
        cut.undone += 1;
        match record.kind {
            Kind::Write => {
                let is_torn = record.length > SECTOR_BYTES && dice.below(3) == 0;
                cut.torn += usize::from(is_torn);
                undo_write(&file, record, &settled, |_| !is_torn || dice.below(2) == 0)?;
            }
            Kind::Truncate => undo_truncate(&file, record)?,
            _ => {}
        }
    }
    Ok(())
}

fn undo_write(
    file: &File,
    write: &Record,
    settled: &HashSet<u64>,
    mut is_lost: impl FnMut(u64) -> bool,
) -> io::Result<()> {
    let size = file.metadata()?.len();
    let end = (write.offset + write.length).min(size);
    let mut at = write.offset;
    let mut all_lost = true;
    while at < end {
        let sector = at / SECTOR_BYTES;
        let next = ((sector + 1) * SECTOR_BYTES).min(end);
        if settled.contains(&sector) || !is_lost(sector) {
            all_lost = false;
        } else {
            // The file had nothing past its end, so a file system shows zeros.
            let mut before = vec![0; (next - at) as usize];
            let from = (at - write.offset) as usize;
            let kept = write.data.get(from..).unwrap_or_default();
            let kept = &kept[..kept.len().min(before.len())];
            before[..kept.len()].copy_from_slice(kept);
            file.write_all_at(&before, at)?;
        }
        at = next;
    }
    // No later change extended the file, so it gets its old length.
    if all_lost && size == write.offset + write.length && write.size_before < size {
        file.set_len(write.size_before)?;
    }
    Ok(())
}

fn undo_truncate(file: &File, truncate: &Record) -> io::Result<()> {
    let size = file.metadata()?.len();
    if size == truncate.length {
        file.set_len(truncate.size_before)?;
        file.write_all_at(&truncate.data, truncate.length)?;
    }
    Ok(())
}

fn files_by_inode(folder: &Path) -> io::Result<HashMap<u64, PathBuf>> {
    let mut found = HashMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let metadata = fs::symlink_metadata(&path)?;
            if metadata.is_dir() {
                folders.push(path);
            } else {
                found.insert(metadata.ino(), path);
            }
        }
    }
    Ok(found)
}

/// SplitMix64: the same numbers for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &[u8] = &[b'o'; 2_048];

    /// Applies dd to a file of 2,048 bytes, and returns what the power cuts of 40 seeds leave of it.
    fn after_cuts(dd: &[&str]) -> Vec<Option<Vec<u8>>> {
        let place = tempfile::tempdir().expect("a temporary folder");
        let shim = Shim::new(place.path().join("data"), place.path().join("log")).expect("cc builds the shim");
        let file = place.path().join("data/file");
        (0..40)
            .map(|seed| {
                fs::write(&file, OLD).expect("writes");
                let mut child = Command::new("dd");
                shim.apply_to(&mut child);
                child.arg("if=/dev/zero").arg(format!("of={}", file.display())).args(dd);
                assert!(child.status().expect("dd runs").success());
                shim.cut(seed).expect("cuts the power");
                fs::read(&file).ok()
            })
            .collect()
    }

    #[test]
    fn what_was_not_synced_stays_goes_or_is_torn() {
        let left = after_cuts(&["bs=2048", "count=1", "conv=notrunc", "status=none"]);
        assert!(left.contains(&Some(OLD.to_vec())), "lost");
        assert!(left.contains(&Some(vec![0; 2_048])), "kept");
        let torn = left.iter().flatten().filter(|left| left.contains(&b'o') && left.contains(&0));
        let whole_sectors = |left: &Vec<u8>| left.chunks(512).all(|part| part.iter().all(|byte| *byte == part[0]));
        assert!(torn.clone().count() > 0 && torn.clone().all(whole_sectors));
    }

    #[test]
    fn what_was_synced_stays() {
        let left = after_cuts(&["bs=2048", "count=1", "conv=notrunc,fdatasync", "status=none"]);
        assert!(left.iter().all(|left| *left == Some(vec![0; 2_048])), "{left:?}");
        let left = after_cuts(&["bs=2048", "count=1", "conv=notrunc,fsync", "status=none"]);
        assert!(left.iter().all(|left| *left == Some(vec![0; 2_048])));
    }

    #[test]
    fn what_was_appended_and_not_synced_may_be_gone_or_zeros() {
        let left = after_cuts(&["bs=1024", "count=2", "seek=2", "conv=notrunc", "status=none"]);
        assert!(left.contains(&Some(OLD.to_vec())));
        assert!(left.iter().flatten().all(|left| left.starts_with(OLD) && left.len() <= 4_096));
    }

    #[test]
    fn a_file_that_was_removed_or_made_may_be_there_or_not() {
        let place = tempfile::tempdir().expect("a temporary folder");
        let shim = Shim::new(place.path().join("data"), place.path().join("log")).expect("cc builds the shim");
        let (old, new) = (place.path().join("data/old"), place.path().join("data/new"));
        let mut seen = HashSet::new();
        for seed in 0..40 {
            fs::write(&old, OLD).expect("writes");
            _ = fs::remove_file(&new);
            let mut child = Command::new("sh");
            shim.apply_to(&mut child);
            // The shim sees `unlink`, not the `unlinkat` of rm.
            let line = format!("unlink {} && dd if=/dev/zero of={} count=1 status=none", old.display(), new.display());
            assert!(child.args(["-c", &line]).status().expect("sh runs").success());
            shim.cut(seed).expect("cuts the power");
            if let Ok(found) = fs::read(&old) {
                assert_eq!(found, OLD);
            }
            seen.insert((old.exists(), new.exists()));
        }
        assert!(!seen.contains(&(true, true)), "the later change is lost first");
        assert_eq!(seen.len(), 3, "{seen:?}");
    }

    #[test]
    fn a_failed_sync_is_told_and_its_writes_are_lost_though_later_syncs_succeed() {
        let place = tempfile::tempdir().expect("a temporary folder");
        let shim = Shim::new(place.path().join("data"), place.path().join("log")).expect("cc builds the shim");
        let file = place.path().join("data/file");
        let dd = |args: &[&str]| {
            let mut child = Command::new("dd");
            shim.apply_to(&mut child);
            child.arg("if=/dev/zero").arg(format!("of={}", file.display())).args(args);
            child.stderr(std::process::Stdio::null()).status().expect("dd runs")
        };
        let mut lost = 0;
        for seed in 0..20 {
            fs::write(&file, OLD).expect("writes");
            shim.fail_syncs(Some(errno::EIO)).expect("sets");
            assert!(!dd(&["bs=512", "count=1", "conv=notrunc,fdatasync", "status=none"]).success());
            shim.fail_syncs(None).expect("sets");
            assert!(dd(&["bs=512", "count=1", "seek=1", "conv=notrunc,fdatasync", "status=none"]).success());
            shim.cut(seed).expect("cuts the power");
            let left = fs::read(&file).expect("reads");
            assert_eq!(left[512..1024], [0; 512], "it was synced");
            lost += usize::from(left[0] == b'o');
        }
        assert!(lost > 0);
        shim.fail_writes(Some(errno::ENOSPC)).expect("sets");
        assert!(!dd(&["bs=512", "count=1", "conv=notrunc", "status=none"]).success());
        assert!(shim.writes().expect("reads") > 0 && shim.syncs().expect("reads") > 0);
    }
}
