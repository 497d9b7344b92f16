//! A mail, and why it was not sent.

use oncegate::WorkspaceName;
use oncegate_core::job::Failure;
use uuid::Uuid;

/// A mail.
pub struct Mail<'a> {
    /// The workspace of the mail.
    pub workspace: &'a WorkspaceName,
    pub id: Uuid,
    pub to: Option<&'a str>,
    /// If absent, the server's subject; if that is absent too, the first line of the text.
    pub subject: Option<&'a str>,
    pub text: String,
}

/// The mail was not sent, or the outcome is unknown.
pub enum NotMailed {
    /// The mail server could not be reached.
    Unreached(String),
    Failed(Failure),
}

impl From<Failure> for NotMailed {
    fn from(failure: Failure) -> Self {
        NotMailed::Failed(failure)
    }
}
