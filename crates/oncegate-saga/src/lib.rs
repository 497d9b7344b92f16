//! Sagas: state machines, one instance per correlation id, driven by events that arrive twice, late and out of order.
//!
//! A [`Draft`] is a definition as an author writes it, in TOML or in Rust. [`Draft::check`] turns it into a [`Definition`], or reports
//! all defects, each with its place. Every pair of state and event must be handled, ignored, or declared unexpected before the first
//! event arrives. [`Definition::step`] says what an event does to an instance. It is pure: the caller writes the result in one commit,
//! and calls it again if another caller was faster.

#![warn(missing_docs)]

mod check;
mod cover;
mod defect;
mod definition;
mod diagram;
mod draft;
mod event;
mod expr;
mod parts;
mod patterns;
mod reads;
mod s3;
mod span;
mod step;
mod steps;
mod values;

use std::time::Duration;

pub use defect::{Defect, Defects};
pub use definition::{Cell, Definition, Kind as FieldKind, NONE};
pub use diagram::{Picture, STYLE as PICTURE_STYLE};
pub use draft::{Draft, Effects};
pub use event::{Event, Instance};
pub use s3::{Notification, NotificationError};
pub use step::{Command, Next, Step, Timer, size};
pub use steps::{STEPS_DEFAULT, Steps};

/// The most commands that one event may send.
pub const COMMANDS_MAX: usize = 50_000;
/// The total size in bytes of the payloads of these commands.
pub const COMMAND_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The size of an instance's data in bytes of JSON.
pub const DATA_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The nesting depth of a field of an instance's data.
pub const DATA_DEPTH_MAX: usize = 64;
/// The size in bytes of a correlation id.
pub const CORRELATION_BYTES_MAX: usize = 512;
/// The size in bytes of the name of a saga, a state, an event or a command.
pub const NAME_BYTES_MAX: usize = 128;
/// The size of an expression in bytes.
pub const EXPRESSION_BYTES_MAX: usize = 4096;
/// The nesting depth of an expression, which is evaluated on a small stack.
pub const EXPRESSION_DEPTH_MAX: usize = 50;
/// How long an instance stays in its terminal state by default.
pub const RETENTION_DEFAULT: Duration = Duration::from_secs(7 * 24 * 3600);
/// The retentions that a definition may choose.
pub const RETENTION: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(60)..=Duration::from_secs(3650 * 24 * 3600);
