//! `oncegate sends`: what the API's sends endpoints do for people, from a shell, straight on the store.

use std::sync::Arc;

use clap::{Args, Subcommand, ValueEnum};
use oncegate::sends::{Filter, Kept, NotTaken, Sends, State};
use oncegate::store::Reading;
use oncegate::{Ledger, Time};

use super::args::{One, Paging, audit, more, who};
use super::claims::Note;
use super::fields;
use crate::api::{Page, esp_id};
use crate::audit::{Act, Audit, By};
use crate::config::Config;
use crate::failure::Failure;
use crate::output::{Format, table};
use crate::sends::{SendView, options};
use crate::stores::open_existing;

#[derive(Subcommand)]
pub enum Command {
    /// List sends, newest first
    List {
        #[command(flatten)]
        filter: FilterArgs,
        #[command(flatten)]
        format: Format,
    },
    /// Show one send, with its attempts
    Show(One),
    /// Settle a send of which nobody can say whether it was sent
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
pub struct FilterArgs {
    #[command(flatten)]
    paging: Paging,
    #[arg(long, value_name = "ID")]
    campaign: Option<String>,
    /// sending, sent, failed, lost or unknown
    #[arg(long)]
    state: Option<String>,
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
        Command::List { filter, format } => list(config, filter, format).await,
        Command::Show(one) => {
            let wanted = one.read("send", "sends")?;
            with_sends(config, async |sends, _| {
                let (kept, now) = sends.find(&wanted.workspace, wanted.id).await?.ok_or_else(|| wanted.missing())?;
                show(&kept, now, one.format);
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
                let (workspace, by) = (&wanted.workspace, By::from(who().as_str()));
                let act = Act::new("audit.send_resolved", workspace, ("send", wanted.id), &by, note.as_deref());
                let resolve = async {
                    let resolved =
                        sends.resolve(workspace, wanted.id, sent, esp_message_id, &by.id, note.clone()).await;
                    resolved.map_err(|not_taken| match not_taken {
                        NotTaken::Missing => wanted.missing(),
                        NotTaken::Store(error) => error.into(),
                        other => wanted.refused(other),
                    })
                };
                let (resolved, _) = log.act(act.about("sent", sent), resolve).await?;
                audit(wanted.id, resolution.says(), note.as_deref());
                show(&resolved, Time::LONG_AGO, one.format);
                Ok(())
            })
            .await
        }
    }
}

async fn list(config: &Config, filter: FilterArgs, format: Format) -> Result<(), Failure> {
    let state = |name: String| {
        let names = State::ALL.map(State::as_str).join(", ");
        State::parse(&name).ok_or_else(|| Failure::usage(format!("--state is one of {names}")))
    };
    let workspace = filter.paging.workspace()?;
    let limit = filter.paging.limit()?;
    let (campaign, state) = (filter.campaign, filter.state.map(state).transpose()?);
    let filter = Filter { campaign, state, limit, before: filter.paging.cursor };
    with_sends(config, async |sends, _| {
        let Reading { value: page, now } = sends.list(&workspace, &filter).await?;
        let items = page.items.iter().map(|kept| SendView::of(kept, now)).collect();
        format.print(&Page { items, next_cursor: page.next }, |_| {
            let plain = |text: &str| text.replace(char::is_control, " ");
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
            table(["ID", "STATE", "CAMPAIGN", "RECIPIENT", "ATTEMPT", "CREATED", "SENT"], rows) + &more(page.next)
        });
        Ok(())
    })
    .await
}

fn show(kept: &Kept, now: Time, format: Format) {
    format.print(&SendView::of(kept, now), |view| {
        let json = serde_json::to_string(view).expect("output is JSON");
        table(["FIELD", "VALUE"], fields::rows(&json))
    });
}

/// Opens the configured store, and closes it in every case.
async fn with_sends(
    config: &Config,
    work: impl AsyncFnOnce(&Sends, &Audit) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let store = open_existing(config).await?;
    let ledger = Arc::new(Ledger::start(store.clone(), Arc::new(())));
    let log = Audit::new(store.clone());
    let done = work(&Sends::over(store, ledger.clone(), options(config)), &log).await;
    ledger.close().await;
    done
}
