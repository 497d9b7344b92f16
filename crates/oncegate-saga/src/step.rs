//! Applies an event to an instance. No clock, no store.

use std::collections::BTreeSet;
use std::time::Duration;

use oncegate_core::Time;
use serde_json::{Map, Value};

use crate::definition::{Cell, Definition, Due, Fields, NONE, Plan, Scheduled, Sent};
use crate::event::{Event, Instance};
use crate::expr::Scope;
use crate::reads::Fields as ReadFields;
use crate::steps::Steps;
use crate::values::kind_of;
use crate::{COMMAND_BYTES_MAX, COMMANDS_MAX, CORRELATION_BYTES_MAX, DATA_DEPTH_MAX};

/// No event is scheduled further ahead than this.
const SCHEDULE_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// The result of an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// The event changes the instance, or makes one.
    Apply(Box<Next>),
    /// The event changes nothing.
    Ignore,
    /// The event cannot be applied, and goes to the dead letters for this reason.
    Refuse(String),
}

/// What to write, all of it or nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Next {
    /// The instance's state after the event.
    pub state: String,
    /// The instance's data after the event.
    pub data: Map<String, Value>,
    /// The instance has just entered a terminal state.
    pub completes: bool,
    /// The commands to send, in this order.
    pub commands: Vec<Command>,
    /// The events to schedule, at most one of each name.
    pub timers: Vec<Timer>,
    /// Timers that are no longer awaited. New timers of the same events are set after these are removed.
    pub unscheduled: BTreeSet<String>,
    /// Required data that is missing.
    pub missing: Vec<String>,
}

/// A command that an event sends. It is an action, and its name is the action's type.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// The name of the command.
    pub name: String,
    /// The fields that the definition computes for the command, or all of the saga's data.
    pub payload: Value,
}

/// A scheduled event.
#[derive(Clone, Debug, PartialEq)]
pub struct Timer {
    /// The name of the event.
    pub event: String,
    /// When the event arrives at the saga.
    pub due_at: Time,
    /// The data of the event, by field.
    pub data: Value,
}

impl Definition {
    /// The correlation id of an event: the one that its sender gives, or the one that the definition finds in it. It depends on the
    /// event alone, so it is the same on every delivery.
    pub fn correlation_id(&self, event: &Event) -> Result<String, String> {
        self.correlation_id_within(event, &Steps::default())
    }

    /// Like `correlation_id`, with a limit on steps.
    pub fn correlation_id_within(&self, event: &Event, steps: &Steps) -> Result<String, String> {
        let found = match &event.correlation_id {
            Some(id) => Value::String(id.clone()),
            None => scope(event, &self.correlation.reads().data, Time::LONG_AGO, steps)
                .and_then(|scope| self.correlation.eval(&scope))
                .map_err(|why| format!("no correlation id: {why}"))?,
        };
        let id = match found {
            Value::String(text) => text,
            // An integer is an id, too: its digits.
            Value::Number(number) if !number.is_f64() => number.to_string(),
            other => {
                return Err(format!("the correlation id is a text or a whole number; this is {}", kind_of(&other)));
            }
        };
        match id.len() {
            0 => Err("the correlation id is empty".into()),
            bytes if bytes > CORRELATION_BYTES_MAX => {
                Err(format!("a correlation id is at most {CORRELATION_BYTES_MAX} bytes; this one has {bytes}"))
            }
            _ if id.chars().any(char::is_control) => {
                Err("control characters are not allowed in a correlation id".into())
            }
            _ => Ok(id),
        }
    }

    /// Decides what `event` does at the store's `now`, to an instance or without one.
    pub fn step(&self, instance: Option<&Instance>, event: &Event, now: Time) -> Step {
        self.step_within(instance, event, now, &Steps::default())
    }

