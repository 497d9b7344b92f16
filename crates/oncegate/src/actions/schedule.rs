//! A request to run an action later.

use std::time::Duration;

use oncegate_core::job::{Delivery, Job, Tries};
use oncegate_core::{Time, WorkspaceName};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::coalesce::Standing;
use super::{Entity, PAYLOAD_BYTES_MAX, Repeats, ScheduleError};

/// The longest type, entity id or entity type, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// The default window.
const WINDOW: Duration = Duration::from_secs(5);
/// The default longest delay of a debounced action, in windows.
const WAIT_FACTOR: u32 = 12;
const TRIES: Tries = Tries { max: 5, pause: Duration::from_secs(1), pause_max: Duration::from_secs(300) };

/// How duplicates within a window coalesce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The newest payload replaces the earlier one.
    #[default]
    Replace,
    /// The first payload stays; later ones are dropped, and their answer says so.
    KeepFirst,
    /// The newest payload replaces the earlier one, and each duplicate delays the action further.
    Debounce,
    /// The payloads are merged (RFC 7396).
    Merge,
    /// No deduplication: each schedule is an action of its own.
    Off,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 5] = [Mode::Replace, Mode::KeepFirst, Mode::Debounce, Mode::Merge, Mode::Off];

    /// The name of the mode, as the API and the config write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Mode::Replace => "replace",
            Mode::KeepFirst => "keep_first",
            Mode::Debounce => "debounce",
            Mode::Merge => "merge",
            Mode::Off => "off",
        }
    }

    /// The mode with this name; `None` if no mode has it.
    pub fn parse(name: &str) -> Option<Mode> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == name)
    }
}

/// When an action is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// When its window closes; at once if it has no window.
    Unsaid,
    /// At this time; at once if the time is past.
    At(Time),
    /// After this delay, counted from the schedule.
    After(Duration),
}

/// An action to schedule.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use oncegate::Gate;
/// use oncegate::actions::{Outcome, Schedule};
///
/// let gate = Gate::open("memory:").await?; // or sqlite:FILE, postgres://…
/// let actions = gate.actions();
/// let saved = |name: &str| Schedule::new("crm:sync", &serde_json::json!({ "entityId": "lead 7", "name": name }));
///
/// let first = actions.schedule(saved("Ada")?).await?;
/// let again = actions.schedule(saved("Ada Lovelace")?).await?;
/// assert_eq!((first.outcome, again.outcome), (Outcome::Created, Outcome::Updated));
/// assert_eq!((first.id, again.revision), (again.id, 2));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Schedule {
    pub(super) action_type: String,
    pub(super) payload: Box<RawValue>,
    pub(super) entity: Option<Entity>,
    pub(super) when: When,
    pub(super) window: Duration,
    pub(super) mode: Mode,
    pub(super) max_wait: Option<Duration>,
    pub(super) repeats: Option<Repeats>,
    pub(super) tries: Tries,
    pub(super) delivery: Delivery,
}

impl Schedule {
    /// A schedule with a window of 5 s and 5 tries, delivered at least once.
    pub fn new(action_type: &str, payload: &impl serde::Serialize) -> Result<Schedule, ScheduleError> {
        let payload = serde_json::value::to_raw_value(payload)
            .map_err(|error| ScheduleError::Invalid(format!("payload: {error}")))?;
        Schedule::of(action_type.into(), payload)
    }

    /// A schedule with a payload that is JSON already.
    pub fn of(action_type: String, payload: Box<RawValue>) -> Result<Schedule, ScheduleError> {
        if payload.get().len() > PAYLOAD_BYTES_MAX {
            return Err(ScheduleError::TooLarge("payload"));
        }
        Schedule::of_any_size(action_type, payload)
    }

    /// Like [`Schedule::of`], for a caller with its own limits of size.
    pub(crate) fn of_any_size(action_type: String, payload: Box<RawValue>) -> Result<Schedule, ScheduleError> {
        check_name("actionType", &action_type)?;
        Ok(Schedule {
            entity: entity_of(&payload)?,
            action_type,
            payload,
            when: When::Unsaid,
            window: WINDOW,
            mode: Mode::Replace,
            max_wait: None,
            repeats: None,
            tries: TRIES,
            delivery: Delivery::AtLeastOnce,
        })
    }

