//! Every bound of the system that does not depend on a deployment, by name.

use std::time::Duration;

/// Parts in one key.
pub const KEY_PARTS_MAX: usize = 32;
/// Bytes of one part of a key.
pub const KEY_PART_BYTES_MAX: usize = 64 * 1024;
/// Bytes of an outcome.
pub const OUTCOME_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of a claim's attributes, as JSON.
pub const ATTRIBUTES_BYTES_MAX: usize = 4 * 1024;
/// Bytes of the note with which a person gives a reason.
pub const NOTE_BYTES_MAX: usize = 1024;
/// Bytes of a fingerprint.
pub const FINGERPRINT_BYTES_MAX: usize = 255;
/// Bytes of a workspace's or a guard's name.
pub const NAME_BYTES_MAX: usize = 64;
/// The shortest window and the shortest lease.
pub const SPAN_MIN: Duration = Duration::from_millis(1);
/// The longest window that a caller may ask for (ten years).
pub const WINDOW_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 3600);
/// The longest lease. A longer one would only delay the take-over after a crash.
pub const LEASE_MAX: Duration = Duration::from_secs(3600);
/// The longest time that a caller may wait for another owner's claim to settle.
pub const WAIT_MAX: Duration = Duration::from_secs(60);
/// How long a guarded HTTP request may run, unless its policy has a `max_run`.
pub const REQUEST_RUN_MAX: Duration = Duration::from_secs(5 * 60);
/// Claims in one batch request.
pub const BATCH_MAX: usize = 1000;
/// Rows in one page of a list, at most.
pub const PAGE_MAX: usize = 500;
/// Rows in one page of a list, if the caller does not ask for a number.
pub const PAGE_DEFAULT: usize = 50;

const _: () = assert!(PAGE_DEFAULT <= PAGE_MAX);
const _: () = assert!(SPAN_MIN.as_micros() > 0);
const _: () = assert!(LEASE_MAX.as_micros() < WINDOW_MAX.as_micros());
