//! The transitions of a job.

use std::time::Duration;

use super::{Command, Decision, Delivery, Job, Reached, Refusal, State};
use crate::claim::Token;
use crate::time::Time;

/// Decides what `command` does to `job`, at the store's `now`.
pub fn decide(job: &Job, command: &Command, now: Time) -> Decision {
    let next = match command {
        Command::Lease { lease } => leased(job, *lease, now),
        Command::Renew { token, lease } => {
            owned(job, *token, now).map(|job| Job { lease_until: job.lease_until.max(now + *lease), ..job.clone() })
        }
        Command::Complete { token } => match job.state {
            State::Completed if job.token == *token => return Decision::Already,
            _ => owned(job, *token, now).map(|job| ended(job, State::Completed, None, now)),
        },
        Command::Fail { token, error, reached, retry_in } => {
            owned(job, *token, now).map(|job| failed(job, error, *reached, *retry_in, now))
        }
        Command::GiveBack { token } => owned(job, *token, now).map(|job| Job {
            state: State::Pending,
            due_at: now,
            tried: job.tried - 1,
            ..job.clone()
        }),
        Command::Cancel => match job.state {
            State::Cancelled => return Decision::Already,
            _ => in_state(job, &[State::Pending], now).map(|job| ended(job, State::Cancelled, None, now)),
        },
        Command::Retry => in_state(job, &[State::Dead, State::Unknown, State::Cancelled], now).map(|job| Job {
            state: State::Pending,
            due_at: now,
            tried: 0,
            ended_at: None,
            ..job.clone()
        }),
        Command::RunNow => {
            in_state(job, &[State::Pending], now).map(|job| Job { due_at: job.due_at.min(now), ..job.clone() })
        }
    };
    match next {
        Ok(next) => Decision::Write(Job { version: job.version + 1, ..next }),
        Err(refusal) => Decision::Refuse(refusal),
    }
}

/// What a job becomes when its worker is gone: nobody knows how far it came.
pub fn after_loss(job: &Job) -> State {
    match job.delivery {
        Delivery::AtMostOnce => State::Unknown,
        Delivery::AtLeastOnce if job.tried < job.tries.max => State::Pending,
        Delivery::AtLeastOnce => State::Dead,
    }
}

/// Leases what is due. What its last worker has left for good is written down as such instead.
fn leased(job: &Job, lease: Duration, now: Time) -> Result<Job, Refusal> {
    let lost = job.state == State::Running;
    if job.is_leased(now) {
        return Err(Refusal::Leased { until: job.lease_until });
    }
    match job.state_at(now) {
        State::Pending if now < job.due_at => Err(Refusal::NotDue { at: job.due_at }),
        State::Pending => Ok(Job {
            state: State::Running,
            token: Token(job.token.0 + 1),
            lease_until: now + lease,
            tried: job.tried + 1,
            ..job.clone()
        }),
        state if lost => Ok(ended(job, state, Some("its worker was lost".into()), now)),
        state => Err(Refusal::WrongState { state }),
    }
}

fn failed(job: &Job, error: &str, reached: Reached, retry_in: Option<Duration>, now: Time) -> Job {
    let error = Some(error.to_owned());
    if reached == Reached::Maybe && job.delivery == Delivery::AtMostOnce {
        return ended(job, State::Unknown, error, now);
    }
    if job.tried >= job.tries.max {
        return ended(job, State::Dead, error, now);
    }
    let due_at = now + pause(job).max(retry_in.unwrap_or_default());
    Job { state: State::Pending, due_at, error, ..job.clone() }
}

fn ended(job: &Job, state: State, error: Option<String>, now: Time) -> Job {
    Job { state, ended_at: Some(now), error: error.or_else(|| job.error.clone()), ..job.clone() }
}

/// Doubles with every try, less up to a half: jobs that failed together do not come back together. By how much
/// less follows from the job, so that the same decision is the same everywhere.
fn pause(job: &Job) -> Duration {
    let doublings = u32::try_from(job.tried - 1).unwrap_or(0).min(30);
    let full = job.tries.pause.saturating_mul(1 << doublings).min(job.tries.pause_max);
    let mixed = (job.id.as_u128() as u64 ^ job.tried as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    full.mul_f64(1.0 - (mixed >> 32) as f64 / 2_f64.powi(33))
}

/// The job, if whoever brings `token` has it now.
fn owned(job: &Job, token: Token, now: Time) -> Result<&Job, Refusal> {
    match job.state {
        _ if job.token != token => Err(Refusal::TokenOutdated),
        State::Running if now < job.lease_until => Ok(job),
        State::Running => Err(Refusal::LeaseEnded { at: job.lease_until }),
        state => Err(Refusal::WrongState { state }),
    }
}

fn in_state<'j>(job: &'j Job, allowed: &[State], now: Time) -> Result<&'j Job, Refusal> {
    let state = job.state_at(now);
    if allowed.contains(&state) { Ok(job) } else { Err(Refusal::WrongState { state }) }
}
