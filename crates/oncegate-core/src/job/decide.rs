//! The transitions of a job.

use std::time::Duration;

use super::{Command, Decision, Delivery, Failure, Job, Reached, Refusal, State, WORKER_LOST};
use crate::claim::Token;
use crate::job::End;
use crate::time::Time;

/// Decides what `command` does to `job`, at the store's `now`.
pub fn decide(job: &Job, command: &Command, now: Time) -> Decision {
    let next = match command {
        Command::Lease { lease } => leased(job, *lease, now).map(Next::Keep),
        Command::Renew { token, lease } => owned(job, *token, now)
            .map(|job| Next::Keep(Job { lease_until: job.lease_until.max(now + *lease), ..job.clone() })),
        Command::Begin { token } => {
            owned(job, *token, now).map(|job| Next::Keep(if job.begun { job.clone() } else { begun(job) }))
        }
        Command::Complete { token } => owned(job, *token, now).map(|_| Next::End(End::Completed)),
        Command::Fail { token, failure } => owned(job, *token, now).map(|job| failed(job, failure, now)),
        Command::GiveUp { token } => {
            owned(job, *token, now).and_then(|job| job.fate().map(Next::End).ok_or(Refusal::NotGivenUp))
        }
        Command::GiveBack { token } => owned(job, *token, now).map(|job| Next::Keep(untried(job))),
        Command::PutOff { token, until, why } => owned(job, *token, now)
            .map(|job| Next::Keep(Job { due_at: *until, error: Some(why.clone()), ..untried(job) })),
        Command::Postpone { until } => {
            waiting(job).map(|job| Next::Keep(Job { postponed_until: *until, ..job.clone() }))
        }
        Command::Revise { payload, due_at } => match job.is_untouched() {
            false => Err(Refusal::Started),
            true => Ok(Next::Keep(Job { payload: payload.clone(), due_at: *due_at, ..job.clone() })),
        },
        // The worker is lost. If its try had begun, the effect may have happened.
        Command::Cancel if job.state == State::Running && !job.is_leased(now) => {
            Ok(Next::End(if job.begun { End::Unknown } else { End::Cancelled }))
        }
        Command::Cancel => waiting(job).map(|_| Next::End(End::Cancelled)),
        Command::RunNow => waiting(job).map(|job| Next::Keep(Job { due_at: job.due_at.min(now), ..job.clone() })),
    };
    match next {
        Ok(Next::Keep(next)) => Decision::Keep(Job { version: job.version + 1, ..next }),
        Ok(Next::End(end)) => Decision::End(end),
        Err(refusal) => Decision::Refuse(refusal),
    }
}

#[expect(clippy::large_enum_variant, reason = "most of them carry a job")]
enum Next {
    Keep(Job),
    End(End),
}

/// Leases a job that is due, or whose last worker is lost. If that worker had begun a try, the effect may have happened.
fn leased(job: &Job, lease: Duration, now: Time) -> Result<Job, Refusal> {
    match job.state {
        State::Pending if now < job.wakes_at() => return Err(Refusal::NotDue { at: job.wakes_at() }),
        State::Running if job.is_leased(now) => return Err(Refusal::Leased { until: job.lease_until }),
        _ => {}
    }
    let is_lost = job.state == State::Running && job.begun;
    let leased = Job {
        state: State::Running,
        started: true,
        token: Token(job.token.0 + 1),
        lease_until: now + lease,
        postponed_until: Time::LONG_AGO,
        begun: false,
        reached: if is_lost { Reached::Maybe } else { job.reached },
        error: if is_lost { Some(WORKER_LOST.into()) } else { job.error.clone() },
        ..job.clone()
    };
    Ok(match job.delivery {
        Delivery::AtLeastOnce => begun(&leased),
        Delivery::AtMostOnce => leased,
    })
}

/// As if this worker had not leased it.
fn untried(job: &Job) -> Job {
    Job { state: State::Pending, tried: job.tried - i32::from(job.begun), begun: false, ..job.clone() }
}

fn begun(job: &Job) -> Job {
    // Saturates at max + 1, which `fate()` reads as exhausted.
    let tried = (job.tried + 1).min(job.tries.max.saturating_add(1));
    Job { begun: true, tried, ..job.clone() }
}

fn failed(job: &Job, failure: &Failure, now: Time) -> Next {
    let reached = job.reached.max(failure.reached);
    let job = Job { reached, error: Some(failure.error.clone()), ..job.clone() };
    if reached == Reached::Maybe && job.delivery == Delivery::AtMostOnce {
        return Next::End(End::Unknown);
    }
    if failure.is_final || job.tried >= job.tries.max {
        return Next::End(job.given_up());
    }
    let due_at = now + pause(&job).max(failure.retry_in.unwrap_or_default());
    Next::Keep(Job { state: State::Pending, due_at, begun: false, ..job })
}

/// The backoff before the next try. It doubles with every try, less a jitter of up to one half, so that jobs that failed
/// together are not retried together. The jitter is derived from the job, so that the decision is deterministic.
fn pause(job: &Job) -> Duration {
    let doublings = u32::try_from(job.tried - 1).unwrap_or(0).min(30);
    let full = job.tries.pause.saturating_mul(1 << doublings).min(job.tries.pause_max);
    let mixed = (job.id.as_u128() as u64 ^ job.tried as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    full.mul_f64(1.0 - (mixed >> 32) as f64 / 2_f64.powi(33))
}

/// The job, if `token` is that of its last lease and that lease has not ended.
fn owned(job: &Job, token: Token, now: Time) -> Result<&Job, Refusal> {
    match job.state {
        _ if job.token != token => Err(Refusal::TokenOutdated),
        State::Pending => Err(Refusal::NotLeased),
        State::Running if now < job.lease_until => Ok(job),
        State::Running => Err(Refusal::LeaseEnded { at: job.lease_until }),
    }
}

/// The job, if it is pending: no worker has leased it since it was last put into the queue.
fn waiting(job: &Job) -> Result<&Job, Refusal> {
    match job.state {
        State::Pending => Ok(job),
        State::Running => Err(Refusal::Leased { until: job.lease_until }),
    }
}
