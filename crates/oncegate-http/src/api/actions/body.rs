//! The request bodies of actions, and their checks.

use std::time::Duration;

use oncegate::Time;
use oncegate::actions::{Mode, Repeats, Schedule, When};
use oncegate::limits::WINDOW_MAX;
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::api::extract::{bad, one_of, seconds};
use crate::problem::Problem;
use oncegate_config::Actions;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object with `actionType` and `payload`")]
pub struct ScheduleBody {
    /// What to do: who runs it follows from the config.
    action_type: String,
    /// `entityId` and `entityType` say what it is about, if they are there.
    #[schema(value_type = Object)]
    payload: Box<RawValue>,
    /// When, as RFC 3339.
    run_at: Option<String>,
    delay_seconds: Option<f64>,
    /// `hourly`, `daily`, `weekly`, `monthly`, a duration (`15m`) or a cron line of five fields.
    recurring_interval: Option<String>,
    /// Whose times a recurring action keeps: `Europe/Berlin`. UTC, if it is left out.
    timezone: Option<String>,
    /// Whether each tick that was missed runs, or one for all.
    catch_up: Option<bool>,
    /// How long duplicates fold into one action; 0 or less turns it off.
    window_seconds: Option<f64>,
    /// `replace`, `keep_first`, `debounce`, `merge` or `off`.
    mode: Option<String>,
    /// `debounce`: how long it may be put off in all.
    max_wait_seconds: Option<f64>,
}

impl ScheduleBody {
    pub fn check(self, config: &Actions) -> Result<Schedule, Problem> {
        let of_type = config.of_type(&self.action_type);
        let repeats = match &self.recurring_interval {
            Some(interval) => Some(Repeats::parse(interval, self.timezone.as_deref(), self.catch_up.unwrap_or(false))?),
            None if self.timezone.is_some() => return Err(bad("timezone: only a recurring action has one")),
            None if self.catch_up.is_some() => return Err(bad("catchUp: only a recurring action has ticks to miss")),
            None => None,
        };
        let mode = one_of("mode", self.mode, Mode::ALL, Mode::as_str)?.unwrap_or(of_type.mode);
        if self.max_wait_seconds.is_some() && mode != Mode::Debounce {
            return Err(bad("maxWaitSeconds: only mode \"debounce\" has one"));
        }
        let window = match self.window_seconds {
            Some(given) if given <= 0.0 => Duration::ZERO,
            given => seconds("windowSeconds", given, Duration::ZERO..=WINDOW_MAX)?.unwrap_or(of_type.window),
        };
        let max_wait = seconds("maxWaitSeconds", self.max_wait_seconds, Duration::from_millis(1)..=WINDOW_MAX)?;
        let when = when(self.run_at, seconds("delaySeconds", self.delay_seconds, Duration::ZERO..=WINDOW_MAX)?)?;
        let schedule = Schedule::of(self.action_type, self.payload)?;
        Ok(schedule
            .when(when)
            .window(window)
            .mode(mode)
            .max_wait(max_wait)
            .repeats(repeats)
            .tries(of_type.max_attempts)
            .delivery(of_type.delivery))
    }
}

fn when(run_at: Option<String>, delay: Option<Duration>) -> Result<When, Problem> {
    match (run_at, delay) {
        (Some(_), Some(_)) => Err(bad("runAt, delaySeconds: one of them, not both")),
        (None, Some(delay)) => Ok(When::After(delay)),
        (None, None) => Ok(When::Unsaid),
        (Some(text), None) => {
            let wrong = || bad(format!("runAt: {text:?} is not a time; one is \"2026-11-15T09:30:00Z\""));
            Time::parse(&text).map(When::At).ok_or_else(wrong)
        }
    }
}
