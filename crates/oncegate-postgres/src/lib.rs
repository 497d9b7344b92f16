//! Claims in PostgreSQL, shared by any number of equal replicas.
//!
//! Promises: the primary key, in one conditional statement, decides every race. An answer is given only after its COMMIT. A COMMIT
//! whose answer was lost is looked up, not guessed. A server that is away, slow or half-open causes an error within a few seconds, and
//! the store works again about a second after the server does.
//!
//! Operations of concurrent callers share their statements and their COMMIT. A bounded `pending_queue` feeds a few `pipeline`s with one connection
//! each, and a free pipeline takes all that waits. Reading pipelines read and decide (`decide`), and answer commits that change nothing.
//! Writing pipelines write (`batch`, `write`) and commit (`commit`). Statements that are not operations on a claim use a `shared_connection`, lookups
//! share their statements (`finder`), and jobs are leased in a transaction of their own (`lease`). Settled claims that a caller waits
//! for are announced on the channel `oncegate_<schema>`, due jobs on `oncegate_<schema>_jobs` (`listen`).
//!
//! Everything is in a schema of its own, `oncegate` unless the options say otherwise.
//!
//! Needs PostgreSQL 14.

#![warn(missing_docs)]

mod batch;
mod changes;
mod commit;
mod connection;
mod decide;
mod fault;
mod finder;
mod health;
mod keyring;
mod lease;
mod line;
mod listen;
mod mark;
mod migrate;
mod pending;
mod pending_queue;
mod pipeline;
mod pooling;
mod records;
mod report;
mod row;
mod server;
mod shared_connection;
mod store;
mod tls;
mod write;
mod written;

pub use migrate::{migrate, migrations};
pub use server::Options;
pub use store::PostgresStore;
