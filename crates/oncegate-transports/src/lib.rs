//! What leaves the server, and what brokers bring: HTTP requests to checked addresses, mail, RabbitMQ, NATS, and traces.
//!
//! Each of RabbitMQ, NATS, mail and traces is a feature of the crate. A stand-in (`absent.rs`) takes the place of one that a build
//! leaves out, and [`check_built`] refuses a configuration that needs it.

pub mod brokers;
mod built;
pub mod channels;
pub mod effect;
pub mod outgoing;
#[cfg(feature = "otlp")]
pub mod trace;
#[cfg(not(feature = "otlp"))]
#[path = "trace/absent.rs"]
pub mod trace;
#[cfg(feature = "otlp")]
pub mod trace_export;
#[cfg(not(feature = "otlp"))]
#[path = "trace_export/absent.rs"]
pub mod trace_export;

pub use built::check_built;