    /// Like `step`, with a limit on steps. An event whose expressions would take more is refused.
    pub fn step_within(&self, instance: Option<&Instance>, event: &Event, now: Time, steps: &Steps) -> Step {
        let state = instance.map(|instance| instance.state.as_str());
        let name = &event.event_type;
        match self.cell(state, name) {
            Some(Cell::Ignored) => Step::Ignore,
            Some(Cell::Unexpected) => {
                Step::Refuse(format!("event {name} is not accepted in state {}", state.unwrap_or(NONE)))
            }
            Some(Cell::Handled(row)) => match self.take(&self.rows[row], instance, event, now, steps) {
                Ok(next) => Step::Apply(Box::new(next)),
                Err(why) => Step::Refuse(format!("event {name} in state {}: {why}", state.unwrap_or(NONE))),
            },
            None if !self.events.contains(name) => Step::Refuse(format!("{} has no event {name}", self.name)),
            None => Step::Refuse(format!("{} has no state {} any more", self.name, state.unwrap_or(NONE))),
        }
    }

    fn take(
        &self,
        row: &Plan,
        instance: Option<&Instance>,
        event: &Event,
        now: Time,
        steps: &Steps,
    ) -> Result<Next, String> {
        let from = instance.map_or(NONE, |instance| instance.state.as_str());
        let mut turn = Turn {
            definition: self,
            data: instance.map(|instance| instance.data.clone()).unwrap_or_default(),
            event,
            scope: scope(event, &self.reads.data, now, steps)?,
            now,
            commands: vec![],
            command_bytes: 0,
            timers: vec![],
            unscheduled: BTreeSet::new(),
        };
        for (field, kind) in &self.data {
            turn.data.entry(field.clone()).or_insert_with(|| kind.empty());
        }
        turn.scope.set_saga(&turn.data, &self.reads.saga)?;
        let mut to = row.to.as_deref().unwrap_or(from);
        turn.note(row)?;
        let required = row.require.as_ref();
        let missing = required.map(|required| turn.missing(&required.fields)).unwrap_or_default();
        match required.and_then(|required| required.otherwise.as_deref()).filter(|_| !missing.is_empty()) {
            // The rest of the row is skipped.
            Some(otherwise) => to = otherwise,
            None => {
                turn.send(row)?;
                if let Some(branch) = turn.branch(row)? {
                    to = branch.to.as_deref().unwrap_or(to);
                    turn.note(branch)?;
                    turn.send(branch)?;
                }
            }
        }
        if let Some(enter) = self.enter.get(to).filter(|_| to != from) {
            turn.note(enter)?;
            turn.send(enter)?;
        }
        let completes = self.is_terminal(to);
        if completes {
            // A terminal state would ignore the timers' events.
            turn.timers.clear();
            turn.unscheduled.extend(instance.into_iter().flat_map(|instance| instance.timers.keys().cloned()));
        }
        let Turn { data, commands, timers, unscheduled, .. } = turn;
        Ok(Next { state: to.to_owned(), data, completes, commands, timers, unscheduled, missing })
    }
}

/// What expressions see of an event.
fn scope<'a>(event: &Event, reads: &ReadFields, now: Time, steps: &'a Steps) -> Result<Scope<'a>, String> {
    let mut scope = Scope::at(now, steps);
    scope.set_event(&event.envelope(), &event.data, reads)?;
    Ok(scope)
}

/// An event while it is applied.
struct Turn<'a> {
    definition: &'a Definition,
    data: Map<String, Value>,
    event: &'a Event,
    scope: Scope<'a>,
    now: Time,
    commands: Vec<Command>,
    command_bytes: usize,
    timers: Vec<Timer>,
    unscheduled: BTreeSet<String>,
}

