//! `oncegate sends`: what the API's sends endpoints do for people, from a shell, straight on the store.

use clap::{Args, Subcommand, ValueEnum};
use oncegate::Time;
use oncegate::document::Resolution as Resolved;
use oncegate::sends::{Filter, NotTaken, Sends, State};
use oncegate::store::Reading;

use super::args::{Note, One, Paging, audit, one_of, who};
use super::show::{self, plain};
use super::with_ledger;
use oncegate_config::Config;
use oncegate_http::api::esp_id;
use oncegate_http::audit::Audit;
use oncegate_http::sends::{SendView, options};
use oncegate_process::failure::Failure;
use oncegate_process::output::Format;

#[derive(Subcommand)]
pub enum Command {
    /// List sends, newest first
    List(ListArgs),
    /// Show one send, with its attempts
    Show(One),
    /// Settle a send that may or may not have been sent
    Resolve {
        #[command(flatten)]
        one: One,
        /// not_sent: the next worker that asks may send it
        #[arg(long = "as", value_name = "sent|not_sent")]
        resolution: Resolution,
        /// What the provider calls it
        #[arg(long, value_name = "ID")]
        esp_message_id: Option<String>,
        #[command(flatten)]
        note: Note,
    },
}

#[derive(Args)]
pub struct ListArgs {
    #[command(flatten)]
    paging: Paging,
    #[arg(long, value_name = "ID")]
    campaign: Option<String>,
    /// sending, sent, failed, lost or unknown
    #[arg(long)]
    state: Option<String>,
    #[command(flatten)]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Resolution {
    #[value(name = "sent")]
    Sent,
    #[value(name = "not_sent")]
    NotSent,
}

impl Resolution {
    pub fn is_sent(self) -> bool {
        self == Resolution::Sent
    }

    pub const fn says(self) -> &'static str {
        match self {
            Resolution::Sent => "resolved as sent",
            Resolution::NotSent => "resolved as not_sent",
        }
    }
}

pub async fn run(command: Command, config: &Config) -> Result<(), Failure> {
    match command {
        Command::List(args) => list(config, args).await,
        Command::Show(one) => {
            let wanted = one.read("send", "sends")?;
            with_sends(config, async |sends, _| {
                let (kept, now) = sends.find(&wanted.workspace, wanted.id).await?.ok_or_else(|| wanted.missing())?;
                show::record(&SendView::of(&kept, now), one.format);
                Ok(())
            })
            .await
        }
        Command::Resolve { one, resolution, esp_message_id, note } => {
            let (wanted, note) = (one.read("send", "sends")?, note.read()?);
            let sent = resolution.is_sent();
            if !sent && esp_message_id.is_some() {
                return Err(Failure::usage("--esp-message-id: what was not sent has none"));
            }
            let esp_message_id =
                esp_id(esp_message_id).map_err(|wrong| Failure::usage(format!("--esp-message-id: {wrong}")))?;
            with_sends(config, async |sends, log| {
                let act = wanted.act("audit.send_resolved", note.as_deref()).about("sent", sent);
                let (workspace, id) = (&wanted.workspace, wanted.id);
                let resolve = async {
                    let resolved = Resolved { happened: sent, by: who(), note: note.clone() };
                    let resolved = sends.resolve(workspace, id, &resolved, esp_message_id).await;
                    resolved.map_err(|not_taken| match not_taken {
                        NotTaken::Missing => wanted.missing(),
                        NotTaken::Store(error) => error.into(),
                        other => wanted.refused(other),
                    })
                };
                let (resolved, _) = log.act(act, resolve).await?;
                audit(id, resolution.says(), note.as_deref());
                show::record(&SendView::of(&resolved, Time::LONG_AGO), one.format);
                Ok(())
            })
            .await
        }
    }
}

async fn list(config: &Config, args: ListArgs) -> Result<(), Failure> {
    let ListArgs { paging, campaign, state, format } = args;
    let (workspace, limit) = (paging.workspace()?, paging.limit()?);
    let state = one_of("--state", state, State::ALL, State::as_str)?;
    let filter = Filter { campaign, state, limit, before: paging.cursor };
    with_sends(config, async |sends, _| {
        let Reading { value: page, now } = sends.list(&workspace, &filter).await?;
        let items = page.items.iter().map(|kept| SendView::of(kept, now)).collect();
        let rows = page.items.iter().map(|kept| {
            [
                kept.id.to_string(),
                kept.document.state_at(now).as_str().into(),
                plain(&kept.document.campaign),
                plain(&kept.document.recipient),
                kept.document.attempt.to_string(),
                Time::from_micros(kept.document.created_us).to_string(),
                kept.document.sent_us.map_or(String::new(), |at| Time::from_micros(at).to_string()),
            ]
        });
        let head = ["ID", "STATE", "CAMPAIGN", "RECIPIENT", "ATTEMPT", "CREATED", "SENT"];
        show::page(format, items, page.next, head, rows);
        Ok(())
    })
    .await
}

async fn with_sends(
    config: &Config,
    work: impl AsyncFnOnce(&Sends, &Audit) -> Result<(), Failure>,
) -> Result<(), Failure> {
    with_ledger(config, async |store, ledger, log| work(&Sends::over(store, ledger, options(config)), log).await).await
}
