//! Errors of a configuration.

use super::path::KeyPath;

/// One error: its place, the problem, and a valid alternative.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {what}\nhint: {hint}")]
pub struct ConfigError {
    /// `oncegate.toml:3:1`, `ONCEGATE_LISTEN`, `--listen`.
    pub at: String,
    pub what: String,
    pub hint: String,
}

impl ConfigError {
    pub(super) fn new(at: impl ToString, what: impl Into<String>, hint: impl Into<String>) -> Self {
        ConfigError { at: at.to_string(), what: what.into(), hint: hint.into() }
    }
}

/// An error in a value, before the setting that the value belongs to is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The text after the key: `is "5 minutes", which is not a duration`.
    pub what: String,
    pub hint: String,
}

impl Fault {
    pub(super) fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Fault { what: what.into(), hint: hint.into() }
    }

    pub(super) fn at(self, at: impl ToString, key: &KeyPath) -> ConfigError {
        ConfigError::new(at, format!("{key} {}", self.what), self.hint)
    }
}

/// The candidate that `written` most likely meant, if any is close enough.
pub(super) fn nearest<'a>(written: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let written = written.to_ascii_lowercase();
    let far = (written.chars().count() / 3).max(2);
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&written, &candidate.to_ascii_lowercase()), candidate))
        // A short name that shares no letter with `written` is within two edits of it, too.
        .filter(|(distance, candidate)| *distance <= far && *distance < candidate.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}
