//! `oncegate reminders`: what the API's reminders endpoints do for people, from a shell, straight on the store.

use std::sync::Arc;

use clap::{Args, Subcommand};
use oncegate::reminders::{Filter, Kept, NotChanged, Reminders, State};
use oncegate::{Ledger, Time, WorkspaceName};
use uuid::Uuid;

use super::args::{One, Paging, audit, more, who};
use super::claims::Note;
use super::fields;
use super::sends::Resolution;
use crate::api::Page;
use crate::audit::{Act, Audit, By};
use crate::config::Config;
use crate::failure::Failure;
use crate::output::{Format, table};
use crate::reminders::{ReminderView, options};
use crate::stores::open_existing;

#[derive(Subcommand)]
pub enum Command {
    /// List reminders, newest first
    List {
        #[command(flatten)]
        filter: FilterArgs,
        #[command(flatten)]
        format: Format,
    },
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
pub struct FilterArgs {
    #[command(flatten)]
    paging: Paging,
    #[arg(long, value_name = "ID")]
    booking: Option<String>,
    /// scheduled, sending, sent, missed or cancelled
    #[arg(long)]
    state: Option<String>,
}

pub async fn run(command: Command, config: &Config) -> Result<(), Failure> {
    match command {
        Command::List { filter, format } => list(config, filter, format).await,
        Command::Show(one) => {
            let wanted = one.read("reminder", "reminders")?;
            with_reminders(config, async |reminders, _| {
                let found = reminders.find(&wanted.workspace, wanted.id).await?;
                show(&found.ok_or_else(|| wanted.missing())?, one.format);
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
                reminders.resolve(workspace, id, resolution.is_sent(), &who(), note).await
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
            let by = By::from(who().as_str());
            let act = Act::new(event, &wanted.workspace, ("reminder", wanted.id), &by, note.as_deref());
            let act = act.about("done", done);
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
            show(&kept, self.one.format);
            Ok(())
        })
        .await
    }
}

async fn list(config: &Config, filter: FilterArgs, format: Format) -> Result<(), Failure> {
    let state = |name: String| {
        let names = State::ALL.map(State::as_str).join(", ");
        State::parse(&name).ok_or_else(|| Failure::usage(format!("--state is one of {names}")))
    };
    let workspace = filter.paging.workspace()?;
    let limit = filter.paging.limit()?;
    let (booking, state) = (filter.booking, filter.state.map(state).transpose()?);
    let filter = Filter { booking, state, limit, before: filter.paging.cursor };
    with_reminders(config, async |reminders, _| {
        let page = reminders.list(&workspace, &filter).await?;
        let items = page.items.iter().map(ReminderView::from).collect();
        format.print(&Page { items, next_cursor: page.next }, |_| {
            let plain = |text: &str| text.replace(char::is_control, " ");
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
            table(["ID", "STATE", "BOOKING", "KIND", "SEND AT", "ERROR"], rows) + &more(page.next)
        });
        Ok(())
    })
    .await
}

fn show(kept: &Kept, format: Format) {
    format.print(&ReminderView::from(kept), |view| {
        let json = serde_json::to_string(view).expect("output is JSON");
        table(["FIELD", "VALUE"], fields::rows(&json))
    });
}

/// Opens the configured store, and closes it in every case.
async fn with_reminders(
    config: &Config,
    work: impl AsyncFnOnce(&Reminders, &Audit) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let store = open_existing(config).await?;
    let ledger = Arc::new(Ledger::start(store.clone(), Arc::new(())));
    let log = Audit::new(store.clone());
    let done = work(&Reminders::over(store, ledger.clone(), options(config)), &log).await;
    ledger.close().await;
    done
}
