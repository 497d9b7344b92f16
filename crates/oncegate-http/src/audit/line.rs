//! A line of the audit log, and its place in the chain.

use std::collections::BTreeMap;

use oncegate::Time;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use super::Act;
use crate::auth::hex;

/// The hash before the first line.
const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// The result of a line that is written before its act.
const BEGUN: &str = "begun";

/// Its canonical form is this object as JSON, with the fields in this order, without spaces, those that are not there left out, and without
/// `hash`. The hash is the SHA-256 of that, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Line {
    pub workspace: String,
    /// From 1 on, without a gap.
    pub seq: u64,
    pub at: String,
    /// As the log names it: `audit.forget`.
    pub event: String,
    /// A key's id, `local` where the server is open, the name of a person at the command line, or the address of a failed login.
    pub by: String,
    /// What people call the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_name: Option<String>,
    /// What it was done to: `claim`, `action`, `key`.
    pub kind: String,
    pub subject: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub about: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// `begun`: it was about to be done, and it was, unless a later line says otherwise or its server died then. `failed`: the act of line `of` was not
    /// done. `unknown`: the store did not say whether it was done. `unchanged`: there was nothing left to do.
    pub result: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The hash of the line before.
    pub prev: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hash: String,
}

/// The outcome of an act whose first line is written.
#[derive(Clone, Debug)]
pub struct OutcomeOf {
    pub result: &'static str,
    /// The number of the act's first line.
    pub of: u64,
    pub detail: Option<String>,
}

/// The last line of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub seq: u64,
    pub hash: String,
}

impl Head {
    pub fn genesis() -> Head {
        Head { seq: 0, hash: GENESIS.into() }
    }

    pub fn of(line: &Line) -> Head {
        Head { seq: line.seq, hash: line.hash.clone() }
    }

    /// A line that cannot be read does not stop the log: the next line continues the chain from its bytes, and the check reports it.
    pub fn read(seq: u64, body: &[u8]) -> Head {
        let hash = serde_json::from_slice::<Line>(body).map_or_else(|_| hex(&Sha256::digest(body)), |line| line.hash);
        Head { seq, hash }
    }
}

impl Line {
    /// The line that follows `head`.
    pub fn after(head: &Head, act: &Act, outcome: Option<&OutcomeOf>, now: Time) -> Line {
        let line = Line {
            workspace: act.workspace.to_string(),
            seq: head.seq + 1,
            at: now.to_string(),
            event: act.event.into(),
            by: act.by.id.clone(),
            by_name: act.by.name.as_deref().map(str::to_owned),
            kind: act.kind.into(),
            subject: act.subject.clone(),
            about: act.about.clone(),
            why: act.why.clone(),
            result: outcome.map_or(BEGUN, |outcome| outcome.result).into(),
            of: outcome.map(|outcome| outcome.of),
            detail: outcome.and_then(|outcome| outcome.detail.clone()),
            prev: head.hash.clone(),
            hash: String::new(),
        };
        Line { hash: line.digest(), ..line }
    }

    /// The hash that the line must have.
    pub fn digest(&self) -> String {
        let canonical = Line { hash: String::new(), ..self.clone() };
        hex(&Sha256::digest(serde_json::to_vec(&canonical).expect("a line is JSON")))
    }
}
