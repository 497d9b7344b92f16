//! Why a command failed.

use oncegate::{OpenError, StoreError};

use crate::output::say;

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    pub message: String,
    hint: Option<String>,
    code: u8,
    /// The outcome of the store's write is unknown.
    pub is_unknown: bool,
}

impl Failure {
    pub fn new(message: impl Into<String>) -> Self {
        Failure { message: message.into(), hint: None, code: 1, is_unknown: false }
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Failure { code: 3, ..Self::new(message) }
    }

    pub fn is_not_found(&self) -> bool {
        self.code == 3
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Failure { code: 2, ..Self::new(message) }
    }

    /// The exit code of the process.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// Prints the message and the hint on standard error.
    pub fn say(&self) {
        say(format_args!("oncegate: {self}"));
        if let Some(hint) = &self.hint {
            say(format_args!("hint: {hint}"));
        }
    }

    pub fn hint(self, hint: impl Into<String>) -> Self {
        Failure { hint: Some(hint.into()), ..self }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let is_unknown = matches!(error, StoreError::Unknown(_));
        Failure { is_unknown, ..Failure::new(error.to_string()).hint("oncegate doctor") }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let message = error.to_string();
        match message.split_once(" hint: ") {
            Some((message, hint)) => Failure::new(message.trim_end_matches('.')).hint(hint),
            None => Failure::new(message).hint("oncegate doctor"),
        }
    }
}
