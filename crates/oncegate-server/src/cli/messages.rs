//! `oncegate messages`: what was sent, straight from the store.

use clap::{Args, Subcommand};
use oncegate::OnFailure;
use oncegate::document::Resolution as Resolved;
use oncegate::document::{self, Document};
use oncegate::messages::{Message, Refused, Status, resolve};
use oncegate::store::{At, Listing, MainStore};
use uuid::Uuid;

use super::args::{Limit, Note, One, Scope, audit, who};
use super::sends::Resolution;
use super::show::{self, plain};
use super::{with, with_audit};
use oncegate_config::Config;
use oncegate_http::json::time;
use oncegate_http::messages::reply::MessageView;
use oncegate_http::stores::open_existing;
use oncegate_process::failure::Failure;
use oncegate_process::output::Format;

#[derive(Subcommand)]
pub enum Command {
    /// List messages, newest first
    List(ListArgs),
    /// Show one message
    Show(One),
    /// Settle a message that may or may not have been sent
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
pub struct ListArgs {
    #[command(flatten)]
    scope: Scope,
    /// The id of a lead
    #[arg(long)]
    lead: Option<Uuid>,
    /// queued, sending, sent, failed or unknown
    #[arg(long)]
    status: Option<String>,
    #[command(flatten)]
    limit: Limit,
    /// Where the page before ended
    #[arg(long)]
    cursor: Option<Uuid>,
    #[command(flatten)]
    format: Format,
}

impl ListArgs {
    fn listing(self) -> Result<Listing, Failure> {
        let limit = self.limit.read()?;
        if self.status.as_deref().is_some_and(|status| Status::parse(status).is_none()) {
            return Err(Failure::usage("--status is queued, sending, sent, failed or unknown"));
        }
        Ok(Listing {
            workspace: self.scope.workspace()?,
            kind: Message::KIND,
            list: self.lead.map(Message::list_of),
            state: self.status,
            limit,
            before: self.cursor,
        })
    }
}

/// Checks the arguments before it opens the store.
pub async fn run(command: Command, config: &Config) -> Result<(), Failure> {
    match command {
        Command::List(args) => {
            let format = args.format;
            let listing = args.listing()?;
            with(open_existing(config).await?, async |store| list(store, listing, format).await).await
        }
        Command::Show(one) => {
            let wanted = one.read("message", "messages")?;
            with(open_existing(config).await?, async |store| {
                let found = document::find::<Message>(store, &wanted.workspace, At::Id(wanted.id)).await?;
                let message = found.value.ok_or_else(|| wanted.missing())?;
                show::record(&MessageView::from(&message), one.format);
                Ok(())
            })
            .await
        }
        Command::Resolve { one, resolution, note } => {
            let (wanted, note) = (one.read("message", "messages")?, note.read()?);
            with_audit(open_existing(config).await?, async |store, log| {
                let (workspace, id, sent) = (&wanted.workspace, wanted.id, resolution.is_sent());
                let releases = config.messages.options.failed == OnFailure::Release;
                let act = wanted.act("audit.message_resolved", note.as_deref()).about("sent", sent);
                let resolve = async {
                    let resolved = Resolved { happened: sent, by: who(), note: note.clone() };
                    let resolved = resolve(store, workspace, id, &resolved, releases).await;
                    resolved.map_err(|refused| match refused {
                        Refused::Missing => wanted.missing(),
                        Refused::Wrong(why) => wanted.refused(why),
                        Refused::Store(error) => error.into(),
                        other => Failure::new(other.to_string()),
                    })
                };
                let (message, _) = log.act(act, resolve).await?;
                audit(id, resolution.says(), note.as_deref());
                show::record(&MessageView::from(&message), one.format);
                Ok(())
            })
            .await
        }
    }
}

async fn list(store: &dyn MainStore, listing: Listing, format: Format) -> Result<(), Failure> {
    let listed = document::list::<Message>(store, listing).await?;
    let items = listed.items.iter().map(MessageView::from).collect();
    let rows = listed.items.iter().map(|kept| {
        let Message { status, channel, created_us, error, .. } = &kept.document;
        let error = plain(error.as_deref().unwrap_or_default());
        [kept.id.to_string(), status.as_str().into(), channel.clone(), time(*created_us), error]
    });
    show::page(format, items, listed.next, ["ID", "STATUS", "CHANNEL", "CREATED", "ERROR"], rows);
    Ok(())
}
