//! The request bodies of claims, and their checks.

use std::time::Duration;

use bytes::Bytes;
use oncegate::{ClaimKey, GuardName, OnStoreError, State, Terms, Token, WorkspaceName, limits};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::api::extract::{bad, seconds};
use crate::problem::Problem;
use oncegate_config::Config;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object with `guard` and `key`")]
pub struct ClaimBody {
    /// Which guard: a name of your choice.
    guard: String,
    /// What makes two requests the same, in order. `null` is a part that is absent.
    key: Vec<Option<String>>,
    /// How long the decision stands.
    ttl_seconds: Option<f64>,
    /// How long the owner may be silent before it counts as dead.
    lease_seconds: Option<f64>,
    /// How long to wait for another owner to settle.
    wait_seconds: Option<f64>,
    /// Of the request that the key stands for; another one under the same key is refused.
    fingerprint: Option<String>,
    /// A small object for people.
    #[schema(value_type = Option<Object>)]
    attributes: Option<Box<RawValue>>,
}

/// A claim that passed the checks.
pub struct ToClaim {
    pub key: ClaimKey,
    pub terms: Terms,
    pub wait: Duration,
    pub on_store_error: OnStoreError,
}

impl ClaimBody {
    pub fn parse(json: &RawValue) -> Result<Self, Problem> {
        crate::json::read(json.get().as_bytes())
    }

    pub fn check(self, workspace: &WorkspaceName, config: &Config) -> Result<ToClaim, Problem> {
        let guard = own_guard(&self.guard)?;
        check_key(&self.key)?;
        let policy = config.policy(&guard);
        let window =
            seconds("ttlSeconds", self.ttl_seconds, limits::SPAN_MIN..=limits::WINDOW_MAX)?.unwrap_or(policy.window);
        let lease =
            seconds("leaseSeconds", self.lease_seconds, limits::SPAN_MIN..=limits::LEASE_MAX)?.unwrap_or(policy.lease);
        let wait = seconds("waitSeconds", self.wait_seconds, Duration::ZERO..=limits::WAIT_MAX)?;
        if let Some(fingerprint) = &self.fingerprint
            && (!(1..=limits::FINGERPRINT_BYTES_MAX).contains(&fingerprint.len())
                || fingerprint.contains(char::is_control))
        {
            let max = limits::FINGERPRINT_BYTES_MAX;
            return Err(bad(format!("fingerprint: 1 to {max} bytes without control characters")));
        }
        let parts = policy.store_parts.then(|| serde_json::to_string(&self.key).expect("strings are JSON"));
        Ok(ToClaim {
            key: ClaimKey::of(workspace, &guard, &self.key),
            terms: Terms {
                window,
                lease,
                lost: policy.lost,
                fingerprint: self.fingerprint,
                attributes: self.attributes.map(attributes).transpose()?,
                parts,
                outcome: None,
                replaces: None,
            },
            wait: wait.unwrap_or_default(),
            on_store_error: policy.on_store_error,
        })
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object with `guard` and `key`")]
pub struct FindBody {
    guard: String,
    key: Vec<Option<String>>,
}

impl FindBody {
    pub fn key(&self, workspace: &WorkspaceName) -> Result<ClaimKey, Problem> {
        check_key(&self.key)?;
        Ok(ClaimKey::of(workspace, &guard(&self.guard)?, &self.key))
    }
}

/// What an owner sends with each of its verbs.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object with `guard` and `token`")]
pub struct OwnerBody {
    guard: String,
    token: i64,
    /// With `settle` and `fail`: what every later caller reads. Any JSON, up to 1 MiB.
    #[schema(value_type = Option<serde_json::Value>)]
    outcome: Option<Box<RawValue>>,
    /// With `renew`: another length for the lease.
    lease_seconds: Option<f64>,
}

impl OwnerBody {
    pub fn guard(&self) -> Result<GuardName, Problem> {
        own_guard(&self.guard)
    }

    pub fn token(&self) -> Token {
        Token(self.token)
    }

    pub fn lease(&self) -> Result<Option<Duration>, Problem> {
        seconds("leaseSeconds", self.lease_seconds, limits::SPAN_MIN..=limits::LEASE_MAX)
    }

    pub fn outcome(&self, kept: bool) -> Result<Option<Bytes>, Problem> {
        let Some(outcome) = &self.outcome else { return Ok(None) };
        let (found, max) = (outcome.get().len(), limits::OUTCOME_BYTES_MAX);
        if found > max {
            return Err(bad(format!("outcome: at most {max} bytes of JSON; this one has {found}")));
        }
        Ok(kept.then(|| Bytes::copy_from_slice(outcome.get().as_bytes())))
    }

    pub fn refuse_outcome(&self, verb: &str) -> Result<(), Problem> {
        self.outcome.as_ref().map_or(Ok(()), |_| Err(bad(format!("outcome: {verb} takes none"))))
    }

    pub fn refuse_lease(&self, verb: &str) -> Result<(), Problem> {
        self.lease_seconds.map_or(Ok(()), |_| Err(bad(format!("leaseSeconds: {verb} takes none"))))
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object with `guard` and `as`")]
pub struct ResolveBody {
    guard: String,
    r#as: Resolution,
    /// Why, for the log.
    pub note: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Resolution {
    Done,
    NotDone,
}

impl ResolveBody {
    pub fn guard(&self) -> Result<GuardName, Problem> {
        own_guard(&self.guard)
    }

    pub fn is_done(&self) -> bool {
        self.r#as == Resolution::Done
    }
}

pub fn check_note(note: Option<&str>) -> Result<(), Problem> {
    if note.is_some_and(|note| note.contains(|c: char| c.is_control() && c != '\n' && c != '\t')) {
        return Err(bad("note: has control characters in it"));
    }
    match note.map_or(0, str::len) {
        0..=limits::NOTE_BYTES_MAX => Ok(()),
        found => Err(bad(format!("note: at most {} bytes; this one has {found}", limits::NOTE_BYTES_MAX))),
    }
}

pub fn guard(name: &str) -> Result<GuardName, Problem> {
    GuardName::new(name).map_err(|error| bad(format!("guard: {error}")))
}

/// A guard that callers may use: not one of the server's own.
pub fn own_guard(name: &str) -> Result<GuardName, Problem> {
    let guard = guard(name)?;
    match crate::own_guards::is_own(&guard) {
        true => Err(bad(format!("guard: {name:?} is the server's own; choose another name"))),
        false => Ok(guard),
    }
}

pub fn state(name: &str) -> Result<State, Problem> {
    State::parse(name).ok_or_else(|| bad(format!("state: in_flight, done, failed or unknown, not {name:?}")))
}

fn check_key(parts: &[Option<String>]) -> Result<(), Problem> {
    let (found, max) = (parts.len(), limits::KEY_PARTS_MAX);
    if !(1..=max).contains(&found) {
        return Err(bad(format!("key: 1 to {max} parts; this one has {found}")));
    }
    let too_long = |part: &Option<String>| part.as_ref().is_some_and(|part| part.len() > limits::KEY_PART_BYTES_MAX);
    match parts.iter().position(too_long) {
        Some(place) => Err(bad(format!("key[{place}]: at most {} bytes", limits::KEY_PART_BYTES_MAX))),
        None => Ok(()),
    }
}

fn attributes(json: Box<RawValue>) -> Result<String, Problem> {
    let max = limits::ATTRIBUTES_BYTES_MAX;
    if !json.get().starts_with('{') || json.get().len() > max {
        return Err(bad(format!("attributes: an object of at most {max} bytes")));
    }
    Ok(String::from(Box::<str>::from(json)))
}
