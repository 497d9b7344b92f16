//! The limits: what the disk gives one caller, and what SQLite gives one thread.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::time::Instant;

use oncegate::ClaimId;
use oncegate_sqlite::{migrations, statements};
use rusqlite::{Connection, Statement, params};

use super::stats::Rate;
use super::{Measured, Setting, decisions};
use oncegate_process::failure::Failure;

/// The approximate length of a claim's row.
const RECORD_BYTES: usize = 100;
const PER_TRANSACTION: u64 = 1_000;

pub fn by_hand(setting: &Setting) -> Result<Vec<Measured>, Failure> {
    let raw = append_and_sync(setting).map_err(|error| Failure::new(format!("the disk: {error}")))?;
    let statements = in_large_transactions(setting).map_err(|error| Failure::new(format!("SQLite: {error}")))?;
    Ok(vec![
        Measured { name: "raw append + fdatasync", rate: raw, latency: None },
        Measured { name: "the same statements, 1,000 a transaction", rate: statements, latency: None },
    ])
}

fn append_and_sync(setting: &Setting) -> std::io::Result<Rate> {
    let mut file: File = OpenOptions::new().create(true).append(true).open(setting.folder.join("raw"))?;
    let (start, mut appends) = (Instant::now(), 0);
    while start.elapsed() < setting.span {
        file.write_all(&[7; RECORD_BYTES])?;
        file.sync_data()?;
        appends += 1;
    }
    Ok(Rate(f64::from(appends) / start.elapsed().as_secs_f64()))
}

fn in_large_transactions(setting: &Setting) -> rusqlite::Result<Rate> {
    let path = setting.folder.join("by-hand.db");
    File::create(&path).map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    let connection = statements::connect(&path)?;
    // Hand-written code would leave checkpoints to SQLite.
    connection.pragma_update(None, "wal_autocheckpoint", 1000)?;
    for step in migrations(0) {
        connection.execute_batch(step.sql)?;
    }
    let (start, mut turn) = (Instant::now(), 0);
    {
        let mut by_hand = ByHand {
            read: connection.prepare(statements::READ)?,
            create: connection.prepare(statements::CREATE)?,
            rows: HashMap::new(),
        };
        while start.elapsed() < setting.span {
            connection.execute_batch("BEGIN IMMEDIATE")?;
            for _ in 0..PER_TRANSACTION {
                by_hand.claim(turn)?;
                turn += 1;
            }
            connection.execute_batch("COMMIT")?;
        }
    }
    let rate = Rate(turn as f64 / start.elapsed().as_secs_f64());
    drop::<Connection>(connection);
    for suffix in ["", "-wal", "-shm"] {
        // The next round starts with an empty file.
        let _ = std::fs::remove_file(format!("{}{suffix}", path.display()));
    }
    Ok(rate)
}

/// The statements of a claim, and the row of each key, which the store keeps in memory too.
struct ByHand<'c> {
    read: Statement<'c>,
    create: Statement<'c>,
    rows: HashMap<ClaimId, i64>,
}

impl ByHand<'_> {
    fn claim(&mut self, turn: u64) -> rusqlite::Result<()> {
        let key = decisions::key(0, turn);
        let (workspace, id, guard) = (key.workspace.as_str(), key.id.as_bytes(), key.guard.as_str());
        if let Some(row) = self.rows.get(&key.id) {
            let found: i64 = self.read.query_row(params![row, id, workspace, guard], |row| row.get(1))?;
            assert!(found > 0, "it has a token");
            return Ok(());
        }
        let (seq, now, nothing) = (self.rows.len() as i64 + 1, turn as i64 + 1, None::<&str>);
        self.create.execute(params![
            seq,
            workspace,
            id,
            guard,
            "in_flight",
            now,
            1,
            1,
            "take_over",
            30_000_000,
            now + 30_000_000,
            now + 86_400_000_000_i64,
            now,
            nothing,
            nothing,
            0,
            nothing,
            nothing,
            nothing,
            nothing
        ])?;
        self.rows.insert(key.id, seq);
        Ok(())
    }
}
