//! The result of an effect, as its span records it.

use oncegate::StoreError;
use oncegate::sagas::{Fired, Handled, Outcome};
use oncegate::worker::NotRun;
use oncegate_core::job::{Failure, Reached};
use serde_json::value::RawValue;

/// The result of an effect.
pub trait Ended {
    /// Why it failed, if it did, in one fixed word of ours: a receiver's answer may repeat what it was sent.
    fn failed(&self) -> Option<&'static str>;
}

impl Ended for Failure {
    fn failed(&self) -> Option<&'static str> {
        Some(match self.reached {
            Reached::No => "failed",
            Reached::Maybe => "unknown",
        })
    }
}

impl Ended for StoreError {
    fn failed(&self) -> Option<&'static str> {
        Some(match self {
            StoreError::Unavailable(_) => "store_unavailable",
            StoreError::Unknown(_) => "store_unknown",
            StoreError::Refused(_) => "store_refused",
            StoreError::Unreadable(_) => "store_unreadable",
        })
    }
}

/// The answer of a receiver, where it is kept.
impl Ended for Option<Box<RawValue>> {
    fn failed(&self) -> Option<&'static str> {
        None
    }
}

impl<T: Ended, E: Ended> Ended for Result<T, E> {
    fn failed(&self) -> Option<&'static str> {
        match self {
            Ok(done) => done.failed(),
            Err(error) => error.failed(),
        }
    }
}

impl Ended for NotRun {
    fn failed(&self) -> Option<&'static str> {
        match self {
            NotRun::Failed(failure) => failure.failed(),
            NotRun::PutOff { .. } => None,
        }
    }
}

impl Ended for Handled {
    fn failed(&self) -> Option<&'static str> {
        matches!(self.outcome, Outcome::DeadLetter { .. }).then(|| self.outcome.as_str())
    }
}

impl Ended for Vec<Handled> {
    fn failed(&self) -> Option<&'static str> {
        self.iter().find_map(Handled::failed)
    }
}

impl Ended for Fired {
    fn failed(&self) -> Option<&'static str> {
        match self {
            Fired::Done { handled, .. } => handled.failed(),
            Fired::Lost | Fired::NotOurs { .. } => None,
        }
    }
}
