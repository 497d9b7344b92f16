//! An action in the API's form.

use crate::json::time;
use oncegate::actions::{Action, Ended, Found, Resolved, Status, Try, effect_key};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActionView<'a> {
    id: Uuid,
    /// `pending`, `running`, `failed` (it waits for its next try), `completed`, `dead`, `unknown` or `cancelled`.
    status: &'static str,
    action_type: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    entity_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entity_type: Option<&'a str>,
    run_at: String,
    created_at: String,
    /// How often it was scheduled: 1, and one more for each duplicate that was folded into it.
    revision: i64,
    /// When the last revisions were made.
    revisions: Vec<RevisionView>,
    /// Tries that have begun.
    attempt: i32,
    max_attempts: i32,
    /// Those that failed, the last ones.
    tries: Vec<TryView<'a>>,
    /// The same on every try: what the receiver knows it by.
    effect_key: Uuid,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    /// What a person said of it, since it was dead or unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    resolved: Option<ResolvedActionView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recurring_interval: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timezone: Option<&'a str>,
    /// The schedule that this was a tick of.
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule_id: Option<Uuid>,
    #[schema(value_type = Object)]
    payload: &'a RawValue,
}

#[derive(Serialize, ToSchema)]
pub struct RevisionView {
    revision: i64,
    at: String,
}

#[derive(Serialize, ToSchema)]
pub struct TryView<'a> {
    attempt: i32,
    at: String,
    error: &'a str,
    /// `no`: it surely did not happen; `maybe`.
    reached: &'static str,
}

#[derive(Serialize, ToSchema)]
pub struct ResolvedActionView<'a> {
    was: &'static str,
    by: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'a str>,
    at: String,
}

impl<'a> From<&'a Found> for ActionView<'a> {
    fn from(found: &'a Found) -> Self {
        let Found { id, action, job, .. } = found;
        let Action { entity, revision, revised_us, tries, recurrence, ended, .. } = action;
        let (attempt, max_attempts, error) = match (job, ended) {
            (Some(job), _) => (job.tried.min(job.tries.max), job.tries.max, job.error.as_deref()),
            (None, Some(Ended { attempt, tries_max, error, .. })) => (*attempt, *tries_max, error.as_deref()),
            (None, None) => (0, 0, None),
        };
        let first = revision - i64::try_from(revised_us.len()).unwrap_or(0);
        let revisions = (first + 1..).zip(revised_us);
        let is_leased = job.as_ref().filter(|job| job.state == oncegate_core::job::State::Running);
        ActionView {
            id: *id,
            status: found.status().as_str(),
            action_type: &action.action_type,
            entity_id: entity.as_ref().map(|entity| entity.id.as_str()),
            entity_type: entity.as_ref().and_then(|entity| entity.entity_type.as_deref()),
            run_at: found.run_at().to_string(),
            created_at: time(action.created_us),
            revision: *revision,
            revisions: revisions.map(|(revision, at)| RevisionView { revision, at: time(*at) }).collect(),
            attempt,
            max_attempts,
            tries: tries.iter().map(TryView::from).collect(),
            effect_key: effect_key(*id, action),
            lease_until: is_leased.map(|job| job.lease_until.to_string()),
            ended_at: ended.as_ref().filter(|_| job.is_none()).map(|ended| time(ended.at_us)),
            result: ended.as_ref().and_then(|ended| ended.result.as_deref()),
            error: error.filter(|_| found.status() != Status::Completed),
            resolved: ended.as_ref().and_then(|ended| ended.resolved.as_ref()).map(ResolvedActionView::from),
            recurring_interval: recurrence.as_ref().map(|recurrence| recurrence.interval.as_str()),
            timezone: recurrence.as_ref().and_then(|recurrence| recurrence.timezone.as_deref()),
            schedule_id: action.tick_of,
            payload: &action.payload,
        }
    }
}

impl<'a> From<&'a Try> for TryView<'a> {
    fn from(failed: &'a Try) -> Self {
        let reached = if failed.maybe { "maybe" } else { "no" };
        TryView { attempt: failed.attempt, at: time(failed.at_us), error: &failed.error, reached }
    }
}

impl<'a> From<&'a Resolved> for ResolvedActionView<'a> {
    fn from(resolved: &'a Resolved) -> Self {
        let Resolved { was, by, note, at_us } = resolved;
        ResolvedActionView { was: was.as_str(), by, note: note.as_deref(), at: time(*at_us) }
    }
}
