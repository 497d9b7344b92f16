//! The server's own guards, and where their claims are.

use std::sync::LazyLock;

use oncegate::GuardName;
use oncegate::actions::GUARD as SLOTS;
use oncegate::messages::{GUARD as MESSAGES, IDEMPOTENCY};
use oncegate::reminders::GUARD as REMINDERS;
use oncegate::sagas::GUARD as INBOX;
use oncegate::sends::GUARD as SENDS;

/// Whether a guard's claims are in the main store, whatever the guard store is: they are written in one commit with the
/// records that they guard.
pub fn is_kept_beside(guard: &GuardName) -> bool {
    *guard != *MESSAGES && is_own(guard)
}

/// The server's own guards. Callers cannot make or settle claims under them.
pub static OWN_GUARDS: [&LazyLock<GuardName>; 6] = [&MESSAGES, &IDEMPOTENCY, &SLOTS, &INBOX, &SENDS, &REMINDERS];

pub fn is_own(guard: &GuardName) -> bool {
    OWN_GUARDS.iter().any(|own| ***own == *guard)
}
