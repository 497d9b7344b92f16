//! What a drill found, and how it is told: to programs as JSON, to people as text, as a page, and as a picture.

pub mod chart;
pub mod html;
pub mod text;
mod words;

use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub version: String,
    /// RFC 3339.
    pub started_at: String,
    pub seconds: f64,
    /// The user's worker; none: our own paths.
    pub command: Option<Vec<String>>,
    pub paths: Vec<PathReport>,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase")]
pub struct PathReport {
    pub name: String,
    pub promise: String,
    pub policy: String,
    /// When it is written down that the effect may happen.
    pub flag: String,
    pub guards: Vec<GuardFound>,
    pub points: Vec<PointReport>,
    /// What broke the promise, in sentences. Empty is good.
    pub broken: Vec<String>,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase")]
pub struct GuardFound {
    pub name: String,
    /// Where.
    pub kept: String,
    pub decisions: Option<u64>,
    pub stopped: Option<u64>,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
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
    /// Of these, jobs whose record says that they were missed: they had begun, and may not be repeated.
    pub missed: u32,
    /// Jobs of which the record says that nobody can say.
    pub unknown: u32,
}

impl GuardFound {
    pub fn new(name: impl Into<String>, kept: impl Into<String>) -> GuardFound {
        GuardFound { name: name.into(), kept: kept.into(), decisions: None, stopped: None }
    }

    /// What another server has counted of the same guard.
    pub fn add(&mut self, other: &GuardFound) {
        let sum = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).reduce(|a, b| a + b);
        self.decisions = sum(self.decisions, other.decisions);
        self.stopped = sum(self.stopped, other.stopped);
    }
}
