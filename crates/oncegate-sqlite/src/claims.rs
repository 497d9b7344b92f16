//! The claims and records as the writer's transaction reads and changes them. It keeps the tables, the index and the cache
//! consistent.

use std::sync::Arc;

use oncegate_core::{Claim, ClaimKey, Moment, Time, Token};
use oncegate_store::{Change, DuplicateCount};
use rusqlite::{Connection, Row, Statement};

use crate::anchor::Anchor;
use crate::cache::{Cache, Written};
use crate::cause;
use crate::file::WatchedFile;
use crate::index::{Entry, Index};
use crate::ledger_clock::{LedgerClock, Observed};
use crate::records;
use crate::rows::{self, Found};

pub struct Claims<'c> {
    pub connection: &'c Connection,
    pub index: &'c Index,
    cache: &'c Cache,
    file: &'c WatchedFile,
    clock: &'c LedgerClock,
    /// The file's state of the ledger's clock, while it is known.
    anchor: Option<Anchor>,
    /// The time of this transaction.
    observed: Option<Observed>,
    /// The connection's count of changed rows before this transaction.
    changes_before: u64,
    /// Whether the last commit changed anything. A commit without changes proves nothing about the disk.
    pub has_written: bool,
    // The statements of the hot path, prepared once.
    read: Statement<'c>,
    /// Each statement inserts this many new claims, the largest first.
    create: [(usize, Statement<'c>); 3],
    replace: Statement<'c>,
    read_removed: Statement<'c>,
    /// The file's record of removed rows, while it is known.
    removed: Option<Removed>,
    /// The largest row number in the file, with every row in the index. Known until another process writes.
    last_seq: Option<i64>,
    /// The row number of the next new claim. Known while a transaction may append.
    next_seq: Option<i64>,
    /// The entries that this transaction has added to the index.
    entered: Vec<Entry>,
    /// New claims that are not in the table yet. They are inserted together, which is a fifth cheaper.
    unwritten: Vec<(i64, Arc<Claim>)>,
    /// The writes of this transaction so far, for the cache.
    written: Vec<Written>,
    /// The index must be read, or read again, before the next transaction.
    is_cold: bool,
    /// Each job runs in a savepoint, so that it can be undone alone. A savepoint copies every page that the job changes, and few jobs
    /// are undone, so savepoints are used only after a job had to be undone.
    is_careful: bool,
    /// A job of this transaction has failed after it had written something, or would have left something without a savepoint.
    is_spoilt: bool,
}

/// The largest token and row number of all removed rows, and the number of removed rows.
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
        cache: &'c Cache,
        file: &'c WatchedFile,
        clock: &'c LedgerClock,
    ) -> rusqlite::Result<Self> {
        let create = |claims| connection.prepare(&rows::create_many(claims)).map(|create| (claims, create));
        Ok(Claims {
            connection,
            index,
            cache,
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

    /// Starts a transaction. If it works on claims, it first reads all rows that other processes have appended.
    pub fn begin(&mut self, on_claims: bool) -> rusqlite::Result<()> {
        self.next_seq = None;
        self.entered.clear();
        self.unwritten.clear();
        self.written.clear();
        self.is_spoilt = false;
        self.observed = None;
        if on_claims && self.is_cold {
            // Before the lock is taken, because reading a whole file must not block other writers.
            self.index.clear();
            self.index.catch_up(self.connection)?;
            (self.is_cold, self.last_seq) = (false, None);
        }
        // Checked again after an idle time: a write to a moved file, or without valid locks, could harm another process.
        self.file.look_lately()?;
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        if !self.cache.begin() {
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

    /// The time of this transaction's decisions. It is read after the lock is taken, so that waiting for the lock shortens no lease.
    pub fn moment(&mut self) -> rusqlite::Result<Moment> {
        let observed = match self.observed {
            Some(observed) => observed,
            None => *self.observed.insert(self.clock.observe(self.connection, self.anchor)?),
        };
        Ok(Moment { now: observed.now, token_floor: self.removed()?.token })
    }

    /// False while a step of the wall clock is not confirmed, because a sweep cannot be undone.
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

    /// The new claim with this row number, while it is not in the table yet. The numbers of new claims are consecutive.
    fn unwritten(&self, seq: i64) -> Option<&Arc<Claim>> {
        let (first, _) = self.unwritten.first()?;
        self.unwritten.get(usize::try_from(seq - first).ok()?).map(|(_, claim)| claim)
    }

    /// Writes the decided claim into the row that it was decided from, or into a new row.
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

    /// Inserts the new claims into the table. It fails only if the file fails, or for a text of a gigabyte.
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

    /// Applies a change to records or the queue. Returns whether it found what it expects.
    pub fn apply(&mut self, change: &Change, now: Time) -> rusqlite::Result<bool> {
        let is_made = records::apply(self.connection, change, now)?;
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

    /// Removes records that are past their end, and returns how many.
    pub fn sweep_records(&mut self, now: Time, limit: usize) -> rusqlite::Result<usize> {
        let swept = records::sweep(self.connection, now, limit)?;
        let count = swept.len();
        self.written.extend(swept.into_iter().map(Written::RecordRemoved));
        Ok(count)
    }

    /// Runs a unit of work that is kept completely or not at all, independent of the rest of the transaction, unless the transaction
    /// [`is_beyond_repair`](Self::is_beyond_repair).
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
        // Inserts the earlier jobs' claims first, so that the savepoint undoes only this job's writes.
        self.append()?;
        let (next_seq, entered, written) = (self.next_seq, self.entered.len(), self.written.len());
        let before = self.done_so_far();
        self.connection.prepare_cached("SAVEPOINT job")?.execute([])?;
        let result = run(self).and_then(|done| Ok(self.append().map(|()| done)?));
        if !self.connection.is_autocommit() {
            if result.is_err() {
                self.is_spoilt |= self.done_so_far() != before;
                self.connection.prepare_cached("ROLLBACK TO job")?.execute([])?;
                // These row numbers were never used. If they were kept, they would count as known rows.
                self.next_seq = next_seq;
                self.index.undo(&self.entered.split_off(entered));
                self.unwritten.clear();
                self.written.truncate(written);
            }
            self.connection.prepare_cached("RELEASE job")?.execute([])?;
        }
        result
    }

    /// The number of changed rows, and of new claims.
    fn done_so_far(&self) -> (u64, usize) {
        (self.connection.total_changes(), self.entered.len())
    }

    /// A job has failed after a write and without a savepoint. The transaction must be rolled back and run again with savepoints.
    pub fn is_beyond_repair(&self) -> bool {
        self.is_spoilt && !self.is_careful
    }

    pub fn commit(&mut self) -> rusqlite::Result<()> {
        assert!(self.unwritten.is_empty(), "all is appended before it is committed");
        // The clock's state is not worth a write if the transaction wrote nothing else.
        let writes = self.connection.total_changes() > self.changes_before;
        if let Some(observed) = self.observed.as_mut().filter(|_| writes) {
            self.clock.note(self.connection, observed)?;
        }
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        // Before any caller gets an answer, from this writer or from the cache.
        self.file.look_after_commit(self.connection)?;
        self.has_written = writes;
        if writes {
            self.file.note_write(true);
        }
        if let Some(next) = self.next_seq {
            self.index.complete_to(next - 1);
            self.last_seq = Some(next - 1);
        }
        self.cache.committed(self.written.drain(..));
        self.anchor = self.observed.take().and_then(|observed| self.clock.committed(&observed));
        // After a job that had to be undone another one is likely, so the next transaction uses savepoints.
        self.is_careful = self.is_spoilt;
        Ok(())
    }

    /// Adds the cause to an error of this connection.
    pub fn explained(&self, error: rusqlite::Error) -> rusqlite::Error {
        cause::explained(error, Some(self.connection), self.file.folder())
    }

    /// Rolls back, instead of a commit or after a failed one. If the commit was written after all, the next transaction finds its rows
    /// in the table.
    pub fn roll_back(&mut self) {
        self.file.note_write(false);
        self.is_careful = self.is_spoilt;
        (self.removed, self.last_seq, self.anchor) = (None, None, None);
        if !self.connection.is_autocommit() {
            // An error is ignored: the transaction may have ended already.
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
