//! Sagas in the API's form.

use std::collections::BTreeMap;

use oncegate::Time;
use oncegate::sagas::{DeadLetter, Event, Found, Handled, LineSeen, Outcome, Sent};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

/// What became of an event.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HandledView {
    saga: Option<String>,
    correlation_id: Option<String>,
    /// `applied`; `ignored`: it changes nothing in this state; `duplicate`: it was applied before; `dead_letter`: it is kept, for a person.
    result: &'static str,
    /// The instance's.
    state: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_letter_id: Option<Uuid>,
    /// Why it is a dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Data that the saga waits for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<String>,
    /// In other sagas that know the event.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    also: Vec<HandledView>,
}

impl From<Handled> for HandledView {
    fn from(handled: Handled) -> Self {
        let Handled { saga, correlation_id, outcome, state, .. } = handled;
        let result = outcome.as_str();
        let (mut dead_letter_id, mut reason, mut missing) = (None, None, vec![]);
        match outcome {
            Outcome::DeadLetter { id, reason: why } => (dead_letter_id, reason) = (Some(id), Some(why)),
            Outcome::Applied { missing: not_there } => missing = not_there,
            Outcome::Ignored | Outcome::Duplicate => {}
        }
        HandledView { saga, correlation_id, result, state, dead_letter_id, reason, missing, also: vec![] }
    }
}

impl HandledView {
    /// The outcomes of one event in all the sagas that handle it.
    pub fn of(handled: Vec<Handled>) -> Option<HandledView> {
        let mut views = handled.into_iter().map(HandledView::from);
        let first = views.next()?;
        Some(HandledView { also: views.collect(), ..first })
    }
}

/// An instance of a saga.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceView<'a> {
    id: Uuid,
    saga: &'a str,
    correlation_id: &'a str,
    state: &'a str,
    #[schema(value_type = Object)]
    data: &'a Map<String, Value>,
    /// Events that will come by themselves, and their ids.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    timers: &'a BTreeMap<String, String>,
    created_at: String,
    updated_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    completed_at: Option<String>,
    /// When it will be removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    /// The events that were applied, oldest first; of a long history, its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<Vec<LineView>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    history_is_cut: bool,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LineView {
    event: String,
    event_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    /// Nothing, for the one that made the instance.
    from: Option<String>,
    to: String,
    /// The actions that it sent; of many, the first.
    commands: Vec<CommandView>,
    commands_sent: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scheduled: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<String>,
    /// How often the same event came again.
    duplicates: i64,
    at: String,
    replica: String,
}

#[derive(Serialize, ToSchema)]
pub struct CommandView {
    command: String,
    /// Of the action that it is, and the key under which each try reaches its receiver.
    id: Uuid,
}

impl<'a> InstanceView<'a> {
    pub fn of(found: &'a Found) -> InstanceView<'a> {
        InstanceView {
            id: found.id,
            saga: &found.saga,
            correlation_id: &found.correlation_id,
            state: &found.instance.state,
            data: &found.instance.data,
            timers: &found.instance.timers,
            created_at: found.created_at.to_string(),
            updated_at: found.updated_at.to_string(),
            completed_at: found.instance.completed_at().map(|at| at.to_string()),
            expires_at: found.expires_at.map(|at| at.to_string()),
            history: None,
            history_is_cut: false,
        }
    }

    pub fn with_history(self, (lines, is_cut): (Vec<LineSeen>, bool)) -> InstanceView<'a> {
        let history = Some(lines.into_iter().map(LineView::from).collect());
        InstanceView { history, history_is_cut: is_cut, ..self }
    }
}

impl From<LineSeen> for LineView {
    fn from(LineSeen { line, duplicates }: LineSeen) -> Self {
        LineView {
            event: line.event,
            event_id: line.event_id,
            source: line.source,
            from: line.from,
            to: line.to,
            commands: line.commands.into_iter().map(|Sent { command, id }| CommandView { command, id }).collect(),
            commands_sent: line.commands_sent,
            scheduled: line.scheduled,
            missing: line.missing,
            duplicates,
            at: Time::from_micros(line.at_us).to_string(),
            replica: line.replica,
        }
    }
}

/// An event that could not be applied.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetterView {
    id: Uuid,
    /// `open`, `retried` or `discarded`.
    status: &'static str,
    saga: Option<String>,
    correlation_id: Option<String>,
    /// The instance's, when the event came.
    state: Option<String>,
    reason: String,
    #[schema(value_type = Object)]
    event: Option<Event>,
    /// What is no event, as it came.
    #[serde(skip_serializing_if = "Option::is_none")]
    raw: Option<String>,
    at: String,
    /// How often it was tried again in vain.
    retries: u32,
}

impl From<DeadLetter> for DeadLetterView {
    fn from(letter: DeadLetter) -> Self {
        DeadLetterView {
            id: letter.id,
            status: letter.standing.as_str(),
            saga: letter.saga,
            correlation_id: letter.correlation_id,
            state: letter.state,
            reason: letter.reason,
            event: letter.event,
            raw: letter.raw,
            at: Time::from_micros(letter.at_us).to_string(),
            retries: letter.retries,
        }
    }
}
