//! The seam between the rules of Oncegate and its storage.
//!
//! A [`Store`] reads a record, asks [`oncegate_core::decide`] for the next record, and writes
//! that only if the stored record is still the one that was read. The store itself decides nothing.
//! [`MemoryStore`] is the model that the other stores are compared with. `conformance` (a feature)
//! is the test suite that every store passes.

#![warn(missing_docs)]

mod bell;
mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod keyring;
mod lost_answer;
mod memory;
mod record;
mod store;
mod waiters;

pub use bell::{Bell, Listener};
pub use clock::{Clock, MachineTime, ManualClock, SystemClock};
pub use keyring::{ApiKey, KeyHash, Keyring, Role};
pub use lost_answer::find_written;
pub use memory::MemoryStore;
pub use record::{At, Change, Listed, Listing, Place, Record};
pub use store::{
    Commit, Committed, Cursor, DuplicateCount, JobFilter, JobListing, KindFilter, Leased, MainStore, Migration, Op,
    Page, Query, Reading, Report, Store, StoreError, Swept, Usage, UsageFrom, UsagePart, Wanted, Whose,
};
pub use waiters::{Waiter, Waiters};
