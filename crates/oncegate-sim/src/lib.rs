//! Oncegate under a model checker.
//!
//! The models do not restate the rules. They call the same `decide` functions
//! as every store, in a simulated deployment: workers crash, messages arrive
//! late, answers get lost, clocks step back. The checker tries every order of
//! these events.

pub mod claims;
pub mod jobs;
pub mod slots;
