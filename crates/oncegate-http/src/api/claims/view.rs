//! The answers to callers.

use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use oncegate::store::{Cursor, Page, Reading};
use oncegate::{Answer, Claim, ClaimId, ClaimKey, Time, Token};
use serde::Serialize;
use serde::ser::SerializeSeq;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::problem::{Kind, Problem, Whole, to_json, whole};

const JSON: &str = "application/json";

/// An answer other than a problem.
pub enum Answered {
    Won(Won),
    Duplicate(Duplicate),
    Unguarded(Unguarded),
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Won {
    claim: &'static str,
    id: String,
    token: i64,
    expires_at: String,
    lease_until: String,
    /// 1 for the first owner, more after take-overs.
    attempt: i32,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Duplicate {
    claim: &'static str,
    id: String,
    state: &'static str,
    #[schema(value_type = Option<serde_json::Value>)]
    outcome: Option<Outcome>,
    /// In a batch: it was left out, as the answer would be too large. `GET /api/claims/{id}` has it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    outcome_omitted: bool,
    age_seconds: f64,
}

/// The store is away and the guard is open: go ahead, with nothing recorded.
#[derive(Serialize, ToSchema)]
pub struct Unguarded {
    claim: &'static str,
    id: String,
}

impl Unguarded {
    pub fn of(key: &ClaimKey) -> Self {
        Unguarded { claim: "unguarded", id: key.id.to_string() }
    }
}

pub fn answered(key: &ClaimKey, reading: Reading<Answer>) -> Result<Answered, Problem> {
    let now = reading.now;
    let met = |kind: Kind, name: &str, claim: &Claim, detail: String| {
        kind.because(detail)
            .with("claim", name)
            .with("id", claim.key.id.to_string())
            .with("ageSeconds", age_seconds(claim, now))
    };
    match reading.value {
        Answer::Won(claim) => Ok(Answered::Won(Won {
            claim: "won",
            id: key.id.to_string(),
            token: claim.token.0,
            expires_at: claim.expires_at.to_string(),
            lease_until: claim.lease_until.to_string(),
            attempt: claim.attempt,
        })),
        Answer::Duplicate(claim) => Ok(Answered::Duplicate(Duplicate {
            claim: "duplicate",
            id: key.id.to_string(),
            state: claim.state.as_str(),
            outcome: claim.outcome.clone().map(Outcome),
            outcome_omitted: false,
            age_seconds: age_seconds(&claim, now),
        })),
        Answer::InFlight(claim) => {
            let until = claim.lease_until.to_string();
            Err(met(Kind::InFlight, "in_flight", &claim, format!("its owner's lease ends at {until}"))
                .with("leaseUntil", until)
                // The owner usually settles long before its lease ends.
                .retry_after(1))
        }
        Answer::Held(claim) => {
            let since = claim.settled_at.unwrap_or(claim.lease_until);
            Err(met(Kind::Held, "held", &claim, format!("unknown since {since}; a person has to resolve it")))
        }
        Answer::Mismatch(claim) => {
            let detail = "the live claim was made from another fingerprint".into();
            Err(met(Kind::FingerprintMismatch, "fingerprint_mismatch", &claim, detail))
        }
        other => unreachable!("not an answer to a claim: {other:?}"),
    }
}

impl Answered {
    /// Takes the outcome's length from the bytes left. If too few are left, drops the outcome.
    pub fn fit_into(&mut self, bytes_left: &mut usize) {
        if let Answered::Duplicate(duplicate) = self {
            let length = duplicate.outcome.as_ref().map_or(0, |outcome| outcome.0.len());
            match bytes_left.checked_sub(length) {
                Some(left) => *bytes_left = left,
                None => (duplicate.outcome, duplicate.outcome_omitted) = (None, true),
            }
        }
    }

    /// The given headers are empty; their memory is reused.
    pub fn answer(self, headers: HeaderMap) -> Whole {
        whole(self.status(), JSON, to_json(&self), headers)
    }

    fn status(&self) -> StatusCode {
        match self {
            Answered::Won(_) => StatusCode::CREATED,
            Answered::Duplicate(_) | Answered::Unguarded(_) => StatusCode::OK,
        }
    }
}

impl Serialize for Answered {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Answered::Won(won) => won.serialize(serializer),
            Answered::Duplicate(duplicate) => duplicate.serialize(serializer),
            Answered::Unguarded(unguarded) => unguarded.serialize(serializer),
        }
    }
}

