//! NATS JetStream. The client reconnects by itself.

mod consume;
mod publish;

use async_nats::{Client, ConnectOptions, ServerAddr};
use percent_encoding::percent_decode_str;

pub use consume::Stream;
pub use publish::Publisher;

use oncegate_config::SecretUrl;

async fn connect(url: &SecretUrl, name: String) -> Result<Client, String> {
    let failed = |error: &dyn std::fmt::Display| format!("no connection to {url}: {error}");
    let address: ServerAddr = url.expose().parse().map_err(|error| failed(&error))?;
    let connected = credentials(&address)?.name(name).connect(address).await;
    connected.map_err(|error| failed(&error))
}

/// The credentials of a URL, `USER:PASSWORD@` or `TOKEN@`: the client does not send them by itself.
fn credentials(address: &ServerAddr) -> Result<ConnectOptions, String> {
    let text = |encoded: &str| {
        let decoded = percent_decode_str(encoded).decode_utf8();
        decoded.map(String::from).map_err(|_| "the credentials of the NATS URL are not UTF-8".to_owned())
    };
    Ok(match (address.username(), address.password()) {
        (Some(user), Some(password)) => ConnectOptions::with_user_and_password(text(user)?, text(password)?),
        (Some(token), None) => ConnectOptions::with_token(text(token)?),
        (None, _) => ConnectOptions::new(),
    })
}
