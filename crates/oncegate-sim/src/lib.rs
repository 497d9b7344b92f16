//! Oncegate under a model checker.
//!
//! The rules are not written a second time here: the model calls the same
//! `decide` functions as every store, and puts around it what a real
//! deployment puts around it. Workers crash, messages come late, answers get
//! lost, clocks step back. The checker then tries every order of events.

pub mod claims;
pub mod jobs;
pub mod slots;
