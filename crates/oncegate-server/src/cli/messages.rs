//! `oncegate messages`: what was sent, straight from the store.

use clap::{Args, Subcommand};
use oncegate::document::{self, Document};
use oncegate::messages::{Kept, Message, Refused, Status, resolve};
use oncegate::store::{At, Listing, MainStore};
use oncegate::{OnFailure, limits};
use uuid::Uuid;

use super::args::{One, audit, who};
use super::claims::{Note, Scope};
use super::sends::Resolution;
use super::{fields, with, with_audit};
use crate::api::Page;
use crate::audit::{Act, By};
use crate::config::Config;
use crate::failure::Failure;
use crate::json::time;
use crate::messages::reply::MessageView;
use crate::output::{Format, table};
use crate::stores::open_existing;

#[derive(Subcommand)]
pub enum Command {
    /// List messages, newest first
    List {
        #[command(flatten)]
        filter: Filter,
        #[command(flatten)]
        format: Format,
    },
    /// Show one message
    Show {
        id: String,
        #[command(flatten)]
        scope: Scope,
        #[command(flatten)]
        format: Format,
    },
    /// Settle a message of which nobody can say whether it was sent
    Resolve {
        #[command(flatten)]
        one: One,
        /// not_sent: it has failed, and may be posted again
        #[arg(long = "as", value_name = "sent|not_sent")]
        resolution: Resolution,
        #[command(flatten)]
        note: Note,
    },
}

#[derive(Args)]
pub struct Filter {
    #[command(flatten)]
    scope: Scope,
    /// The id of a lead
    #[arg(long)]
    lead: Option<Uuid>,
    /// queued, sending, sent, failed or unknown
    #[arg(long)]
    status: Option<String>,
    #[arg(long, default_value_t = limits::PAGE_DEFAULT)]
    limit: usize,
    /// Where the page before ended
    #[arg(long)]
    cursor: Option<Uuid>,
}

impl Filter {
    fn listing(self) -> Result<Listing, Failure> {
        if !(1..=limits::PAGE_MAX).contains(&self.limit) {
            return Err(Failure::usage(format!("--limit is 1 to {}", limits::PAGE_MAX)));
        }
        if self.status.as_deref().is_some_and(|status| Status::parse(status).is_none()) {
            return Err(Failure::usage("--status is queued, sending, sent, failed or unknown"));
        }
        Ok(Listing {
            workspace: self.scope.workspace()?,
            kind: Message::KIND,
            list: self.lead.map(Message::list_of),
            state: self.status,
            limit: self.limit,
            before: self.cursor,
        })
    }
}

/// Checks the arguments before it opens the store.
pub async fn run(command: Command, config: &Config) -> Result<(), Failure> {
    match command {
        Command::List { filter, format } => {
            let listing = filter.listing()?;
            with(open_existing(config).await?, async |store| list(store, listing, format).await).await
        }
        Command::Show { id, scope, format } => {
            let workspace = scope.workspace()?;
            let missing = || {
                Failure::not_found(format!("no message {id} in workspace {workspace}"))
                    .hint(format!("oncegate messages list --workspace {workspace}"))
            };
            let at = At::Id(id.parse().map_err(|_| missing())?);
            with(open_existing(config).await?, async |store| {
                let found = document::find::<Message>(store, &workspace, at).await?;
                show(&found.value.ok_or_else(missing)?, format);
                Ok(())
            })
            .await
        }
        Command::Resolve { one, resolution, note } => {
            let (wanted, note) = (one.read("message", "messages")?, note.read()?);
            with_audit(open_existing(config).await?, async |store, log| {
                let (workspace, sent, by) = (&wanted.workspace, resolution.is_sent(), By::from(who().as_str()));
                let releases = config.messages.failed == OnFailure::Release;
                let act = Act::new("audit.message_resolved", workspace, ("message", wanted.id), &by, note.as_deref());
                let resolve = async {
                    let resolved = resolve(store, workspace, wanted.id, sent, &by.id, note.clone(), releases).await;
                    resolved.map_err(|refused| match refused {
                        Refused::Missing => wanted.missing(),
                        Refused::Wrong(why) => wanted.refused(why),
                        Refused::Store(error) => error.into(),
                        other => Failure::new(other.to_string()),
                    })
                };
                let (message, _) = log.act(act.about("sent", sent), resolve).await?;
                audit(wanted.id, resolution.says(), note.as_deref());
                show(&message, one.format);
                Ok(())
            })
            .await
        }
    }
}

fn show(message: &Kept<Message>, format: Format) {
    format.print(&MessageView::from(message), |view| {
        let json = serde_json::to_string(view).expect("output is JSON");
        table(["FIELD", "VALUE"], fields::rows(&json))
    });
}

async fn list(store: &dyn MainStore, listing: Listing, format: Format) -> Result<(), Failure> {
    let listed = store.list(listing).await?;
    let messages = listed.records.into_iter().map(Kept::<Message>::read).collect::<Result<Vec<_>, _>>()?;
    let items = messages.iter().map(MessageView::from).collect();
    format.print(&Page { items, next_cursor: listed.next }, |_| {
        let rows = messages.iter().map(|kept| {
            let Message { status, channel, created_us, error, .. } = &kept.document;
            let error = error.clone().unwrap_or_default().replace(char::is_control, " ");
            [kept.id.to_string(), status.as_str().into(), channel.clone(), time(*created_us), error]
        });
        let more = listed.next.map_or(String::new(), |cursor| format!("\nmore: --cursor {cursor}"));
        table(["ID", "STATUS", "CHANNEL", "CREATED", "ERROR"], rows) + &more
    });
    Ok(())
}
