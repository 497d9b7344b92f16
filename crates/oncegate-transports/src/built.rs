//! What this build can do.

use oncegate_config::{ChannelKind, Config, HandlerKind};
use oncegate_process::failure::Failure;

/// Refuses a configuration that needs what this build leaves out.
pub fn check_built(config: &Config) -> Result<(), Failure> {
    let is_mail = |kind: &ChannelKind| matches!(kind, ChannelKind::Smtp { .. });
    let channels = config.messages.channels.values();
    let mails = channels.flat_map(|channel| channel.of_workspaces.values().chain([&channel.kind])).any(is_mail)
        || config.actions.types.values().filter_map(|action| action.handler.as_ref()).any(sends_mail);
    let needs = [
        ("amqp", config.amqp.url.is_some(), cfg!(feature = "amqp")),
        ("nats", config.nats.url.is_some(), cfg!(feature = "nats")),
        ("smtp", mails, cfg!(feature = "smtp")),
    ];
    match needs.into_iter().find(|(_, is_needed, is_built)| *is_needed && !is_built) {
        Some((feature, ..)) => Err(left_out(feature)),
        None => Ok(()),
    }
}

fn sends_mail(handler: &HandlerKind) -> bool {
    matches!(handler, HandlerKind::Email { url, .. } if url.scheme().starts_with("smtp"))
}

pub(crate) fn left_out(feature: &str) -> Failure {
    Failure::usage(format!("this build of oncegate leaves out {feature}"))
        .hint(format!("cargo build --release --features {feature}"))
}
