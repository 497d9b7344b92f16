//! What is known about a transaction before its COMMIT.

use oncegate_core::Token;

use crate::mark::Mark;

/// What is known about a transaction before its COMMIT.
#[derive(Debug)]
pub(crate) struct Seal {
    /// What the transaction wrote into the mark of its connection.
    pub mark: Mark,
    pub transaction: String,
    pub backend: i32,
    pub token_floor: Token,
}

/// Writes that are not committed yet.
pub(crate) struct Written {
    pub seal: Seal,
    /// For each write of the batch, whether it changed a row or came too late.
    pub claims: Vec<bool>,
    /// For each change of the batch, whether it found the state that it expects.
    pub changes: Vec<bool>,
}
