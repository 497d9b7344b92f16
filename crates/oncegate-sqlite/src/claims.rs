//! The claims, and what is kept beside them, as the writer's transaction sees and changes them: the tables and what is in memory of them, kept in step.

use std::sync::Arc;

use oncegate_core::{Claim, ClaimKey, Moment, Time, Token};
use oncegate_store::{Change, DuplicateCount};
use rusqlite::{Connection, Row, Statement};

use crate::anchor::Anchor;
use crate::books;
use crate::cause;
use crate::file::WatchedFile;
use crate::index::{Entry, Index};
use crate::ledger_clock::{LedgerClock, Observed};
use crate::recent::{Recent, Written};
use crate::rows::{self, Found};

pub struct Claims<'c> {
    pub connection: &'c Connection,
    pub index: &'c Index,
    recent: &'c Recent,
    file: &'c WatchedFile,
    clock: &'c LedgerClock,
    /// What the file says of the ledger's clock, while that is known.
    anchor: Option<Anchor>,
    /// What this transaction goes by.
    observed: Option<Observed>,
    /// Rows changed before this transaction.
    changes_before: u64,
    /// Whether the last commit changed anything: one that did not shows nothing of the disk.
    pub has_written: bool,
    // The statements of the hot path, prepared once.
    read: Statement<'c>,
    /// Each for so many new claims, the most first.
    create: [(usize, Statement<'c>); 3],
    replace: Statement<'c>,
    read_removed: Statement<'c>,
    /// What the file says of rows that are gone, while that is known.
    removed: Option<Removed>,
    /// Every row of the file is in the index, and none has a larger number than this; as long as nobody else writes.
    last_seq: Option<i64>,
    /// Where the next new claim goes; known while a transaction may append.
    next_seq: Option<i64>,
    /// What this transaction has entered into the index.
    entered: Vec<Entry>,
    /// New claims that are not in the table yet. They are appended together, which is a fifth cheaper.
    unwritten: Vec<(i64, Arc<Claim>)>,
    /// What it has written so far.
    written: Vec<Written>,
    /// The index is to be read, or read again, before the next transaction.
    is_cold: bool,
    /// Each job can be undone by itself. That takes a copy of every page that it changes, and few have to be undone: it is so only after one had to.
    is_careful: bool,
    /// A job of this transaction has failed, and has left, or would have left, something behind.
    is_spoilt: bool,
}

/// The largest of what was in rows that are gone, and how many these are.
#[derive(Clone, Copy)]
struct Removed {
    token: Token,
    seq: i64,
    rows: i64,
}

impl<'c> Claims<'c> {
    pub fn open(
        connection: &'c Connection,
        index: &'c Index,
        recent: &'c Recent,
        file: &'c WatchedFile,
        clock: &'c LedgerClock,
    ) -> rusqlite::Result<Self> {
        let create = |claims| connection.prepare(&rows::create_many(claims)).map(|create| (claims, create));
        Ok(Claims {
            connection,
            index,
            recent,
            file,
            clock,
            anchor: None,
            observed: None,
            changes_before: 0,
            has_written: false,
            read: connection.prepare(rows::READ)?,
            create: [create(16)?, create(4)?, create(1)?],
            replace: connection.prepare(rows::REPLACE)?,
            read_removed: connection.prepare("SELECT largest_token, largest_seq, rows FROM removed")?,
            removed: None,
            last_seq: None,
            next_seq: None,
            entered: vec![],
            unwritten: vec![],
            written: vec![],
            is_cold: true,
            is_careful: false,
            is_spoilt: false,
        })
    }

    /// Starts a transaction. One that works on claims first learns of all that other processes have appended.
    pub fn begin(&mut self, on_claims: bool) -> rusqlite::Result<()> {
        self.next_seq = None;
        self.entered.clear();
        self.unwritten.clear();
        self.written.clear();
        self.is_spoilt = false;
        self.observed = None;
        if on_claims && self.is_cold {
            // Before the lock: reading a whole file must not keep others from writing.
            self.index.clear();
            self.index.catch_up(self.connection)?;
            (self.is_cold, self.last_seq) = (false, None);
        }
        // After a while without a look: what is written to a file that is gone, or beside its locks, harms another.
        self.file.look_lately()?;
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        if !self.recent.begin() {
            (self.removed, self.last_seq, self.anchor) = (None, None, None);
        }
        self.changes_before = self.connection.total_changes();
        if on_claims {
            let last = match self.last_seq {
                Some(last) => last,
                None => {
                    let (last, removed) = (self.index.catch_up(self.connection)?, self.removed()?);
                    self.is_cold = self.index.is_mostly_stale(removed.rows);
                    *self.last_seq.insert(last.max(removed.seq))
                }
            };
            self.next_seq = Some(last + 1);
        }
        Ok(())
    }

    /// When this transaction decides. After the lock: time spent waiting for it is not part of any lease.
    pub fn moment(&mut self) -> rusqlite::Result<Moment> {
        let observed = match self.observed {
            Some(observed) => observed,
            None => *self.observed.insert(self.clock.observe(self.connection, self.anchor)?),
        };
        Ok(Moment { now: observed.now, token_floor: self.removed()?.token })
    }

    /// False while the wall clock is doubted: what is swept is gone for good.
    pub fn may_sweep(&self) -> bool {
        self.observed.is_some_and(|observed| observed.may_sweep)
    }

    fn removed(&mut self) -> rusqlite::Result<Removed> {
        if let Some(known) = self.removed {
            return Ok(known);
        }
        let read = |row: &Row<'_>| Ok(Removed { token: Token(row.get(0)?), seq: row.get(1)?, rows: row.get(2)? });
        Ok(*self.removed.insert(self.read_removed.query_row([], read)?))
    }

    pub fn find(&mut self, key: &ClaimKey) -> rusqlite::Result<Option<Found>> {
        let known = self.index.rows(key).known;
        let new = known.iter().find_map(|seq| Some((*seq, self.unwritten(*seq).filter(|claim| claim.key == *key)?)));
        match new {
            Some((seq, claim)) => Ok(Some(Found { seq, claim: claim.clone() })),
            None => rows::find_among(&mut self.read, &known, key),
        }
    }

    /// The new claim of this number, while it is not in the table. Their numbers follow each other.
    fn unwritten(&self, seq: i64) -> Option<&Arc<Claim>> {
        let (first, _) = self.unwritten.first()?;
        self.unwritten.get(usize::try_from(seq - first).ok()?).map(|(_, claim)| claim)
    }

    /// Writes what was decided: into the row that it was decided from, or into a new one.
    pub fn write(&mut self, seq: Option<i64>, claim: Arc<Claim>) -> rusqlite::Result<()> {
        let entry = match seq {
            Some(seq) => {
                if self.unwritten(seq).is_some() {
                    self.append()?;
                }
                write_all(&mut self.replace, &[(seq, claim.clone())])?;
                self.index.entry_of(&claim.key, seq)
            }
            None => {
                let seq = self.next_seq.as_mut().expect("this transaction appends");
                let entry = self.index.enter(&claim.key, *seq)?;
                self.entered.push(entry);
                self.unwritten.push((*seq, claim.clone()));
                *seq += 1;
                entry
            }
        };
        self.written.push(Written::Claim(entry, claim));
        Ok(())
    }

    /// Appends the new claims to the table. That fails with the file; only a text of a gigabyte would fail it by itself.
    pub fn append(&mut self) -> rusqlite::Result<()> {
        let mut appended = 0;
        for (claims, create) in &mut self.create {
            while let Some(next) = self.unwritten.get(appended..appended + *claims) {
                if let Err(error) = write_all(create, next) {
                    self.unwritten.drain(..appended);
                    return Err(error);
                }
                appended += *claims;
            }
        }
        self.unwritten.clear();
        Ok(())
    }

    /// Makes a change to what is kept beside claims, and says whether it found what it expects.
    pub fn apply(&mut self, change: &Change, now: Time) -> rusqlite::Result<bool> {
        let is_made = books::apply(self.connection, change, now)?;
        self.written.extend(Written::by(change).filter(|_| is_made));
        Ok(is_made)
    }

    pub fn count_duplicates(&mut self, counts: &[DuplicateCount]) -> rusqlite::Result<()> {
        rows::count_duplicates(self.connection, self.index, counts)?;
        let counted = |count: &DuplicateCount| Written::Counted(self.index.hash_of(&count.key), count.clone());
        self.written.extend(counts.iter().map(counted));
        Ok(())
    }

    /// Removes claims whose window has ended.
    pub fn sweep(&mut self, now: Time, limit: usize) -> rusqlite::Result<Vec<Entry>> {
        self.removed = None;
        let swept = rows::sweep(self.connection, self.index, now, limit)?;
        self.written.extend(swept.iter().copied().map(Written::Removed));
        Ok(swept)
    }

    /// Removes records that are past their end, and says how many.
    pub fn sweep_records(&mut self, now: Time, limit: usize) -> rusqlite::Result<usize> {
        let swept = books::sweep(self.connection, now, limit)?;
        let count = swept.len();
        self.written.extend(swept.into_iter().map(Written::RecordRemoved));
        Ok(count)
    }

    /// Runs something of which all or nothing stays, whatever becomes of the rest of the transaction; unless it [`is_beyond_repair`](Self::is_beyond_repair).
    pub fn savepoint<T, E>(&mut self, run: impl FnOnce(&mut Self) -> Result<T, E>) -> Result<T, E>
    where
        E: From<rusqlite::Error>,
    {
        if !self.is_careful {
            let before = self.done_so_far();
            let result = run(self);
            self.is_spoilt |= result.is_err() && self.done_so_far() != before;
            return result;
        }
        // What it undoes is its own.
        self.append()?;
        let (next_seq, entered, written) = (self.next_seq, self.entered.len(), self.written.len());
        let before = self.done_so_far();
        self.connection.prepare_cached("SAVEPOINT job")?.execute([])?;
        let result = run(self).and_then(|done| Ok(self.append().map(|()| done)?));
        if !self.connection.is_autocommit() {
            if result.is_err() {
                self.is_spoilt |= self.done_so_far() != before;
                self.connection.prepare_cached("ROLLBACK TO job")?.execute([])?;
                // The rows' numbers were never used. Kept, they would pass for rows that we know.
                self.next_seq = next_seq;
                self.index.undo(&self.entered.split_off(entered));
                self.unwritten.clear();
                self.written.truncate(written);
            }
            self.connection.prepare_cached("RELEASE job")?.execute([])?;
        }
        result
    }

    /// Rows changed, and claims that are new.
    fn done_so_far(&self) -> (u64, usize) {
        (self.connection.total_changes(), self.entered.len())
    }

    /// A job has failed and left something behind: the transaction is to be rolled back, and begun again with care.
    pub fn is_beyond_repair(&self) -> bool {
        self.is_spoilt && !self.is_careful
    }

    pub fn commit(&mut self) -> rusqlite::Result<()> {
        assert!(self.unwritten.is_empty(), "all is appended before it is committed");
        // A transaction that writes nothing is not worth a write.
        let writes = self.connection.total_changes() > self.changes_before;
        if let Some(observed) = self.observed.as_mut().filter(|_| writes) {
            self.clock.note(self.connection, observed)?;
        }
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        // Before any caller hears of it, from us or from memory.
        self.file.look_after_commit(self.connection)?;
        self.has_written = writes;
        if writes {
            self.file.note_write(true);
        }
        if let Some(next) = self.next_seq {
            self.index.complete_to(next - 1);
            self.last_seq = Some(next - 1);
        }
        self.recent.committed(self.written.drain(..));
        self.anchor = self.observed.take().and_then(|observed| self.clock.committed(&observed));
        // Who has met one that is to be undone may meet the next.
        self.is_careful = self.is_spoilt;
        Ok(())
    }

    /// An error of this connection, with its cause.
    pub fn explained(&self, error: rusqlite::Error) -> rusqlite::Error {
        cause::explained(error, Some(self.connection), self.file.folder())
    }

    /// Instead of a commit, or after one that failed. If that was written after all, the next transaction finds its rows in the table.
    pub fn roll_back(&mut self) {
        self.file.note_write(false);
        self.is_careful = self.is_spoilt;
        (self.removed, self.last_seq, self.anchor) = (None, None, None);
        if !self.connection.is_autocommit() {
            // Ended already is as good.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        self.index.undo(&self.entered);
    }
}

fn write_all(statement: &mut Statement<'_>, claims: &[(i64, Arc<Claim>)]) -> rusqlite::Result<()> {
    let are_written = rows::write(statement, claims)?;
    assert!(are_written, "nobody writes between the read and the write of one transaction");
    Ok(())
}
