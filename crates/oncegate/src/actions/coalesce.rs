//! Coalesces the schedules of one slot into one action. No clock, no store.

use oncegate_core::job::{Delivery, Job, Tries};
use oncegate_core::{Time, WorkspaceName};
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::schedule::{Mode, Schedule, When};
use super::{Action, Outcome, PAYLOAD_BYTES_MAX, Recurrence, ScheduleError, Scheduled};

/// An action that no worker has leased, and when it is due.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    pub id: Uuid,
    pub action: Action,
    pub due_at: Time,
}

impl Standing {
    pub fn read(job: &Job) -> Result<Standing, oncegate_store::StoreError> {
        Ok(Standing { id: job.id, action: Action::read(&job.payload, job.id)?, due_at: job.due_at })
    }

    /// The action of the first schedule of a slot, or of a schedule without a slot.
    pub fn first(schedule: &Schedule, now: Time) -> Standing {
        let is_deduplicated = schedule.deduplicated().is_some();
        let recurrence = schedule.repeats.as_ref().map(|repeats| Recurrence::new(repeats.clone(), schedule.when, now));
        let due_at = match (schedule.when, &recurrence) {
            (When::At(at), _) => at,
            (When::After(delay), _) => now + delay,
            (When::Unsaid, Some(recurrence)) => recurrence.first(),
            (When::Unsaid, None) if is_deduplicated => now + schedule.window.min(schedule.stands_for()),
            (When::Unsaid, None) => now,
        };
        // An action with a due time in the past must not run before the actions that were queued earlier.
        let due_at = due_at.max(now);
        let action = Action {
            action_type: schedule.action_type.clone(),
            payload: schedule.payload.clone(),
            entity: schedule.entity.clone(),
            revision: 1,
            created_us: now.micros(),
            revised_us: vec![now.micros()],
            window_until_us: is_deduplicated.then(|| (now + schedule.stands_for()).micros()),
            tries: vec![],
            recurrence,
            tick_of: None,
            ended: None,
            record_version: 0,
        };
        Standing { id: Uuid::now_v7(), action, due_at }
    }

    /// The end of the window in which duplicates coalesce into this action.
    pub fn until(&self) -> Time {
        Time::from_micros(self.action.window_until_us.unwrap_or(0))
    }

    /// Coalesces another schedule of its slot.
    pub fn fold(&mut self, schedule: &Schedule, now: Time) -> Result<Scheduled, ScheduleError> {
        let payload = match schedule.mode {
            Mode::KeepFirst => return Ok(self.told(Outcome::Dropped)),
            Mode::Merge => merged(&self.action.payload, &schedule.payload)?,
            Mode::Replace | Mode::Debounce | Mode::Off => schedule.payload.clone(),
        };
        self.action.payload = payload;
        self.due_at = match (schedule.when, schedule.mode) {
            (When::Unsaid, Mode::Debounce) => self.put_off(now + schedule.window),
            (When::Unsaid, _) => self.due_at,
            (When::At(at), Mode::Debounce) => self.put_off(at),
            (When::At(at), _) => at.max(now),
            (When::After(delay), Mode::Debounce) => self.put_off(now + delay),
            (When::After(delay), _) => now + delay,
        };
        self.action.revised(now);
        Ok(self.told(Outcome::Updated))
    }

    /// The new due time of a debounced action: never earlier than now planned, and never after the end of its window.
    fn put_off(&self, to: Time) -> Time {
        to.min(self.until()).max(self.due_at)
    }

    pub fn told(&self, outcome: Outcome) -> Scheduled {
        Scheduled { id: self.id, outcome, run_at: self.due_at, revision: self.action.revision }
    }

    /// A new job for the action.
    pub fn job(&self, workspace: &WorkspaceName, tries: Tries, delivery: Delivery, now: Time) -> Job {
        let kind = Action::job_kind(&self.action.action_type);
        let lane = self.action.entity.as_ref().map(|entity| entity.lane(&self.action.action_type));
        let new = Job::new(workspace, self.id, kind, self.action.bytes(), tries, now);
        Job { lane, due_at: self.due_at, delivery, ..new }
    }
}

fn merged(onto: &RawValue, patch: &RawValue) -> Result<Box<RawValue>, ScheduleError> {
    let invalid = |error: serde_json::Error| ScheduleError::Invalid(format!("payload: {error}"));
    let mut target: Value = serde_json::from_str(onto.get()).map_err(invalid)?;
    merge(&mut target, serde_json::from_str(patch.get()).map_err(invalid)?);
    let merged = serde_json::value::to_raw_value(&target).map_err(invalid)?;
    match merged.get().len() > PAYLOAD_BYTES_MAX {
        true => Err(ScheduleError::TooLarge("payload, merged")),
        false => Ok(merged),
    }
}

/// RFC 7396: objects are merged, null removes, and everything else replaces.
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Default::default());
    }
    let fields = target.as_object_mut().expect("made one just now");
    for (name, value) in patch {
        match value {
            Value::Null => _ = fields.remove(&name),
            value => merge(fields.entry(name).or_insert(Value::Null), value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_patch_does_as_the_rfc_says() {
        let cases = [
            (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"a":null}"#, r#"{}"#),
            (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
            (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#),
            (r#"{"a":[{"b":"c"}]}"#, r#"{"a":[1]}"#, r#"{"a":[1]}"#),
            (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"e":null,"a":1}"#),
            (r#"[1,2]"#, r#"{"a":"b","c":null}"#, r#"{"a":"b"}"#),
            (r#"{}"#, r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
        ];
        for (target, patch, expected) in cases {
            let raw = |text: &str| RawValue::from_string(text.into()).expect("is JSON");
            assert_eq!(merged(&raw(target), &raw(patch)).expect("merges").get(), expected, "{target} with {patch}");
        }
    }
}
