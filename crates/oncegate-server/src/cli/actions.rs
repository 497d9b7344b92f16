//! `oncegate actions`: what the API's actions endpoints do, from a shell, straight on the store.

use clap::{Args, Subcommand};
use oncegate::WorkspaceName;
use oncegate::actions::{Actions, Filter, Found, Refused, Status};
use oncegate::document::Resolution as Resolved;
use uuid::Uuid;

use super::args::{Note, One, Paging, Wanted, audit, one_of, who};
use super::claims::Resolution;
use super::show::{self, plain};
use super::with_audit;
use oncegate_config::Config;
use oncegate_http::actions::ActionView;
use oncegate_http::audit::Audit;
use oncegate_http::stores::open_existing;
use oncegate_process::failure::Failure;
use oncegate_process::output::Format;

#[derive(Subcommand)]
pub enum Command {
    /// List actions, newest first
    List(ListArgs),
    /// Show one action, with its revisions and its tries
    Show(One),
    /// Cancel an action that has not started, or a schedule
    Cancel(One),
    /// Try an action again that is dead, unknown or cancelled
    Retry(One),
    /// Run an action now that is to run later
    RunNow(One),
    /// Settle an action that is dead or unknown, without another try
    Resolve {
        #[command(flatten)]
        one: One,
        /// not_done: it is not to happen, and is cancelled
        #[arg(long = "as", value_name = "done|not_done")]
        resolution: Resolution,
        #[command(flatten)]
        note: Note,
    },
}

#[derive(Args)]
pub struct ListArgs {
    #[command(flatten)]
    paging: Paging,
    /// pending, running, failed, completed, dead, unknown or cancelled
    #[arg(long)]
    status: Option<String>,
    #[arg(long = "type", value_name = "TYPE")]
    action_type: Option<String>,
    /// The entityId of the payload
    #[arg(long, value_name = "ID")]
    entity: Option<String>,
    /// Ticks of this schedule that have run
    #[arg(long, value_name = "ID")]
    schedule: Option<Uuid>,
    #[command(flatten)]
    format: Format,
}

impl ListArgs {
    fn filter(self) -> Result<(WorkspaceName, Filter), Failure> {
        let filter = Filter {
            status: one_of("--status", self.status, Status::ALL, Status::as_str)?,
            action_type: self.action_type,
            entity_id: self.entity,
            schedule: self.schedule,
            limit: self.paging.limit()?,
            before: self.paging.cursor,
        };
        Ok((self.paging.workspace()?, filter))
    }
}

/// Checks the arguments before it opens the store.
pub async fn run(command: Command, config: &Config) -> Result<(), Failure> {
    match command {
        Command::List(args) => {
            let format = args.format;
            let (workspace, filter) = args.filter()?;
            with_actions(config, async |actions, _| list(actions, &workspace, &filter, format).await).await
        }
        Command::Show(one) => {
            let wanted = one.read("action", "actions")?;
            with_actions(config, async |actions, _| {
                let found = actions.find(&wanted.workspace, wanted.id).await?;
                show::record(&ActionView::from(&found.ok_or_else(|| wanted.missing())?), one.format);
                Ok(())
            })
            .await
        }
        Command::Cancel(one) => {
            let deed = Deed { event: "audit.action_cancelled", note: None };
            act(one, config, deed, async |actions, workspace, id| actions.cancel(workspace, id).await).await
        }
        Command::Retry(one) => {
            let deed = Deed { event: "audit.action_retried", note: None };
            act(one, config, deed, async |actions, workspace, id| actions.retry(workspace, id).await).await
        }
        Command::RunNow(one) => {
            let deed = Deed { event: "audit.action_run_now", note: None };
            act(one, config, deed, async |actions, workspace, id| actions.run_now(workspace, id).await).await
        }
        Command::Resolve { one, resolution, note } => {
            let note = note.read()?;
            let done = resolution.is_done();
            let event = if done { "audit.action_done" } else { "audit.action_let_be" };
            act(one, config, Deed { event, note: note.clone() }, async |actions, workspace, id| {
                let resolved = Resolved { happened: done, by: who(), note: note.clone() };
                let found = actions.resolve(workspace, id, &resolved).await?;
                audit(id, resolution.says(), note.as_deref());
                Ok(found)
            })
            .await
        }
    }
}

/// A person's decision on an action, for the audit log.
struct Deed {
    event: &'static str,
    note: Option<String>,
}

/// Does something to the action, with a line in the audit log, and prints the action.
async fn act(
    one: One,
    config: &Config,
    deed: Deed,
    verb: impl AsyncFnOnce(&Actions, &WorkspaceName, Uuid) -> Result<Found, Refused>,
) -> Result<(), Failure> {
    let wanted = one.read("action", "actions")?;
    with_actions(config, async |actions, log| {
        let act = wanted.act(deed.event, deed.note.as_deref());
        let verb =
            async { verb(actions, &wanted.workspace, wanted.id).await.map_err(|refused| failed(&wanted, refused)) };
        let (found, _) = log.act(act, verb).await?;
        show::record(&ActionView::from(&found), one.format);
        Ok(())
    })
    .await
}

fn failed(wanted: &Wanted, refused: Refused) -> Failure {
    match refused {
        Refused::Missing => wanted.missing(),
        Refused::Status(..) => wanted.refused(refused),
        Refused::Store(error) => error.into(),
    }
}

async fn with_actions(
    config: &Config,
    work: impl AsyncFnOnce(&Actions, &Audit) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let store = open_existing(config).await?;
    let actions = Actions::over(store.clone());
    with_audit(store, async |_, log| work(&actions, log).await).await
}

async fn list(actions: &Actions, workspace: &WorkspaceName, filter: &Filter, format: Format) -> Result<(), Failure> {
    let page = actions.list(workspace, filter).await?;
    let items = page.items.iter().map(ActionView::from).collect();
    let rows = page.items.iter().map(|found| {
        let entity = found.action.entity.as_ref().map_or(String::new(), |entity| plain(&entity.id));
        let error = found.job.as_ref().and_then(|job| job.error.clone());
        let error = error.or_else(|| found.action.ended.as_ref().and_then(|ended| ended.error.clone()));
        [
            found.id.to_string(),
            found.status().as_str().into(),
            plain(&found.action.action_type),
            entity,
            found.action.revision.to_string(),
            found.run_at().to_string(),
            plain(&error.unwrap_or_default()),
        ]
    });
    let head = ["ID", "STATUS", "TYPE", "ENTITY", "REVISION", "RUN AT", "ERROR"];
    show::page(format, items, page.next, head, rows);
    Ok(())
}
