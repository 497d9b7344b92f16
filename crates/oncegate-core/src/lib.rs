//! The pure core of Oncegate.
//!
//! Its functions decide what happens to a claim or a job. They take a record, a
//! command and a time, and return the next record and the answer. Nothing in
//! this crate reads a clock, touches a disk or awaits. The server, every store,
//! the in-memory model and the model checker can therefore run these same functions.

#![warn(missing_docs)]

pub mod claim;
pub mod job;
pub mod key;
pub mod limits;
pub mod names;
pub mod policy;
pub mod time;
pub mod units;

pub use claim::{Answer, Claim, Command, Decision, Moment, Refusal, State, Terms, Token, Verdict, decide};
pub use key::{ClaimId, ClaimKey, KeyPart};
pub use names::{GuardName, InvalidName, WorkspaceName};
pub use policy::{Lost, OnFailure, OnStoreError, Policy};
pub use time::Time;