impl Turn<'_> {
    /// Copies data from the event, and computes the fields that depend on it.
    fn note(&mut self, plan: &Plan) -> Result<(), String> {
        let to_fill = plan.fill.iter().filter(|field| is_missing(self.data.get(*field)));
        for field in plan.take.iter().chain(to_fill).collect::<Vec<_>>() {
            if let Some(value) = self.event.data.get(field).filter(|value| !value.is_null()) {
                self.data.insert(field.clone(), value.clone());
            }
        }
        if !plan.take.is_empty() || !plan.fill.is_empty() {
            self.check()?;
        }
        if !plan.set.is_empty() {
            // All of the expressions see the data as it was before.
            let set = fields(&plan.set, &self.scope)?;
            self.data.extend(set);
            self.check()?;
        }
        Ok(())
    }

    /// Checks that the data has its declared kinds, and lets expressions see it from here on.
    fn check(&mut self) -> Result<(), String> {
        for (field, kind) in &self.definition.data {
            let value = self.data.get(field).unwrap_or(&Value::Null);
            kind.check(field, value)?;
            // A value nested too deeply could not be read back.
            if depth(value) > DATA_DEPTH_MAX {
                return Err(format!("`{field}` is nested over {DATA_DEPTH_MAX} deep"));
            }
        }
        self.scope.set_saga(&self.data, &self.definition.reads.saga)
    }

    fn missing(&self, fields: &[String]) -> Vec<String> {
        fields.iter().filter(|field| is_missing(self.data.get(*field))).cloned().collect()
    }

    /// The first branch whose condition holds.
    fn branch<'p>(&self, row: &'p Plan) -> Result<Option<&'p Plan>, String> {
        for branch in &row.branches {
            let holds = branch.condition.as_ref().map_or(Ok(true), |condition| condition.eval_bool(&self.scope));
            if holds? {
                return Ok(Some(branch));
            }
        }
        Ok(None)
    }

    fn send(&mut self, plan: &Plan) -> Result<(), String> {
        for sent in &plan.send {
            self.send_one(sent)?;
        }
        for name in &plan.unschedule {
            self.timers.retain(|timer| timer.event != *name);
            self.unscheduled.insert(name.clone());
        }
        for scheduled in &plan.schedule {
            let timer = self.timer(scheduled)?;
            // One timer for each event: the newest.
            self.timers.retain(|timer| timer.event != scheduled.event);
            self.unscheduled.insert(timer.event.clone());
            self.timers.push(timer);
        }
        Ok(())
    }

    fn send_one(&mut self, sent: &Sent) -> Result<(), String> {
        let elements = match &sent.each {
            None => vec![Value::Null],
            Some(list) => match list.eval(&self.scope)? {
                Value::Array(elements) => elements,
                other => return Err(format!("`each` of {} is a list; this is {}", sent.command, kind_of(&other))),
            },
        };
        if self.commands.len() + elements.len() > COMMANDS_MAX {
            let more = self.commands.len() + elements.len();
            return Err(format!("an event sends at most {COMMANDS_MAX} commands; this one would send {more}"));
        }
        for element in elements {
            if sent.each.is_some() {
                self.scope.set("each", &element)?;
            }
            let payload = match &sent.payload {
                Some(payload) => Value::Object(fields(payload, &self.scope)?),
                None => Value::Object(self.data.clone()),
            };
            self.command_bytes += size(&payload);
            if self.command_bytes > COMMAND_BYTES_MAX {
                return Err(format!("the commands of an event have at most {COMMAND_BYTES_MAX} bytes, all together"));
            }
            self.commands.push(Command { name: sent.command.clone(), payload });
        }
        Ok(())
    }

    fn timer(&self, scheduled: &Scheduled) -> Result<Timer, String> {
        let due_at = match &scheduled.due {
            Due::After(span) => self.now + *span,
            Due::At(at) => {
                let wrong =
                    |what: String| format!("`at` of {} is a time, as 2026-01-31T09:30:00Z; {what}", scheduled.event);
                match at.eval(&self.scope)? {
                    Value::String(text) => Time::parse(&text).ok_or_else(|| wrong("this is none".into()))?,
                    other => return Err(wrong(format!("this is {}", kind_of(&other)))),
                }
            }
        };
        let due_at = due_at.max(self.now).min(self.now + SCHEDULE_MAX);
        Ok(Timer { event: scheduled.event.clone(), due_at, data: Value::Object(fields(&scheduled.data, &self.scope)?) })
    }
}

pub(crate) fn fields(fields: &Fields, scope: &Scope<'_>) -> Result<Map<String, Value>, String> {
    fields.iter().map(|(field, expression)| Ok((field.clone(), expression.eval(scope)?))).collect()
}

/// The approximate size of the value in bytes of JSON.
pub fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(list) => 2 + list.iter().map(|item| size(item) + 1).sum::<usize>(),
        Value::Object(fields) => 2 + fields.iter().map(|(name, value)| name.len() + 4 + size(value)).sum::<usize>(),
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Whether the value is missing or empty.
fn is_missing(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Bool(_) | Value::Number(_)) => false,
    }
}
