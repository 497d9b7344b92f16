//! The findings of a drill, and their formats: JSON for programs, and text, a page and a chart for people.

pub mod chart;
pub mod html;
pub mod text;
mod words;

use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub version: String,
    /// The time in RFC 3339.
    pub started_at: String,
    pub seconds: f64,
    /// The user's worker; `None` for our own paths.
    pub command: Option<Vec<String>>,
    pub paths: Vec<PathReport>,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase")]
pub struct PathReport {
    pub name: String,
    pub promise: String,
    pub policy: String,
    /// When the server records that the effect may happen.
    pub flag: String,
    pub guards: Vec<GuardFound>,
    pub points: Vec<PointReport>,
    /// What broke the promise, in sentences. Empty if nothing did.
    pub broken: Vec<String>,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase")]
pub struct GuardFound {
    pub name: String,
    /// Where the guard is stored.
    pub kept: String,
    pub decisions: Option<u64>,
    pub stopped: Option<u64>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
pub struct PointReport {
    pub point: String,
    pub when: String,
    pub kills: u32,
    pub jobs: u32,
    /// Jobs whose effect arrived, at least once.
    pub sent: u32,
    /// Further calls under the same key.
    pub repeats: u32,
    /// Effects beyond the first of a job.
    pub duplicates: u32,
    /// Jobs whose effect never arrived.
    pub not_arrived: u32,
    /// The part of `not_arrived` whose record says missed: these jobs had begun, and may not be repeated.
    pub missed: u32,
    /// Jobs whose outcome is unknown according to their record.
    pub unknown: u32,
}

impl GuardFound {
    pub fn new(name: impl Into<String>, kept: impl Into<String>) -> GuardFound {
        GuardFound { name: name.into(), kept: kept.into(), decisions: None, stopped: None }
    }

    /// Adds another server's counts for the same guard.
    pub fn add(&mut self, other: &GuardFound) {
        let sum = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).reduce(|a, b| a + b);
        self.decisions = sum(self.decisions, other.decisions);
        self.stopped = sum(self.stopped, other.stopped);
    }
}
