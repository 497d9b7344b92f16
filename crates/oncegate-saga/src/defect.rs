//! What is wrong with a definition.

use std::fmt;

use serde::Serialize;

/// A defect of a definition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Defect {
    /// The name of the definition's file, or the Rust source file that builds the definition.
    pub file: String,
    /// The line in that file, counted from 1; 0 if the text of the file is not known.
    pub line: usize,
    /// The state that the defect is about, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The event that the defect is about, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// What is wrong, for the author of the definition.
    pub message: String,
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// All defects of a definition, in the order of its lines.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Defects(pub Vec<Defect>);

impl Defects {
    pub(crate) fn unreadable(file: &str, text: &str, error: &toml::de::Error) -> Defects {
        let line = line_of(text, error.span().map_or(0, |span| span.start));
        let message = error.message().replace('\n', ", ");
        Defects(vec![Defect { file: file.to_owned(), line, state: None, event: None, message }])
    }
}

pub(crate) fn line_of(text: &str, byte: usize) -> usize {
    text.as_bytes().iter().take(byte).filter(|byte| **byte == b'\n').count() + 1
}
