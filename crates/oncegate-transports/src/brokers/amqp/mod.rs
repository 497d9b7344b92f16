//! RabbitMQ. A broken connection is made again.

mod connect;
mod consume;
mod publish;

pub use consume::Queue;
pub use publish::Publisher;
