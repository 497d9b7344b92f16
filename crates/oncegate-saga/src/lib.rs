//! Sagas: state machines, one instance per correlation id, driven by events that come twice, late and out of order.
//!
//! A [`Draft`] is what somebody wrote, in TOML or in Rust. [`Draft::check`] makes a [`Definition`] of it, or says everything that is
//! wrong with it, each with its place: every pair of state and event is handled, ignored, or said to be unexpected before the first event
//! comes. [`Definition::step`] is what an event does to an instance. It is pure: whoever calls it writes what it says in one commit, and
//! calls it anew where somebody else was faster.

mod check;
mod cover;
mod definition;
mod diagram;
mod draft;
mod event;
mod expr;
mod patterns;
mod reads;
mod s3;
mod spot;
mod step;
mod steps;
mod values;

use std::time::Duration;

pub use check::{Defect, Defects};
pub use definition::{Cell, Definition, Kind as FieldKind, NONE};
pub use diagram::{Picture, STYLE as PICTURE_STYLE};
pub use draft::{Draft, Effects};
pub use event::{Event, Instance};
pub use s3::{Notification, NotificationError};
pub use step::{Command, Next, Step, Timer, size};
pub use steps::{STEPS_DEFAULT, Steps};

/// Commands that one event may send.
pub const COMMANDS_MAX: usize = 50_000;
/// Bytes of their payloads, all together.
pub const COMMAND_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes of an instance's data, as JSON, and how deep it may be nested.
pub const DATA_BYTES_MAX: usize = 4 * 1024 * 1024;
pub const DATA_DEPTH_MAX: usize = 64;
/// Bytes of a correlation id, and of the names of sagas, states, events and commands.
pub const CORRELATION_BYTES_MAX: usize = 512;
pub const NAME_BYTES_MAX: usize = 128;
/// Bytes of an expression, and how deep it may be nested: it is evaluated on a small stack.
pub const EXPRESSION_BYTES_MAX: usize = 4096;
pub const EXPRESSION_DEPTH_MAX: usize = 50;
/// How long an instance stays in its terminal state, where the definition does not say; and what it may say.
pub const RETENTION_DEFAULT: Duration = Duration::from_secs(7 * 24 * 3600);
pub const RETENTION: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(60)..=Duration::from_secs(3650 * 24 * 3600);
