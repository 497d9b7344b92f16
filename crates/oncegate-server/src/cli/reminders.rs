//! `oncegate reminders`: what the API's reminders endpoints do for people, from a shell, straight on the store.

use clap::{Args, Subcommand};
use oncegate::document::Resolution as Resolved;
use oncegate::reminders::{Filter, Kept, NotChanged, Reminders, State};
use oncegate::{Time, WorkspaceName};
use uuid::Uuid;

use super::args::{Note, One, Paging, audit, one_of, who};
use super::sends::Resolution;
use super::show::{self, plain};
use super::with_ledger;
use oncegate_config::Config;
use oncegate_http::audit::Audit;
use oncegate_http::reminders::{ReminderView, options};
use oncegate_process::failure::Failure;
use oncegate_process::output::Format;

#[derive(Subcommand)]
pub enum Command {
    /// List reminders, newest first
    List(ListArgs),
    /// Show one reminder, with its delivery log
    Show(One),
    /// Cancel a reminder that has not been sent
    Cancel(Deed),
    /// Send a reminder that was missed; a running server does it
    Send(Deed),
    /// Settle a reminder that was missed, without sending it
    Resolve {
        #[command(flatten)]
        deed: Deed,
        /// not_sent: it is let be, and cancelled for good
        #[arg(long = "as", value_name = "sent|not_sent")]
        resolution: Resolution,
    },
}

#[derive(Args)]
pub struct Deed {
    #[command(flatten)]
    one: One,
    #[command(flatten)]
    note: Note,
}

#[derive(Args)]
pub struct ListArgs {
    #[command(flatten)]
    paging: Paging,
    #[arg(long, value_name = "ID")]
    booking: Option<String>,
    /// scheduled, sending, sent, missed or cancelled
    #[arg(long)]
    state: Option<String>,
    #[command(flatten)]
    format: Format,
}

pub async fn run(command: Command, config: &Config) -> Result<(), Failure> {
    match command {
        Command::List(args) => list(config, args).await,
        Command::Show(one) => {
            let wanted = one.read("reminder", "reminders")?;
            with_reminders(config, async |reminders, _| {
                let found = reminders.find(&wanted.workspace, wanted.id).await?;
                let kept = found.ok_or_else(|| wanted.missing())?;
                show::record(&ReminderView::from(&kept), one.format);
                Ok(())
            })
            .await
        }
        Command::Cancel(deed) => {
            let verb = async |reminders: &Reminders, workspace: &WorkspaceName, id: Uuid, _| {
                reminders.cancel(workspace, id).await
            };
            deed.run(config, ("audit.reminder_cancelled", "cancelled"), verb).await
        }
        Command::Send(deed) => {
            let verb = async |reminders: &Reminders, workspace: &WorkspaceName, id: Uuid, _| {
                reminders.send_missed(workspace, id, &who()).await
            };
            deed.run(config, ("audit.reminder_sent", "to be sent"), verb).await
        }
        Command::Resolve { deed, resolution } => {
            let verb = async |reminders: &Reminders, workspace: &WorkspaceName, id: Uuid, note| {
                let resolution = Resolved { happened: resolution.is_sent(), by: who(), note };
                reminders.resolve(workspace, id, &resolution).await
            };
            deed.run(config, ("audit.reminder_resolved", resolution.says()), verb).await
        }
    }
}

impl Deed {
    async fn run(
        self,
        config: &Config,
        (event, done): (&'static str, &str),
        verb: impl AsyncFnOnce(&Reminders, &WorkspaceName, Uuid, Option<String>) -> Result<Kept, NotChanged>,
    ) -> Result<(), Failure> {
        let (wanted, note) = (self.one.read("reminder", "reminders")?, self.note.read()?);
        with_reminders(config, async |reminders, log| {
            let act = wanted.act(event, note.as_deref()).about("done", done);
            let verb = async {
                let changed = verb(reminders, &wanted.workspace, wanted.id, note.clone()).await;
                changed.map_err(|not_changed| match not_changed {
                    NotChanged::Missing => wanted.missing(),
                    NotChanged::Store(error) => error.into(),
                    other => wanted.refused(other),
                })
            };
            let (kept, _) = log.act(act, verb).await?;
            audit(wanted.id, done, note.as_deref());
            show::record(&ReminderView::from(&kept), self.one.format);
            Ok(())
        })
        .await
    }
}

async fn list(config: &Config, args: ListArgs) -> Result<(), Failure> {
    let ListArgs { paging, booking, state, format } = args;
    let (workspace, limit) = (paging.workspace()?, paging.limit()?);
    let state = one_of("--state", state, State::ALL, State::as_str)?;
    let filter = Filter { booking, state, limit, before: paging.cursor };
    with_reminders(config, async |reminders, _| {
        let page = reminders.list(&workspace, &filter).await?;
        let items = page.items.iter().map(ReminderView::from).collect();
        let rows = page.items.iter().map(|kept| {
            let last = kept.document.deliveries.last().and_then(|row| row.error.as_deref());
            [
                kept.id.to_string(),
                kept.document.state.as_str().into(),
                plain(&kept.document.booking),
                plain(&kept.document.kind),
                Time::from_micros(kept.document.send_at_us).to_string(),
                plain(last.unwrap_or_default()),
            ]
        });
        show::page(format, items, page.next, ["ID", "STATE", "BOOKING", "KIND", "SEND AT", "ERROR"], rows);
        Ok(())
    })
    .await
}

async fn with_reminders(
    config: &Config,
    work: impl AsyncFnOnce(&Reminders, &Audit) -> Result<(), Failure>,
) -> Result<(), Failure> {
    with_ledger(config, async |store, ledger, log| work(&Reminders::over(store, ledger, options(config)), log).await)
        .await
}
