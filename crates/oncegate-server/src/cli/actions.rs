//! `oncegate actions`: what the API's actions endpoints do, from a shell, straight on the store.

use clap::{Args, Subcommand};
use oncegate::actions::{Actions, Filter, Found, Refused, Status};
use oncegate::{WorkspaceName, limits};
use uuid::Uuid;

use super::claims::Scope;
use super::output::{Format, table};
use super::{Failure, fields, open_existing};
use crate::actions::ActionView;
use crate::api::Page;
use crate::config::Config;

#[derive(Subcommand)]
pub enum Command {
    /// List actions, newest first
    List {
        #[command(flatten)]
        filter: FilterArgs,
        #[command(flatten)]
        format: Format,
    },
    /// Show one action, with its revisions and its tries
    Show(One),
    /// Cancel an action that has not started, or a schedule
    Cancel(One),
    /// Try an action again that is dead, unknown or cancelled
    Retry(One),
    /// Run an action now that is to run later
    RunNow(One),
}

#[derive(Args)]
pub struct One {
    id: String,
    #[command(flatten)]
    scope: Scope,
    #[command(flatten)]
    format: Format,
}

#[derive(Args)]
pub struct FilterArgs {
    #[command(flatten)]
    scope: Scope,
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
    #[arg(long, default_value_t = limits::PAGE_DEFAULT)]
    limit: usize,
    /// Where the page before ended
    #[arg(long)]
    cursor: Option<Uuid>,
}

impl FilterArgs {
    fn filter(self) -> Result<(WorkspaceName, Filter), Failure> {
        if !(1..=limits::PAGE_MAX).contains(&self.limit) {
            return Err(Failure::usage(format!("--limit is 1 to {}", limits::PAGE_MAX)));
        }
        let status = |name: String| {
            let names = Status::ALL.map(Status::as_str).join(", ");
            Status::parse(&name).ok_or_else(|| Failure::usage(format!("--status is one of {names}")))
        };
        let filter = Filter {
            status: self.status.map(status).transpose()?,
            action_type: self.action_type,
            entity_id: self.entity,
            schedule: self.schedule,
            limit: self.limit,
            before: self.cursor,
        };
        Ok((self.scope.workspace()?, filter))
    }
}

/// What was asked for has to be right before the store is looked at.
pub async fn run(command: Command, config: &Config) -> Result<(), Failure> {
    match command {
        Command::List { filter, format } => {
            let (workspace, filter) = filter.filter()?;
            with_actions(config, async |actions| list(actions, &workspace, &filter, format).await).await
        }
        Command::Show(one) => {
            one.print(config, async |actions, workspace, id| actions.find(workspace, id).await?.ok_or(Refused::Missing))
                .await
        }
        Command::Cancel(one) => {
            one.print(config, async |actions, workspace, id| actions.cancel(workspace, id).await).await
        }
        Command::Retry(one) => {
            one.print(config, async |actions, workspace, id| actions.retry(workspace, id).await).await
        }
        Command::RunNow(one) => {
            one.print(config, async |actions, workspace, id| actions.run_now(workspace, id).await).await
        }
    }
}

/// Over the store that the configuration names, which is closed however it went.
async fn with_actions(config: &Config, work: impl AsyncFnOnce(&Actions) -> Result<(), Failure>) -> Result<(), Failure> {
    let store = open_existing(config).await?;
    let done = work(&Actions::over(store.clone())).await;
    store.close().await;
    done
}

impl One {
    /// Does something with the action, and shows it.
    async fn print(
        self,
        config: &Config,
        verb: impl AsyncFnOnce(&Actions, &WorkspaceName, Uuid) -> Result<Found, Refused>,
    ) -> Result<(), Failure> {
        let One { id, scope, format } = self;
        let workspace = scope.workspace()?;
        let missing = || {
            Failure::not_found(format!("no action {id} in workspace {workspace}"))
                .hint(format!("oncegate actions list --workspace {workspace}"))
        };
        let parsed: Uuid = id.parse().map_err(|_| missing())?;
        with_actions(config, async |actions| {
            let found = verb(actions, &workspace, parsed).await.map_err(|refused| match refused {
                Refused::Missing => missing(),
                Refused::Status(..) => Failure::new(refused.to_string())
                    .hint(format!("oncegate actions show {id} --workspace {workspace}")),
                Refused::Store(error) => error.into(),
            })?;
            format.print(&ActionView::from(&found), |view| {
                let json = serde_json::to_string(view).expect("output is JSON");
                table(["FIELD", "VALUE"], fields::rows(&json))
            });
            Ok(())
        })
        .await
    }
}

async fn list(actions: &Actions, workspace: &WorkspaceName, filter: &Filter, format: Format) -> Result<(), Failure> {
    let page = actions.list(workspace, filter).await?;
    let items = page.items.iter().map(ActionView::from).collect();
    format.print(&Page { items, next_cursor: page.next }, |_| {
        let plain = |text: &str| text.replace(char::is_control, " ");
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
        let more = page.next.map_or(String::new(), |cursor| format!("\nmore: --cursor {cursor}"));
        table(["ID", "STATUS", "TYPE", "ENTITY", "REVISION", "RUN AT", "ERROR"], rows) + &more
    });
    Ok(())
}
