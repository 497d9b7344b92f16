//! The configuration as the program uses it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use oncegate_core::{GuardName, Policy};

use super::secret_url::SecretUrl;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub listen: SocketAddr,
    pub store: SecretUrl,
    pub limits: Limits,
    pub claims: Claims,
    pub privacy: Privacy,
    pub log: Log,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub body_bytes: usize,
    pub connections: usize,
    /// Requests a second for each workspace; none is no limit.
    pub rate: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// Of every guard that has none of its own.
    pub policy: Policy,
    pub guards: BTreeMap<GuardName, Policy>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Privacy {
    pub store_outcome_body: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    pub format: LogFormat,
    pub level: LogLevel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Json,
    Pretty,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Config {
    /// The policy of a guard: its own where it has one, else that of all claims.
    pub fn policy(&self, guard: &GuardName) -> &Policy {
        self.claims.guards.get(guard).unwrap_or(&self.claims.policy)
    }
}
