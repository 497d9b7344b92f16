//! The claims, as the writer's transaction sees and changes them: the table and its index, kept in step.

use oncegate_core::{Claim, ClaimKey, Moment, Time, Token};
use rusqlite::{Connection, Statement};

use crate::index::Index;
use crate::rows::{self, Row};

pub struct Claims<'c> {
    pub connection: &'c Connection,
    pub index: &'c Index,
    // The statements of the hot path, prepared once.
    read: Statement<'c>,
    create: Statement<'c>,
    replace: Statement<'c>,
    extent: Statement<'c>,
    token_floor: Statement<'c>,
    /// Where the next new claim goes; known while a transaction may append.
    next_seq: Option<i64>,
    /// The file has been read once.
    warm: bool,
}

impl<'c> Claims<'c> {
    pub fn open(connection: &'c Connection, index: &'c Index) -> rusqlite::Result<Self> {
        Ok(Claims {
            connection,
            index,
            read: connection.prepare(rows::READ)?,
            create: connection.prepare(rows::CREATE)?,
            replace: connection.prepare(rows::REPLACE)?,
            extent: connection
                .prepare("SELECT largest_seq, (SELECT coalesce(min(seq), 0) FROM claims) FROM removed")?,
            token_floor: connection.prepare("SELECT largest_token FROM removed")?,
            next_seq: None,
            warm: false,
        })
    }

    /// Starts a transaction. One that `appends` first learns of all that other processes have appended.
    pub fn begin(&mut self, appends: bool) -> rusqlite::Result<()> {
        self.next_seq = None;
        if appends && !self.warm {
            // Before the lock, too: to read a large file for the first time must not keep others from writing.
            self.index.catch_up(self.connection)?;
            self.warm = true;
        }
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        if appends {
            let last = self.index.catch_up(self.connection)?;
            let (largest_removed, first_row): (i64, i64) =
                self.extent.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            self.index.forget_before(first_row);
            self.next_seq = Some(last.max(largest_removed) + 1);
        }
        Ok(())
    }

    pub fn moment(&mut self, now: Time) -> rusqlite::Result<Moment> {
        Ok(Moment { now, token_floor: Token(self.token_floor.query_row([], |row| row.get(0))?) })
    }

    pub fn find(&mut self, key: &ClaimKey) -> rusqlite::Result<Option<Row>> {
        rows::find(&mut self.read, self.index, key)
    }

    /// Writes what was decided: into the row that it was decided from, or into a new one.
    pub fn write(&mut self, seq: Option<i64>, claim: &Claim) -> rusqlite::Result<()> {
        let written = match seq {
            Some(seq) => rows::write(&mut self.replace, seq, claim)?,
            None => {
                let seq = self.next_seq.as_mut().expect("this transaction appends");
                self.index.enter(&claim.key, *seq)?;
                let written = rows::write(&mut self.create, *seq, claim)?;
                *seq += 1;
                written
            }
        };
        assert!(written, "nobody writes between the read and the write of one transaction");
        Ok(())
    }

    pub fn commit(&mut self) -> rusqlite::Result<()> {
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        if let Some(next) = self.next_seq {
            self.index.complete_to(next - 1);
        }
        Ok(())
    }
}
