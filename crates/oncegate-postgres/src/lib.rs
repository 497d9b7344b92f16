//! Claims in PostgreSQL, shared by any number of equal replicas.
//!
//! Promises: the primary key, in one conditional statement, decides every race; an answer is given only after
//! its COMMIT; a COMMIT whose answer got lost is looked up, not guessed; a server that is away, slow or half-open
//! is an error within a few seconds, and the store is back about a second after the server is.
//!
//! Operations of concurrent callers share their statements and their COMMIT: a bounded `queue` feeds a few `lane`s
//! of one connection each, and each takes whatever waits when it is free. One kind reads and decides (`decide`),
//! and answers those who change nothing; the other writes (`batch`, `write`) and commits (`commit`).
//! What is not an operation on a claim goes over a `desk`, lookups share their statements (`finder`), and jobs are leased in a
//! transaction of their own (`lease`). Settled claims that somebody waits for are announced on the channel `oncegate_<schema>`, jobs
//! that are due on `oncegate_<schema>_jobs` (`listen`).
//!
//! Everything is in a schema of its own, `oncegate` unless the options say otherwise.
//!
//! Needs PostgreSQL 14.

mod batch;
mod books;
mod changes;
mod commit;
mod decide;
mod desk;
mod fault;
mod finder;
mod health;
mod job;
mod keyring;
mod lane;
mod lease;
mod line;
mod link;
mod listen;
mod mark;
mod migrate;
mod pooling;
mod queue;
mod report;
mod row;
mod server;
mod store;
mod tls;
mod write;

pub use migrate::{migrate, migrations};
pub use server::Options;
pub use store::PostgresStore;
