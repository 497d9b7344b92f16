//! Make an effect happen once, on infrastructure that delivers more than once.
//!
//! Open a store by its URL, name a guard and its policy, and run a closure under a key. The first caller runs the closure.
//! Every later caller with the same key, in this process or another, gets the value that the closure returned.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use oncegate::{Gate, How, Policy};
//!
//! let gate = Gate::open("memory:").await?; // or sqlite:FILE, postgres://…
//! let charges = gate.guard("charge", Policy::default())?;
//! let charge = |_| async { Ok::<_, std::io::Error>("receipt 1".to_string()) };
//!
//! let first = charges.run(["order 17"], charge).await?;
//! let again = charges.run(["order 17"], charge).await?;
//! assert_eq!(first.how, How::First);
//! assert!(matches!(again.how, How::Duplicate { .. }));
//! assert_eq!(again.value, first.value);
//! # Ok(())
//! # }
//! ```
//!
//! A closure that fails returns `Err`, which states that the effect did not happen. A closure that cannot know this, because
//! its provider did not answer in time, returns [`Failure::Unknown`]: see [`Guard::run_or_unknown`]. A closure that hangs
//! holds its key, unless [`Policy::max_run`] is set.
//!
//! What the library promises, and what it does not: no store alone can make an effect outside the store happen once. A
//! process that dies between the effect and its record leaves a claim without an owner. [`Policy::lost`] decides whether
//! the next caller takes over the claim, or a person has to resolve it.

#![warn(missing_docs)]

pub mod actions;
mod background;
mod channel;
pub mod document;
mod duplicates;
mod gate;
mod guard;
mod idempotency;
mod key;
mod ledger;
pub mod messages;
mod observer;
mod queue;
pub mod reminders;
mod renewals;
mod run;
#[cfg(feature = "sagas")]
pub mod sagas;
mod scoped;
pub mod sends;
mod sweeper;
#[cfg(feature = "tower-bare")]
pub mod tower;
pub mod worker;

pub use gate::{Gate, GateBuilder, Guards, OpenError, StoreUrl};
pub use guard::{Claimed, Guard, GuardError, Owner, OwnerError, ResolveError};
pub use idempotency::{WRONG_KEY, idempotency_key};
pub use key::{IntoKey, Part};
pub use ledger::Ledger;
pub use observer::{Decided, Observer};
pub use oncegate_core::{
    Answer, Claim, ClaimId, ClaimKey, Command, GuardName, InvalidName, Lost, OnFailure, OnStoreError, Policy, Refusal,
    State, Terms, Time, Token, Verdict, WorkspaceName, limits,
};
/// The words of the queue.
pub mod job {
    pub use oncegate_core::job::{Delivery, Failure, Job, Reached, Tries};
}

pub use oncegate_store as store;
pub use oncegate_store::StoreError;
pub use run::{Failure, How, Ran, RunError};
pub use scoped::Scoped;

/// The book's examples in Rust.
#[cfg(doctest)]
#[doc = include_str!("../shared/rust-service.md")]
pub struct RustService;
