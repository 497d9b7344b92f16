//! RabbitMQ: events from queues, and actions to exchanges.
//!
//! A message is acknowledged once what it brought is committed: if we die before that, it comes again, and is a duplicate. What is published
//! counts as delivered when the broker has confirmed it. A connection that breaks is made anew.

mod connect;
mod consume;
mod publish;

pub use consume::{Consumers, start};
pub use publish::Publisher;
