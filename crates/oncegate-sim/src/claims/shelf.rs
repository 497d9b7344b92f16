//! The store's side of one key: the record, and the floor under its tokens.
//!
//! Only [`decide`] makes decisions. This module drops the fields that no decision depends on,
//! so that two equivalent worlds compare as equal.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use oncegate_core::{
    Answer, Claim, ClaimKey, Command, GuardName, Lost, Moment, Terms, Time, Token, WorkspaceName, decide,
};

/// A tick is the clock's smallest unit, so tokens run ahead of the clock as soon as a key
/// changes its owner twice in one tick.
pub const TICK: Duration = Duration::from_micros(1);
pub const START: Time = Time::from_micros(10);
/// Long enough for a renewal to matter.
const LEASE: Duration = Duration::from_micros(2);
/// Long enough for two take-overs.
const WINDOW: Duration = Duration::from_micros(3);

pub fn first_window_ends() -> Time {
    START + WINDOW
}

static KEY: LazyLock<ClaimKey> = LazyLock::new(|| {
    let guard = GuardName::new("sim").expect("a well-formed name");
    ClaimKey::of(&WorkspaceName::default_workspace(), &guard, &[Some("the only key")])
});

pub fn terms(lost: Lost) -> Terms {
    Terms::new(WINDOW, LEASE, lost)
}

/// One defect of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The store does not check the token: a command of any owner is accepted as the current owner's.
    Unfenced,
    /// The sweeper does not keep the tokens of the records that it removes.
    FloorForgotten,
    /// The sweeper removes settled claims before their window ends.
    SweptTooSoon,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shelf {
    record: Option<Record>,
    token_floor: Token,
}

impl Default for Shelf {
    fn default() -> Self {
        Shelf { record: None, token_floor: Token(0) }
    }
}

impl Shelf {
    pub fn record(&self) -> Option<&Claim> {
        self.record.as_ref().map(|record| &*record.0)
    }

    /// The answer that the store would give, without the write.
    pub fn consider(&self, command: &Command, now: Time, fault: Option<Fault>) -> Answer {
        self.clone().commit(command, now, fault)
    }

    pub fn commit(&mut self, command: &Command, now: Time, fault: Option<Fault>) -> Answer {
        let moment = Moment { now, token_floor: self.token_floor };
        let decision = match (self.record.as_ref().map(|record| &record.0), fault) {
            (Some(claim), Some(Fault::Unfenced)) => {
                let (claim, command) = unfenced(claim, command);
                decide(&KEY, Some(&Arc::new(claim)), &command, moment)
            }
            (existing, _) => decide(&KEY, existing, command, moment),
        };
        if let Some(next) = decision.write {
            let expected = self.record().map_or(1, |claim| claim.version + 1);
            assert_eq!(next.version, expected, "each write is one version on");
            self.record = Some(Record::from(Arc::unwrap_or_clone(next)));
        }
        decision.answer
    }

    pub fn can_sweep(&self, now: Time, fault: Option<Fault>) -> bool {
        self.record().is_some_and(|claim| {
            !claim.is_live(now) || (fault == Some(Fault::SweptTooSoon) && claim.state.is_settled())
        })
    }

    pub fn sweep(&mut self, fault: Option<Fault>) {
        let swept = self.record.take().expect("only a record can be swept");
        if fault != Some(Fault::FloorForgotten) {
            self.token_floor = self.token_floor.max(swept.0.token);
        }
    }
}

/// The claim and the command as a store without fencing sees them: every sender is the
/// owner, with a live lease.
fn unfenced(claim: &Claim, command: &Command) -> (Claim, Command) {
    let current = claim.token;
    let mut command = command.clone();
    match &mut command {
        Command::Renew { token, .. }
        | Command::Settle { token, .. }
        | Command::Release { token }
        | Command::Abandon { token } => *token = current,
        Command::Claim(_) | Command::Retract { .. } | Command::Forget | Command::Resolve { .. } => {
            return (claim.clone(), command);
        }
    }
    (Claim { lease_until: Time::NEVER, ..claim.clone() }, command)
}

/// A claim without the fields that only people read, and without the version: the shelf decides and
/// writes in one step, so it needs no compare-and-set.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record(Arc<Claim>);

impl From<Claim> for Record {
    fn from(claim: Claim) -> Self {
        Record(Arc::new(Claim { version: 1, attempt: 1, created_at: START, settled_at: None, ..claim }))
    }
}

impl Hash for Record {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Claim { state, token, lease_until, expires_at, outcome, .. } = &*self.0;
        (state, token, lease_until, expires_at, outcome).hash(hasher);
    }
}
