//! `oncegate demo`: the server, in its own folder, with traffic that shows what it does.
//!
//! The traffic is real: callers, workers and providers use HTTP. Everything that goes wrong does so because one of them repeats itself,
//! dies or refuses. Each of them has its own file, and a few scenes. Each scene runs once, so that there is something to see within
//! seconds. Later the scenes run at random, at a pace that can go on for days.

mod bookings;
mod caller;
mod campaign;
mod crm;
mod imports;
mod messages;
mod payments;
mod providers;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use clap::Args;
use tokio::sync::oneshot;

use self::caller::Caller;
use self::providers::Providers;
use crate::drill::told_to_stop;
use oncegate_config::{Config, Flag};
use oncegate_http::decisions::Decisions;
use oncegate_process::child::Folder;
use oncegate_process::failure::Failure;
use oncegate_process::output::say;

const CONFIG: &str = include_str!("oncegate.toml");
const PACES: std::ops::RangeInclusive<f64> = 0.1..=20.0;

/// Run the server with traffic that shows what it does
///
/// A server as `oncegate serve` runs it, with a configuration of its own (oncegate.toml, ONCEGATE_*, --store and --config are not for it) and a
/// temporary store, which is gone when the demo ends. Clients that retry, hooks that fire twice, workers that die and
/// providers that fail use its API, six or seven requests a second, until it is stopped. Nothing leaves this machine.
#[derive(Args)]
#[command(after_help = "Stop it with Ctrl-C. With --log pretty every decision is printed as it is made.")]
pub struct Command {
    /// Where to listen; port 0 takes a free one and prints it
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:4600")]
    listen: String,
    /// How many times as fast things happen: 0.1 to 20
    #[arg(long, value_name = "TIMES", default_value_t = 1.0)]
    pace: f64,
}

/// Called once the server listens, with its address and whether it is open.
pub type Announce = Box<dyn FnOnce(&Config, SocketAddr, bool) + Send>;

pub async fn run(
    command: Command,
    log: Option<String>,
    serve: impl AsyncFnOnce(Config, Arc<Decisions>, Announce) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Command { listen, pace } = command;
    if !PACES.contains(&pace) {
        let wrong = format!("--pace is {} to {}", PACES.start(), PACES.end());
        return Err(Failure::usage(wrong).hint("oncegate demo --pace 2"));
    }
    // Before anything exists that has to be removed.
    let stopped = told_to_stop();
    let folder = Folder::new(None, "demo")?;
    let providers = Providers::start().await?;
    let config = configure(&folder.path, providers.address(), listen, log)?;
    if !config.listen.ip().is_loopback() {
        return Err(Failure::usage("the demo has no API keys: it listens on a loopback address only")
            .hint("oncegate demo --listen 127.0.0.1:4600"));
    }
    let decisions = Arc::new(Decisions::default());
    let _log = oncegate_http::log::start(&config.log, decisions.clone());
    let (listens, listening) = oneshot::channel();
    let announce = Box::new(|_: &Config, address, _| {
        tell(address);
        // The receiver may have stopped already.
        let _ = listens.send(address);
    });
    tokio::select! {
        served = serve(config, decisions, announce) => served,
        () = traffic(listening, stopped, providers.address(), pace) => Ok(()),
    }
}

/// Writes the configuration of the demo's server, and everything that it needs, into its folder.
fn configure(folder: &Path, providers: SocketAddr, listen: String, log: Option<String>) -> Result<Config, Failure> {
    let unwritable = |error: std::io::Error| Failure::new(format!("cannot write to {}: {error}", folder.display()));
    let (file, saga) = (folder.join("oncegate.toml"), folder.join("search-import.toml"));
    std::fs::write(&file, CONFIG.replace("PROVIDERS", &providers.to_string())).map_err(unwritable)?;
    std::fs::write(&saga, imports::definition()).map_err(unwritable)?;
    // Nearly all failures here are intended, so only errors that need an operator are logged.
    let level = if log.is_some() { "info" } else { "error" };
    let settings = [
        ("listen", "--listen", listen),
        ("data_dir", "the demo", folder.display().to_string()),
        ("sagas.files", "the demo", saga.display().to_string()),
        ("log.format", "--log", log.unwrap_or_else(|| "pretty".into())),
        ("log.level", "the demo", level.into()),
    ];
    let flags = settings.map(|(key, name, value)| Flag { key: key.into(), name: name.into(), value });
    Ok(Config::load(flags.into(), [], Some(file)).map_err(oncegate_config::misconfigured)?.config)
}

fn tell(address: SocketAddr) {
    say(format_args!(
        "oncegate {} shows what it does: open http://{address}/

  messages   clients do not hear the answer, and post again: one text arrives
  claims     a payment provider calls its hook twice, or twice at once: one receipt
  actions    a CRM saves a lead again and again: one sync, with what was saved last
  sagas      uploads are told of twice and in the wrong order: each is parsed once
  sends      workers of a campaign die between the send and the word: nobody gets two mails
  reminders  for bookings that are moved and cancelled; one that no carrier takes

Some of it needs a person: settle it, and soon there is another. Nothing leaves this machine, and nothing is left
of it when you stop it with Ctrl-C.",
        env!("CARGO_PKG_VERSION")
    ));
}

/// Runs the clients. Ends if the demo is stopped before the server listens. After that the server stops, and this only sends no more.
async fn traffic(
    listening: oneshot::Receiver<SocketAddr>,
    stopped: impl Future<Output = ()>,
    providers: SocketAddr,
    pace: f64,
) {
    tokio::pin!(stopped);
    let address = tokio::select! {
        // Checked first, because the server does not know of a stop that came before it listens.
        biased;
        () = &mut stopped => return,
        Ok(address) = listening => address,
    };
    let caller = |seed| Caller::new(address, seed, pace);
    tokio::select! {
        () = stopped => {}
        _ = async {
            tokio::join!(
                messages::post(caller(1)),
                payments::take_hooks(caller(2)),
                crm::schedule(caller(3)),
                crm::work(caller(4)),
                imports::upload(caller(5)),
                imports::parse(caller(6)),
                campaign::work(caller(7), providers),
                bookings::remind(caller(8)),
            )
        } => {}
    }
    std::future::pending().await
}