    /// Sets when the action is due.
    pub fn when(self, when: When) -> Schedule {
        Schedule { when, ..self }
    }

    /// Sets the window. A window of zero disables deduplication: the next schedule is an action of its own.
    pub fn window(self, window: Duration) -> Schedule {
        Schedule { window, ..self }
    }

    /// Sets how duplicates within the window coalesce.
    pub fn mode(self, mode: Mode) -> Schedule {
        Schedule { mode, ..self }
    }

    /// The longest delay of a debounced action, counted from its creation.
    pub fn max_wait(self, max_wait: Option<Duration>) -> Schedule {
        Schedule { max_wait, ..self }
    }

    /// Makes the action a recurring schedule, or a single one with `None`. A recurring schedule is not deduplicated.
    pub fn repeats(self, repeats: Option<Repeats>) -> Schedule {
        Schedule { repeats, ..self }
    }

    /// Sets the most tries of one run.
    pub fn tries(self, max: i32) -> Schedule {
        Schedule { tries: Tries { max, ..self.tries }, ..self }
    }

    /// Sets whether a try that may have reached the receiver is retried.
    pub fn delivery(self, delivery: Delivery) -> Schedule {
        Schedule { delivery, ..self }
    }

    /// The job of a single action, which is due at once and coalesces with no other.
    pub(crate) fn into_job(self, workspace: &WorkspaceName, now: Time) -> Job {
        let schedule = Schedule { mode: Mode::Off, when: When::Unsaid, repeats: None, ..self };
        Standing::first(&schedule, now).job(workspace, schedule.tries, schedule.delivery, now)
    }

    /// The type of the action.
    pub fn action_type(&self) -> &str {
        &self.action_type
    }

    /// The entity by which the schedule is deduplicated; `None` if it is not.
    pub(super) fn deduplicated(&self) -> Option<&Entity> {
        let is_on = !self.window.is_zero() && self.mode != Mode::Off && self.repeats.is_none();
        self.entity.as_ref().filter(|_| is_on)
    }

    /// How long duplicates coalesce into it, counted from its creation.
    pub(super) fn stands_for(&self) -> Duration {
        match self.mode {
            Mode::Debounce => self.max_wait.unwrap_or(self.window.saturating_mul(WAIT_FACTOR)),
            _ => self.window,
        }
    }
}

/// Checks the name of an action type or of an entity.
pub fn check_name(field: &str, name: &str) -> Result<(), ScheduleError> {
    let wrong = |what: String| Err(ScheduleError::Invalid(format!("{field}: {what}")));
    match name {
        "" => wrong("it is empty".into()),
        _ if name.len() > NAME_BYTES_MAX => {
            wrong(format!("at most {NAME_BYTES_MAX} bytes; this one has {}", name.len()))
        }
        _ if name.chars().any(char::is_control) => wrong("control characters are not allowed".into()),
        _ => Ok(()),
    }
}

/// The entity that the fields of a payload name. A number is an id by its digits.
fn entity_of(payload: &RawValue) -> Result<Option<Entity>, ScheduleError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct About<'a> {
        #[serde(borrow)]
        entity_id: Option<&'a RawValue>,
        #[serde(borrow)]
        entity_type: Option<&'a RawValue>,
    }
    if !payload.get().trim_start().starts_with('{') {
        return Ok(None);
    }
    let invalid = |error: serde_json::Error| ScheduleError::Invalid(format!("payload: {error}"));
    let about: About<'_> = serde_json::from_str(payload.get()).map_err(invalid)?;
    let name = |field: &str, value: Option<&RawValue>| {
        let wrong = || ScheduleError::Invalid(format!("{field}: a text or a number is an id; this is neither"));
        let name = match value.map(RawValue::get) {
            None | Some("null") => return Ok(None),
            Some(text) if text.starts_with('"') => serde_json::from_str(text).map_err(|_| wrong())?,
            // As it was written, so that rounding cannot make two ids equal.
            Some(number) if number.starts_with(|first: char| first == '-' || first.is_ascii_digit()) => {
                number.to_owned()
            }
            Some(_) => return Err(wrong()),
        };
        check_name(field, &name).map(|()| Some(name))
    };
    let entity_type = name("payload.entityType", about.entity_type)?;
    let id = name("payload.entityId", about.entity_id)?;
    Ok(id.map(|id| Entity { id, entity_type }))
}