/// One array. Each item has the status that it would have had alone.
pub fn batch(answers: impl ExactSizeIterator<Item = Result<Answered, Problem>>) -> Whole {
    #[derive(Serialize)]
    struct WithStatus<'a> {
        status: u16,
        #[serde(flatten)]
        answer: &'a Answered,
    }
    let mut body = Vec::with_capacity(answers.len() * 256);
    let mut serializer = serde_json::Serializer::new(&mut body);
    let written = (|| {
        let mut array = serde::Serializer::serialize_seq(&mut serializer, Some(answers.len()))?;
        for answer in answers {
            match answer {
                Ok(answer) => {
                    array.serialize_element(&WithStatus { status: answer.status().as_u16(), answer: &answer })?;
                }
                Err(problem) => {
                    problem.log();
                    array.serialize_element(&problem)?;
                }
            }
        }
        array.end()
    })();
    let () = written.expect("answers are JSON");
    whole(StatusCode::OK, JSON, body, HeaderMap::new())
}

/// A claim as people and programs see it.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimView {
    workspace: String,
    guard: String,
    id: String,
    state: &'static str,
    fingerprint: Option<String>,
    token: i64,
    attempt: i32,
    lease_until: String,
    expires_at: String,
    created_at: String,
    settled_at: Option<String>,
    /// Not in lists, which it could make too large.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    outcome: Option<Option<Outcome>>,
    duplicates: i64,
    last_duplicate_at: Option<String>,
    #[schema(value_type = Option<Object>)]
    attributes: Option<Box<RawValue>>,
    /// The parts of the key, where the guard keeps them.
    #[schema(value_type = Option<Vec<Option<String>>>)]
    key: Option<Box<RawValue>>,
}

impl ClaimView {
    pub fn of(claim: &Claim, now: Time) -> Self {
        let raw = |json: &Option<String>| json.clone().and_then(|json| RawValue::from_string(json).ok());
        let time = |time: Option<Time>| time.map(|time| time.to_string());
        ClaimView {
            workspace: claim.key.workspace.to_string(),
            guard: claim.key.guard.to_string(),
            id: claim.key.id.to_string(),
            state: claim.state_at(now).as_str(),
            fingerprint: claim.fingerprint.clone(),
            token: claim.token.0,
            attempt: claim.attempt,
            lease_until: claim.lease_until.to_string(),
            expires_at: claim.expires_at.to_string(),
            created_at: claim.created_at.to_string(),
            settled_at: time(claim.settled_at),
            outcome: Some(claim.outcome.clone().map(Outcome)),
            duplicates: claim.duplicates,
            last_duplicate_at: time(claim.last_duplicate_at),
            attributes: raw(&claim.attributes),
            key: raw(&claim.parts),
        }
    }
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PageView {
    items: Vec<ClaimView>,
    pub next_cursor: Option<String>,
}

impl PageView {
    pub fn of(page: &Page) -> Self {
        PageView {
            items: page
                .claims
                .iter()
                .map(|claim| ClaimView { outcome: None, ..ClaimView::of(claim, page.now) })
                .collect(),
            next_cursor: page.next.map(cursor_of),
        }
    }
}

pub fn cursor_of(cursor: Cursor) -> String {
    format!("{}.{}", cursor.token, cursor.id)
}

pub fn parse_cursor(cursor: &str) -> Option<Cursor> {
    let (token, id) = cursor.split_once('.')?;
    Some(Cursor { token: Token(token.parse().ok()?), id: ClaimId::parse(id)? })
}

/// The answer for a claim that was released or forgotten.
#[derive(Serialize)]
pub struct Gone {
    id: String,
    gone: bool,
}

impl Gone {
    pub fn of(key: &ClaimKey) -> Self {
        Gone { id: key.id.to_string(), gone: true }
    }
}

fn age_seconds(claim: &Claim, now: Time) -> f64 {
    now.since(claim.created_at).as_millis() as f64 / 1000.0
}

/// An outcome as the store keeps it; many answers share its bytes. An outcome from the API is JSON. An outcome that a
/// library caller wrote in another form is shown as text.
pub struct Outcome(Bytes);

impl Serialize for Outcome {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serde_json::from_slice::<&RawValue>(&self.0) {
            Ok(json) => json.serialize(serializer),
            Err(_) => String::from_utf8_lossy(&self.0).serialize(serializer),
        }
    }
}
