//! The effect of an action.

use oncegate::WorkspaceName;
use oncegate::worker::Run;
use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

/// The effect to perform, under a key that is the same on every attempt.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Effect<'a> {
    /// The workspace of the action.
    #[serde(serialize_with = "crate::outgoing::serialize_workspace")]
    pub workspace: &'a WorkspaceName,
    pub id: Uuid,
    pub effect_key: Uuid,
    pub action_type: &'a str,
    pub revision: i64,
    pub attempt: i32,
    pub payload: &'a RawValue,
}

impl<'a> Effect<'a> {
    pub fn of(run: &'a Run, payload: &'a RawValue) -> Effect<'a> {
        let Run { workspace, id, effect_key, action_type, revision, attempt, .. } = run;
        Effect {
            workspace,
            id: *id,
            effect_key: *effect_key,
            action_type,
            revision: *revision,
            attempt: *attempt,
            payload,
        }
    }
}
