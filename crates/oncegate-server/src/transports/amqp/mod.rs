//! RabbitMQ. A connection that breaks is made anew.

mod connect;
mod consume;
mod publish;

pub use consume::Queue;
pub use publish::Publisher;
