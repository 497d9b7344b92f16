//! Short forms of the calls to a send log.

use std::sync::Arc;
use std::time::Duration;

use oncegate::document::Resolution;
use oncegate::sends::{Begin, Begun, JOB, Kept, Lost, NotTaken, Options, Proceed, Sends, Sent, State};
use oncegate::store::{MainStore, Wanted, Whose};
use oncegate::{Ledger, WorkspaceName};
use oncegate_core::job::{Job, Reached};

use super::World;

pub const SECOND: Duration = Duration::from_secs(1);
pub const MILLI: Duration = Duration::from_millis(1);
pub const LEASE: Duration = Duration::from_secs(60);
pub const KEEP: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long a record outlasts its send.
pub const LINGERS: Duration = Duration::from_secs(60);
pub const POLICIES: [Lost; 3] = [Lost::Resend, Lost::Skip, Lost::Hold];

pub fn workspace() -> WorkspaceName {
    WorkspaceName::default_workspace()
}

pub fn ledger(store: &Arc<dyn MainStore>) -> Arc<Ledger> {
    Arc::new(Ledger::start(store.clone(), Arc::new(())))
}

pub fn over(store: &Arc<dyn MainStore>, lost: Lost) -> Sends {
    Sends::over(store.clone(), ledger(store), Options { lost, ..Options::default() })
}

pub fn to(recipient: &str) -> Begin {
    Begin::new("spring", recipient).expect("is right")
}

pub async fn begin(sends: &Sends, recipient: &str) -> Begun {
    sends.begin(&workspace(), &to(recipient)).await.expect("the store is there")
}

#[track_caller]
pub fn proceeds(begun: Begun) -> Proceed {
    match begun {
        Begun::Proceed(proceed) => proceed,
        other => panic!("it proceeds, and is not told {other:?}"),
    }
}

#[track_caller]
pub fn was_sent(begun: Begun) -> Sent {
    match begun {
        Begun::Sent(sent) => sent,
        other => panic!("it was sent, and is not {other:?}"),
    }
}

#[track_caller]
pub fn is_busy(begun: Begun) -> Duration {
    match begun {
        Begun::Busy { lease_left } => lease_left,
        other => panic!("it is busy, and not {other:?}"),
    }
}

#[track_caller]
pub fn is_unknown(begun: &Begun) {
    assert!(matches!(begun, Begun::Unknown { .. }), "{begun:?}");
}

pub async fn sent(sends: &Sends, of: &Proceed, esp: &str) -> Result<Kept, NotTaken> {
    sends.sent(&workspace(), of.id, of.token, Some(esp.to_owned())).await
}

pub async fn failed(sends: &Sends, of: &Proceed, reached: Reached) -> Result<Kept, NotTaken> {
    sends.failed(&workspace(), of.id, of.token, "no".into(), reached).await
}

pub async fn resolve(sends: &Sends, of: &Proceed, was_sent: bool) -> Result<Kept, NotTaken> {
    let resolution = Resolution { happened: was_sent, by: "ada".into(), note: Some("she looked".into()) };
    sends.resolve(&workspace(), of.id, &resolution, None).await
}

#[track_caller]
pub fn is_fenced(said: &Result<Kept, NotTaken>) {
    assert!(matches!(said, Err(NotTaken::Fenced(_))), "{said:?}");
}

#[track_caller]
pub fn stands(said: Result<Kept, NotTaken>, state: State) -> Kept {
    let kept = said.expect("is taken");
    assert_eq!(kept.document.state, state, "{kept:?}");
    kept
}

pub async fn found(sends: &Sends, of: &Proceed) -> Kept {
    sends.find(&workspace(), of.id).await.expect("the store is there").expect("is there").0
}

/// Leases the jobs that are due.
pub async fn due(store: &Arc<dyn MainStore>) -> Vec<Job> {
    let wanted = Wanted::new([JOB], 30 * SECOND, Whose::One { workspace: workspace(), max: 100 });
    store.lease_jobs(&wanted).await.expect("the store is there").value.jobs
}

/// A send whose result is unknown: its worker fell silent, or reported that it does not know.
pub async fn open_send(world: &World, lost: Lost, recipient: &str, said: bool) -> Proceed {
    let sends = over(&world.store, lost);
    let ours = proceeds(begin(&sends, recipient).await);
    if said {
        failed(&sends, &ours, Reached::Maybe).await.expect("is taken");
    } else {
        world.clock.advance(LEASE);
    }
    ours
}
