//! Reminders on a store, and the steps of a worker, by the clock that the test sets.

use std::sync::Arc;
use std::time::Duration;

use oncegate::document::Resolution;
use oncegate::reminders::{
    DEFAULT_KIND, JOB, Kept, New, NotChanged, Options, Reminder, Reminders, Set, State, Text, Worked,
};
use oncegate::store::{Clock, MainStore, ManualClock, Wanted, Whose};
use oncegate::{Ledger, StoreError, Time, WorkspaceName};
use oncegate_core::job::{Failure, Job, Reached};
use uuid::Uuid;

use super::World;

pub const SECOND: Duration = Duration::from_secs(1);
pub const MILLI: Duration = Duration::from_millis(1);
pub const LEASE: Duration = Duration::from_secs(30);
pub const GRACE: Duration = Duration::from_secs(600);

#[derive(Clone)]
pub struct Desk {
    pub reminders: Reminders,
    store: Arc<dyn MainStore>,
    clock: Arc<ManualClock>,
}

pub fn workspace() -> WorkspaceName {
    WorkspaceName::default_workspace()
}

pub fn before(time: Time, span: Duration) -> Time {
    Time::from_micros(time.micros() - i64::try_from(span.as_micros()).expect("small"))
}

pub fn new(booking: &str, send_at: Time) -> New {
    let text = Text { channel: "sms".into(), phone: Some("+1555".into()), email: None, message: "At nine.".into() };
    New { booking: booking.into(), kind: DEFAULT_KIND.into(), send_at, text }
}

impl Desk {
    pub fn over(world: &World, store: Arc<dyn MainStore>) -> Desk {
        let ledger = Arc::new(Ledger::start(store.clone(), Arc::new(())));
        let reminders = Reminders::over(store.clone(), ledger, Options { grace: GRACE, store_parts: true });
        Desk { reminders, store, clock: world.clock.clone() }
    }

    pub fn now(&self) -> Time {
        self.clock.now()
    }

    pub async fn set(&self, new: &New) -> Set {
        self.reminders.set(&workspace(), new).await.expect("the store is there")
    }

    /// A new reminder that is due now.
    pub async fn due(&self, booking: &str) -> Uuid {
        match self.set(&new(booking, self.now())).await {
            Set::Made(kept) => kept.id,
            other => panic!("{other:?}"),
        }
    }

    pub async fn find(&self, id: Uuid) -> Reminder {
        self.reminders.find(&workspace(), id).await.expect("the store is there").expect("it is there").document
    }

    pub async fn lease(&self) -> Option<Job> {
        let wanted = Wanted::new([JOB], LEASE, Whose::One { workspace: workspace(), max: 1 });
        self.store.lease_jobs(&wanted).await.expect("the store is there").value.jobs.pop()
    }

    /// Leases the job that is due, as a worker does.
    pub async fn leased(&self) -> Job {
        self.lease().await.expect("one is due")
    }

    pub async fn flag(&self, job: &Job) -> Result<Worked, StoreError> {
        self.reminders.flag(job, self.now()).await
    }

    /// Sets the flag; the carrier is called next.
    pub async fn flagged(&self, job: &Job) -> (Kept, Job) {
        match self.flag(job).await {
            Ok(Worked::Send(kept, begun)) => (*kept, *begun),
            other => panic!("{other:?}"),
        }
    }

    /// Reports that the carrier has accepted it. `None`: the worker reported too late.
    pub async fn delivered(&self, (kept, job): &(Kept, Job)) -> Result<Option<Kept>, StoreError> {
        self.reminders.delivered(kept, job, Some("p-1".into()), self.now()).await
    }

    /// Reports that the carrier has not accepted it.
    pub async fn failed(&self, (kept, job): &(Kept, Job), reached: Reached) -> Option<Kept> {
        let failure = Failure { error: "refused".into(), reached, is_final: false, retry_in: None };
        self.reminders.not_delivered(kept, job, failure, self.now()).await.expect("the store is there")
    }

    /// A missed reminder, of which it is unknown whether it arrived.
    pub async fn missed(&self, booking: &str) -> Uuid {
        let id = self.due(booking).await;
        let sending = self.flagged(&self.leased().await).await;
        self.failed(&sending, Reached::Maybe).await.expect("it is ours");
        id
    }

    pub async fn cancel(&self, id: Uuid) -> Result<Kept, NotChanged> {
        self.reminders.cancel(&workspace(), id).await
    }

    pub async fn resolve(&self, id: Uuid, sent: bool) -> Result<Kept, NotChanged> {
        let resolution = Resolution { happened: sent, by: "ada".into(), note: None };
        self.reminders.resolve(&workspace(), id, &resolution).await
    }

    pub async fn send_missed(&self, id: Uuid, by: &str) -> Result<Kept, NotChanged> {
        self.reminders.send_missed(&workspace(), id, by).await
    }
}

/// The worker must not send.
#[track_caller]
pub fn is_nothing(worked: Result<Worked, StoreError>) {
    assert!(matches!(worked, Ok(Worked::Nothing)), "{worked:?}");
}

/// The reminder was missed, and its last row says why.
#[track_caller]
pub fn is_missed(worked: Result<Worked, StoreError>, why: &str) -> Kept {
    let Ok(Worked::Missed(kept)) = worked else { panic!("{worked:?}") };
    let last = kept.document.deliveries.last().and_then(|row| row.error.as_deref());
    assert!(last.is_some_and(|error| error.contains(why)), "{why}: {kept:?}");
    assert_eq!(kept.document.state, State::Missed);
    *kept
}
